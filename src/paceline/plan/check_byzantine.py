"""What is wrong with the attack rules, and with the way gradients are to survive them?"""

import math

from paceline.config.byzantine import attack_text
from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import AGGREGATES, fewest_workers
from paceline.sync.byzantine import USUAL_SCALE, ByzantineRule


def check_byzantine(config: TrainConfig, num_workers: int | None) -> list[Problem]:
    """`num_workers` is None while it is itself wrong; then no rule can name a worker too many."""
    problems = [
        Problem(f"byzantine {attack_text(rule)}: {what}", hint, config.origin(f"byzantine[{number}]"))
        for number, rule in enumerate(config.byzantine or ())
        for what, hint in _faults(rule, num_workers)
    ]
    if config.byzantine and decide.averages_unweighted(decide.mode_of(config)):
        what = "torch averages within backward, so nothing can come between a gradient and the mean"
        hint = "use --mode ssgd, which computes the same, or leave byzantine out"
        problems.append(Problem(what, hint, config.origin("byzantine")))
    return problems


def _faults(rule: ByzantineRule, num_workers: int | None) -> list[tuple[str, str]]:
    faults = []
    if rule.worker is not None and num_workers is not None and not 0 <= rule.worker < num_workers:
        hint = f"workers are numbered 0 to {num_workers - 1}"
        faults.append((f"there is no worker {rule.worker} among {num_workers}", hint))
    if rule.scale is not None and rule.attack not in USUAL_SCALE:
        readers = ", ".join(attack.value for attack in USUAL_SCALE)
        faults.append((f"{rule.attack.value} has no scale", f"leave scale out; it is read by {readers}"))
    elif rule.scale is not None and not math.isfinite(rule.scale):
        faults.append((f"scale is {rule.scale}, but it must be finite", "write for example scale=100"))
    if not 0 < rule.probability <= 1:
        hint = "write a probability such as p=0.05"
        faults.append((f"p is {rule.probability:g}, but it must be more than 0 and at most 1", hint))
    if rule.first_step < 0:
        faults.append((f"from is {rule.first_step}, but steps start at 0", "write for example from=100"))
    if rule.end_step is not None and rule.end_step <= rule.first_step:
        hint = "`to` is not included, so it must be more than `from`"
        faults.append((f"it ends at step {rule.end_step} before it begins", hint))
    return faults


def check_aggregate(config: TrainConfig) -> list[Problem]:
    """The settings of aggregation together; each alone, and the mode, are already known to be sound."""
    way, tolerance = decide.aggregate_of(config), config.byzantine_tolerance
    if way in AGGREGATES and way != "mean":
        found = _check_count(config, way, 1 if tolerance is None else tolerance)
    elif tolerance is not None:
        hint = "leave byzantine_tolerance out, or use --aggregate median, trimmed-mean or krum"
        what = f"aggregate {way} does not read byzantine_tolerance"
        found = [Problem(what, hint, config.origin("byzantine_tolerance"))]
    else:
        found = []
    return found if way == "mean" else [*found, *_check_company(config)]


def _check_count(config: TrainConfig, way: str, tolerance: int) -> list[Problem]:
    num_workers, fewest = decide.num_workers_of(config), fewest_workers(way, tolerance)
    if num_workers >= fewest:
        return []
    bad = "1 bad worker" if tolerance == 1 else f"{tolerance} bad workers"
    largest = (num_workers - (3 if way == "krum" else 1)) // 2
    less = "" if largest < 0 else f", or byzantine_tolerance to {largest}"
    hint = f"set num_workers to {fewest} or more{less}"
    what = f"{way} survives {bad} among {fewest} or more, but there are {num_workers} workers"
    return [Problem(what, hint, config.origin("aggregate"))]


def _check_company(config: TrainConfig) -> list[Problem]:
    """What does not go together with any way but the mean."""
    found: list[Problem] = []
    if config.compress is not None:
        what = f"aggregate {decide.aggregate_of(config)} compares whole gradients, but these are compressed"
        hint = "leave compress out, or use --aggregate mean"
        found.append(Problem(what, hint, config.origin("compress")))
    sizes = decide.batch_sizes_of(config)
    if len(set(sizes)) == 1:
        return found
    what = (
        f"aggregate {decide.aggregate_of(config)} gives no worker a weight, but the batches differ: {sizes}"
    )
    hint = "give every worker the same batch_size, or use --aggregate mean, which weights them"
    return [*found, Problem(what, hint, config.origin("batch_size"))]

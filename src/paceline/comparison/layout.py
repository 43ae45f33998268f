"""Layout of a comparison: contenders, equal work and the order of runs, decided before any starts.

Every contender makes the same steps over the same samples: with N workers a step's
samples are dealt to N. The baseline `single` makes them alone. Each round has
its own seed, which all contenders share: the same first parameters, the same order
of samples, the same slow steps. Within a round the order is rotated, so that
no mode always runs first. Pure. See docs/concepts/equal-work.md.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.comparison.scripts import ComparedScript, about_script
from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES
from paceline.plan.check import check
from paceline.plan.plan import Plan
from paceline.plan.resolve import BASELINE, config_for_mode, resolve, single_worker_plan, unused_settings
from paceline.sync.rng import draw_uniform
from paceline.training.script import mode_problems, plan_of_script

DEFAULT_MODES = ("single", "ssgd", "asgd", "ssp", "localsgd")
DEFAULT_REPEATS = 3
PACE_S = 0.010  # of a step, when a worker is to be slow and no pace was given
_BATCH = 32


Count = Callable[[TrainConfig], int]  # how many training samples its task has


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    config: TrainConfig  # its own mode and num_workers are not read
    modes: tuple[str, ...] = DEFAULT_MODES
    worker_counts: tuple[int, ...] = (2,)
    repeats: int = DEFAULT_REPEATS
    target_loss: float | None = None  # None: what every run reaches
    target_accuracy: float | None = None  # the same of what is evaluated on the way
    script: ComparedScript | None = None  # what is trained instead of the config's task


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of the comparison."""

    name: str  # of its folder
    label: str  # who runs: a mode and its number of workers
    round: int  # from 0
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    contenders: dict[str, Plan]  # by label, baseline first, as in round 0
    turns: tuple[Turn, ...]  # in the order in which they are taken
    remarks: tuple[str, ...]  # decisions that were not requested


def lay_out(
    request: CompareRequest,
    facts: Facts,
    *,
    config_problems: Sequence[Problem] = (),
    count: Count | None = None,
) -> Layout:
    """Raises ConfigError with every problem, each once. `count` is called if epochs must become steps."""
    config, remarks = _with_pace(request.config)
    modes = _modes(request)
    remarks += _about_evaluations(config, modes)
    problems = [*config_problems, *_about_request(request, modes), *_about_config(config, modes)]
    shares, about_batches = _shares(config, request.worker_counts)
    problems += about_batches
    configs = {
        _label(mode, number): shares[number].of(_evaluated(config_for_mode(config, mode)), number)
        for mode in modes
        for number in request.worker_counts
    }
    problems += [problem for run_config in configs.values() for problem in check(run_config, facts)]
    if request.script is not None:
        problems += about_script(request.script, request.worker_counts)
        problems += [problem for run_config in configs.values() for problem in mode_problems(run_config)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    plans = {label: _plan(run_config, facts, request.script, count) for label, run_config in configs.items()}
    contenders = {BASELINE: single_worker_plan(next(iter(plans.values()))), **plans}
    return Layout(
        contenders=contenders,
        turns=tuple(_turns(contenders, request.repeats, config, request.script)),
        remarks=tuple(remarks),
    )


def _plan(config: TrainConfig, facts: Facts, script: ComparedScript | None, count: Count | None) -> Plan:
    if script is None:
        return resolve(config, facts, count=count)
    return plan_of_script(config, facts, script.probed[decide.num_workers_of(config)], script.file)


def order_of(labels: Sequence[str], repeats: int, seed: int) -> list[list[str]]:
    """A row per round: shuffled once by the seed, then rotated from round to round."""
    places = sorted(range(len(labels)), key=lambda place: draw_uniform(seed, 0, place, 0))
    shuffled = [labels[place] for place in places]
    stride = max(1, len(labels) // max(1, repeats))
    shifts = [number * stride % len(labels) for number in range(repeats)]
    return [shuffled[shift:] + shuffled[:shift] for shift in shifts]


def _turns(
    contenders: dict[str, Plan], repeats: int, config: TrainConfig, script: ComparedScript | None
) -> list[Turn]:
    seed = config.seed or 0
    prefix = "" if config.name is None else f"{config.name}-"
    turns = []
    for number, labels in enumerate(order_of(list(contenders), repeats, seed)):
        for label in labels:
            name = f"{label}-{number + 1}"
            plan = replace(contenders[label], run=prefix + name, seed=seed + number)
            plan = plan if script is None else script.in_round(plan, number)
            turns.append(Turn(name=name, label=label, round=number, plan=plan))
    return turns


def _modes(request: CompareRequest) -> list[str]:
    """Each once, by its own name, without the baseline, which is there anyway."""
    names = [decide.mode_name_of(replace(request.config, mode=mode)) for mode in request.modes]
    return [name for name in dict.fromkeys(names) if name != BASELINE]


def _label(mode: str, count: int) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '-', mode.lower()).strip('-')[:60]}-{count}"


def _with_pace(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """Set a pace: a straggler's delay is a multiple of the step, so a step needs a duration."""
    is_slowed = any(rule.factor != 1.0 for rule in config.straggler or ())
    if config.pace is not None or not is_slowed or decide.is_virtual(config):
        return config, []
    return replace(config, pace=PACE_S), [
        f"a step lasts at least {PACE_S * 1e3:g} ms, so that a straggler's delay is known (change it with "
        "--pace)"
    ]


def _evaluated(config: TrainConfig) -> TrainConfig:
    """Modes that cannot be evaluated on the way are not: their model is evaluated when it is done."""
    mode = decide.mode_of(config)
    return config if mode is None or mode.is_evaluated else replace(config, evaluate_every=None)


def _about_evaluations(config: TrainConfig, modes: Sequence[str]) -> list[str]:
    not_seen = [mode for mode in modes if mode in MODES and not MODES[mode].is_evaluated]
    if config.evaluate_every is None or not not_seen:
        return []
    return [f"{', '.join(not_seen)} can be evaluated only at the end; the others also during training"]


@dataclass(frozen=True, slots=True)
class _Share:
    """A worker's share of a step, and its duration."""

    batch_size: int | tuple[int, ...] | None
    pace_s: float | None

    def of(self, config: TrainConfig, num_workers: int) -> TrainConfig:
        return replace(config, num_workers=num_workers, batch_size=self.batch_size, pace=self.pace_s)


def _shares(config: TrainConfig, counts: Sequence[int]) -> tuple[dict[int, _Share], list[Problem]]:
    """How many samples of a step each worker takes, by number of workers; the sum is always the same."""
    batch_size = config.batch_size
    sizes = {n: max(1, decide.num_workers_of(replace(config, mode=None, num_workers=n))) for n in counts}
    largest = max(sizes.values(), default=1)
    as_said = {n: _Share(batch_size, config.pace) for n in counts}
    if isinstance(batch_size, tuple):
        if len(counts) < 2:
            return as_said, []
        message = f"batch_size lists {len(batch_size)} numbers, but num_workers lists {len(counts)}"
        return as_said, [Problem(message, "give one number for all workers", config.origin("batch_size"))]
    unit = math.lcm(*sizes.values()) // largest
    batch = -(-_BATCH // unit) * unit if batch_size is None else batch_size
    if batch % unit:
        message = f"a step has {batch} x {largest} = {batch * largest} samples, which is not divisible by"
        hint = f"set batch_size to a multiple of {unit}, such as {-(-batch // unit) * unit}"
        listed = " or ".join(str(n) for n in counts)
        return as_said, [Problem(f"{message} {listed} workers", hint, config.origin("batch_size"))]
    paces = {n: None if config.pace is None else config.pace * largest / size for n, size in sizes.items()}
    return {n: _Share(batch * largest // size, paces[n]) for n, size in sizes.items()}, []


def _about_request(request: CompareRequest, modes: Sequence[str]) -> list[Problem]:
    problems = []
    if not modes:
        hint = "name at least one more, such as --modes single,ssgd,asgd"
        problems.append(Problem("there is nothing to compare single with", hint, "--modes"))
    if request.repeats < 1:
        message = f"repeats is {request.repeats}, but it must be 1 or more"
        problems.append(Problem(message, "3 repeats are the minimum for confidence intervals", "--repeats"))
    is_evaluated = request.config.evaluate_every is not None or request.script is not None
    if request.target_accuracy is not None and not is_evaluated:
        message = "target_accuracy is set, but accuracy is not evaluated during training"
        problems.append(Problem(message, "add --evaluate-every epoch, for example", "--target-accuracy"))
    if request.target_accuracy is not None and request.target_loss is not None:
        message = "there are two targets, a loss and an accuracy"
        problems.append(Problem(message, "leave one of them out", "--target-accuracy"))
    counts = request.worker_counts
    if not counts or len(set(counts)) < len(counts):
        message = f"num_workers is {','.join(map(str, counts))!r}, but it must name different numbers"
        problems.append(Problem(message, "write for example --num-workers 2,4", "--num-workers"))
    return problems


def _about_config(config: TrainConfig, modes: Sequence[str]) -> list[Problem]:
    problems = [
        Problem(
            f"none of the modes {', '.join(modes)} reads {name}", f"leave {name} out", config.origin(name)
        )
        for name in unused_settings(config, modes)
    ]
    for key, hint in _REFUSED.items():
        if getattr(config, key) is not None:
            message = f"{key} cannot be used in a comparison"
            problems.append(Problem(message, hint, config.origin(key)))
    if config.events == "off":
        message = "events is off, but a comparison reads the recorded events"
        problems.append(Problem(message, "leave events out", config.origin("events")))
    return problems


_REFUSED = {
    "run_dir": "leave it out, and name the folder with --out",
    "checkpoint_store": "leave it out: every run would write to the same place",
    "export": "leave it out, because it slows down the runs; afterwards: paceline export RUN --to "
    "tensorboard",
    "alerts": "leave it out: a comparison sends no alerts",
    "metrics_port": "leave it out: every run would listen on the same port",
    "early_stop_patience": "leave it out: runs that stop early do not do equal work",
    "early_stop_metric": "leave it out, like early_stop_patience",
    "scale_lr": "leave it out: the global batch is the same for all modes, so there is nothing to scale",
}

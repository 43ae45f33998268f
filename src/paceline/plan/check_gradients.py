"""Checks of compression, aggregation, Byzantine attacks and straggler rules."""

import math
from collections.abc import Callable, Iterator

from paceline.config.environment import Facts
from paceline.config.fault_rules import attack_text, straggler_text
from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import AGGREGATES, MODES, Channel, Mode, min_workers_for
from paceline.plan.compression import CODECS, Unusable, read_compression
from paceline.plan.plan import Codec, Compression, Transport
from paceline.sync.fault_rules import DEFAULT_SCALE, ByzantineRule, StragglerRule

_MEMORY_IN_HOOK = frozenset({Codec.FP16, Codec.BF16})  # torch's hooks for these have none


def check_compression(config: TrainConfig, facts: Facts, are_sound: Callable[..., bool]) -> list[Problem]:
    """`are_sound` returns whether keys have no problems themselves."""
    parsed = read_compression(config.compress) if config.compress is not None else None
    if isinstance(parsed, Unusable):
        return [Problem(parsed.what, parsed.hint, config.origin("compress"))]
    chosen = decide.compression_of(config)
    if chosen is None:
        return list(_idle(config)) if are_sound("compress") else []
    problems = list(_alone(config, chosen))
    if are_sound("mode"):
        problems += _with_mode(config, chosen)
    if are_sound("mode", "device", "transport", "num_workers"):
        problems += _with_transport(config, facts, chosen)
    if are_sound("optimizer"):
        problems += _with_optimizer(config, chosen)
    return problems


def _idle(config: TrainConfig) -> Iterator[Problem]:
    for key in ("error_feedback", "compress_warmup"):
        if getattr(config, key) is not None:
            hint = f"leave {key} out, or name a codec, such as --compress int8"
            yield Problem(f"{key} is set, but nothing is compressed", hint, config.origin(key))


def _alone(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    if chosen.codec is Codec.DGC and not chosen.error_feedback:
        hint = "leave error_feedback out, or use --compress topk, which can do without"
        yield Problem(
            "dgc works by error feedback, so error_feedback cannot be no",
            hint,
            config.origin("error_feedback"),
        )
    if config.compress_warmup is not None and chosen.codec is not Codec.DGC:
        hint = "leave compress_warmup out, or use --compress dgc"
        message = f"{chosen.codec} does not read compress_warmup"
        yield Problem(message, hint, config.origin("compress_warmup"))


def _with_mode(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    mode = decide.mode_of(config)
    codec = chosen.codec
    if mode is None:
        return  # the user's own mode may average as it likes
    where = config.origin("compress")
    if codec not in mode.compresses:
        can = ", ".join(name for name, other in MODES.items() if codec in other.compresses)
        theirs = ", ".join(c for c in CODECS if c in mode.compresses)
        hint = f"use a mode that can: {can}" + (f"; or another codec: {theirs}" if theirs else "")
        yield Problem(_refusal(mode, codec), hint, where)
    elif mode.channel is Channel.TORCH and codec in _MEMORY_IN_HOOK and chosen.error_feedback:
        hint = "leave error_feedback out, or use --mode ssgd"
        message = f"torch's own {codec} compression has no error feedback"
        yield Problem(message, hint, config.origin("error_feedback"))
    elif codec is Codec.POWERSGD and decide.strategy_options_of(config).fragments > 1:
        hint = "leave fragments out, or use another codec, such as int8"
        yield Problem("powersgd needs whole matrices, but fragments cut through them", hint, where)


def _with_transport(config: TrainConfig, facts: Facts, chosen: Compression) -> Iterator[Problem]:
    mode = decide.mode_of(config)
    if mode is None or mode.channel is not Channel.TORCH or chosen.codec is not Codec.BF16:
        return
    transport = decide.transport_of(config, facts)
    if transport is not Transport.NCCL:
        message = f"torch's own bf16 compression works over NCCL alone, and this run would use {transport}"
        yield Problem(message, "use --compress fp16, or --mode ssgd", config.origin("compress"))


def _refusal(mode: Mode, codec: Codec) -> str:
    if not mode.compresses:
        return f"mode {mode.name} does not support compression"
    if mode.channel is Channel.TORCH:
        return f"ddp compresses by torch's own hooks, and none of them is {codec}; use --mode ssgd"
    if codec is Codec.DGC:
        return f"dgc needs gradients that are averaged at every step, and {mode.name} does not do that"
    return f"{codec} needs an all-reduce, but workers of {mode.name} communicate with a server"


def _with_optimizer(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    if chosen.codec is Codec.DGC and config.optimizer not in (None, "sgd"):
        message = f"dgc keeps the momentum itself, so {config.optimizer} would count it twice"
        yield Problem(message, "use --optimizer sgd", config.origin("optimizer"))


def check_byzantine(config: TrainConfig, num_workers: int | None) -> list[Problem]:
    """`num_workers` is None while it is itself wrong; then no rule can name a worker too many."""
    problems = [
        Problem(f"byzantine {attack_text(rule)}: {message}", hint, config.origin(f"byzantine[{number}]"))
        for number, rule in enumerate(config.byzantine or ())
        for message, hint in _attack_faults(rule, num_workers)
    ]
    if config.byzantine and decide.averages_unweighted(decide.mode_of(config)):
        message = "torch averages within backward, so a gradient cannot be changed before the mean"
        hint = "use --mode ssgd, which computes the same, or leave byzantine out"
        problems.append(Problem(message, hint, config.origin("byzantine")))
    return problems


def _attack_faults(rule: ByzantineRule, num_workers: int | None) -> list[tuple[str, str]]:
    faults = []
    if rule.worker is not None and num_workers is not None and not 0 <= rule.worker < num_workers:
        hint = f"workers are numbered 0 to {num_workers - 1}"
        faults.append((f"there is no worker {rule.worker} among {num_workers}", hint))
    if rule.scale is not None and rule.attack not in DEFAULT_SCALE:
        readers = ", ".join(attack.value for attack in DEFAULT_SCALE)
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
    aggregate = decide.aggregate_of(config)
    tolerance = config.byzantine_tolerance
    if aggregate in AGGREGATES and aggregate != "mean":
        problems = _check_count(config, aggregate, 1 if tolerance is None else tolerance)
    elif tolerance is not None:
        hint = "leave byzantine_tolerance out, or use --aggregate median, trimmed-mean or krum"
        message = f"aggregate {aggregate} does not read byzantine_tolerance"
        problems = [Problem(message, hint, config.origin("byzantine_tolerance"))]
    else:
        problems = []
    return problems if aggregate == "mean" else [*problems, *_check_company(config)]


def _check_count(config: TrainConfig, aggregate: str, tolerance: int) -> list[Problem]:
    num_workers = decide.num_workers_of(config)
    fewest = min_workers_for(aggregate, tolerance)
    if num_workers >= fewest:
        return []
    bad = "1 bad worker" if tolerance == 1 else f"{tolerance} bad workers"
    largest = (num_workers - (3 if aggregate == "krum" else 1)) // 2
    less = "" if largest < 0 else f", or byzantine_tolerance to {largest}"
    hint = f"set num_workers to {fewest} or more{less}"
    message = f"{aggregate} survives {bad} among {fewest} or more, but there are {num_workers} workers"
    return [Problem(message, hint, config.origin("aggregate"))]


def _check_company(config: TrainConfig) -> list[Problem]:
    """Settings that are incompatible with any aggregate but the mean."""
    problems: list[Problem] = []
    if config.compress is not None:
        message = (
            f"aggregate {decide.aggregate_of(config)} compares whole gradients, but the gradients are "
            "compressed"
        )
        hint = "leave compress out, or use --aggregate mean"
        problems.append(Problem(message, hint, config.origin("compress")))
    sizes = decide.batch_sizes_of(config)
    if len(set(sizes)) == 1:
        return problems
    message = (
        f"aggregate {decide.aggregate_of(config)} does not weight workers, but the batch sizes "
        f"differ: {sizes}"
    )
    hint = "give every worker the same batch_size, or use --aggregate mean, which weights them"
    return [*problems, Problem(message, hint, config.origin("batch_size"))]


def check_stragglers(config: TrainConfig, num_workers: int | None) -> list[Problem]:
    """`num_workers` is None while it is itself wrong; then no rule can name a worker too many."""
    return [
        Problem(f"straggler {straggler_text(rule)}: {message}", hint, config.origin(f"straggler[{number}]"))
        for number, rule in enumerate(config.straggler or ())
        for message, hint in _straggler_faults(rule, num_workers)
    ]


def _straggler_faults(rule: StragglerRule, num_workers: int | None) -> list[tuple[str, str]]:
    faults = []
    if rule.worker is not None and num_workers is not None and not 0 <= rule.worker < num_workers:
        hint = f"workers are numbered 0 to {num_workers - 1}"
        faults.append((f"there is no worker {rule.worker} among {num_workers}", hint))
    if not (math.isfinite(rule.factor) and rule.factor >= 1):
        hint = "give the slowdown as a factor, such as factor=3"
        faults.append((f"factor is {rule.factor:g}, but it must be 1 or more", hint))
    if not (math.isfinite(rule.delay_s) and rule.delay_s >= 0):
        hint = "write for example delay=50ms"
        faults.append((f"delay is {rule.delay_s:g}s, but it must be 0 or more", hint))
    if not 0 < rule.probability <= 1:
        hint = "write a probability such as p=0.05"
        faults.append((f"p is {rule.probability:g}, but it must be more than 0 and at most 1", hint))
    if rule.first_step < 0:
        faults.append((f"from is {rule.first_step}, but steps start at 0", "write for example from=100"))
    if rule.ramp < 0:
        hint = "give the number of steps until the factor is reached, such as over=100"
        faults.append((f"over is {rule.ramp}, but it must be 0 or more", hint))
    if rule.end_step is not None and rule.end_step <= rule.first_step:
        hint = "`to` is not included, so it must be more than `from`"
        faults.append((f"it ends at step {rule.end_step} before it begins", hint))
    return faults

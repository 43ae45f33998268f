"""Descriptions of single settings of a plan: stragglers, attacks, compression, workforce, length."""

from collections.abc import Iterator, Sequence

from paceline.plan.catalog import AGGREGATES, MODES, ROBUST, Channel, server_names
from paceline.plan.plan import Codec, Compression, Dtype, Elastic, Evaluation, OnGiveUp, OnSlow, Plan
from paceline.plan.schedule import draws_of
from paceline.sync.fault_rules import Attack, ByzantineRule, StragglerRule, bad_workers


def describe_straggler(rule: StragglerRule) -> str:
    subject = "every worker" if rule.worker is None else f"worker {rule.worker}"
    effects = []
    if rule.factor != 1.0:
        rising = f", rising over {rule.ramp} steps" if rule.ramp else ""
        effects.append(f"takes {rule.factor:g} times as long{rising}")
    if rule.delay_s:
        effects.append(f"is delayed by {rule.delay_s * 1000:g} ms")
    chance = "" if rule.probability >= 1.0 else f" with probability {rule.probability:g}"
    return f"{subject} {' and '.join(effects) or 'is not slowed'}{chance}, {_straggler_when(rule)}"


def persistent_stragglers(plan: Plan) -> tuple[int, ...]:
    """The workers that are slower than the fastest one for the whole run, not just now and then."""
    rules = [r for r in plan.stragglers if _is_persistent(r, plan.steps)]
    speeds = [_slowness(worker, rules) for worker in range(plan.num_workers)]
    return tuple(worker for worker, speed in enumerate(speeds) if speed > min(speeds))


def _straggler_when(rule: StragglerRule) -> str:
    if rule.steps is not None:
        return f"at {len(rule.steps)} step{'s' * (len(rule.steps) != 1)} of the trace"
    if rule.end_step is not None:
        return f"from step {rule.first_step} until step {rule.end_step}"
    return f"from step {rule.first_step} on" if rule.first_step else "at every step"


def _is_persistent(rule: StragglerRule, steps: int) -> bool:
    ends = rule.end_step is not None and rule.end_step < steps
    return rule.probability >= 1.0 and not ends and rule.steps is None


def _slowness(worker: int, rules: Sequence[StragglerRule]) -> tuple[float, float]:
    """(factor, delay); good enough to compare workers, not to predict a time."""
    own_rules = [r for r in rules if r.worker in (None, worker)]
    factor = 1.0
    for rule in own_rules:
        factor *= rule.factor
    return factor, sum(rule.delay_s for rule in own_rules)


def describe_attack(rule: ByzantineRule) -> str:
    subject = "every worker" if rule.worker is None else f"worker {rule.worker}"
    chance = "" if rule.probability >= 1.0 else f" with probability {rule.probability:g}"
    return f"{subject} sends {_what(rule)}{chance}, {_attack_when(rule)}"


def _what(rule: ByzantineRule) -> str:
    match rule.attack:
        case Attack.GARBAGE:
            return f"noise {rule.strength:g} times its gradient's norm"
        case Attack.SIGN_FLIP:
            return f"its gradient times {-rule.strength:g}"
        case Attack.SCALE:
            return f"its gradient times {rule.strength:g}"
        case Attack.ZERO:
            return "zeros"
        case Attack.NAN:
            return "NaN"
        case Attack.SAME_VALUE:
            return f"{rule.strength:g} in every coordinate"


def _attack_when(rule: ByzantineRule) -> str:
    if rule.end_step is not None:
        return f"from step {rule.first_step} until step {rule.end_step}"
    return f"from step {rule.first_step} on" if rule.first_step else "at every step"


def describe_aggregate(plan: Plan) -> str:
    aggregate = plan.strategy.aggregate
    tolerance = plan.strategy.byzantine_tolerance
    if aggregate not in AGGREGATES:
        return f"{aggregate}, your own function of all {plan.num_workers} gradients"
    bad = "1 bad worker" if tolerance == 1 else f"{tolerance} bad workers"
    return (
        f"{aggregate}: {AGGREGATES[aggregate]} (f = {tolerance}: {bad} of {plan.num_workers} are tolerated)"
    )


def byzantine_remarks(plan: Plan) -> Iterator[str]:
    aggregate = plan.strategy.aggregate
    tolerance = plan.strategy.byzantine_tolerance
    bad = bad_workers(plan.byzantine, plan.num_workers)
    if aggregate == "krum":
        yield "krum applies one worker's gradient per step: its noise is that of one batch, not of all"
    if not bad:
        return
    subject = f"worker {bad[0]} is" if len(bad) == 1 else f"{len(bad)} workers are"
    if aggregate == "mean":
        reads = plan.mode in MODES and all(map(MODES[plan.mode].reads, ROBUST))
        cure = "--aggregate" if reads else "--mode ssgd or ps with --aggregate"
        yield f"{subject} byzantine, and a mean tolerates none; use {cure} median, trimmed-mean or krum"
    elif aggregate in AGGREGATES and len(bad) > tolerance:
        yield f"{subject} byzantine, but {aggregate} tolerates {tolerance}; raise byzantine_tolerance"


_SPARSE = frozenset({Codec.TOPK, Codec.DGC})


def compression_remarks(plan: Plan) -> Iterator[str]:
    if plan.mode == "onebit":
        yield (
            "parameters that have no gradient at all before the second moment is frozen stay as they are"
            " afterwards; with a small freeze_after training may diverge"
        )
    if plan.compress is None:
        return
    yield (
        "compression costs time: 6 of more than 200 published setups were faster than a good uncompressed "
        "all-reduce (Agarwal 2022); compare the codec time with the time saved"
    )
    yield from _about_codec(plan, plan.compress)
    if plan.mode not in MODES:
        yield "your own strategy compresses only what it averages through strategies/means.py"
    if _has_server(plan):
        yield "only gradients are compressed: the server sends parameters uncompressed"
        if plan.compress.error_feedback:
            yield "workers of a server save no state: a resumed run starts with empty error-feedback memories"
    if plan.mode == "ddp" and plan.compress.codec is Codec.POWERSGD:
        yield "torch starts with two uncompressed steps; a resumed run repeats them, with an empty memory"


def _about_codec(plan: Plan, compress: Compression) -> Iterator[str]:
    codec = compress.codec
    amount = compress.amount or 0.0
    if codec in _SPARSE and not _has_server(plan) and amount * plan.num_workers >= 1:
        yield (
            f"every worker receives {amount:.0%} from each worker: with {plan.num_workers} workers that is "
            "as much as an uncompressed all-reduce, or more;"
            f" a fraction below 1/N = {1 / plan.num_workers:.2g} saves bytes"
        )
    if codec is Codec.FP32 and plan.dtype is Dtype.FLOAT32:
        yield "fp32 saves nothing in a float32 run"
    if codec is Codec.INT8 and not compress.error_feedback:
        yield "int8 without error feedback uses stochastic rounding, which is unbiased"
    if codec is Codec.SIGN and not compress.error_feedback:
        yield "signs without error feedback need not converge, not even on convex problems (law C8)"
    if codec is Codec.DGC and plan.clip_norm is not None:
        limit = plan.clip_norm / plan.num_workers**0.5
        yield f"dgc clips each worker's gradient, to clip_norm / √N = {limit:.3g}, and not their mean"


def _has_server(plan: Plan) -> bool:
    return plan.mode in MODES and MODES[plan.mode].channel is Channel.STORE


_FINE = 4  # shards for each worker: dealing by speed is then within a quarter of the best


def describe_workforce(plan: Plan, elastic: Elastic) -> str:
    return f"{plan.num_workers} shards, {elastic.min_workers} to {elastic.max_workers} workers"


def elastic_remarks(plan: Plan) -> Iterator[str]:
    elastic = plan.elastic
    if elastic is None or server_names(plan):
        return
    shards = plan.num_workers
    workers = elastic.workers
    if elastic.max_workers == workers:
        cause = f"{shards} shards" if shards == workers else f"max_workers {workers}"
        yield f"the run cannot grow beyond its {workers} workers ({cause}); allow it with more --shards"
    if plan.mode == "fedavg" and draws_of(plan).count < workers:
        drawn = draws_of(plan).count
        yield (f"{drawn} clients are sampled for a round, so some of {workers} workers only wait as spares")
    if plan.mode == "adaptive":
        yield (
            "whole shards are assigned by speed, which changes no bit of the result; when local steps begin "
            "and end does, and is recorded with its reason"
        )
    deals_by_speed = elastic.on_slow is OnSlow.REBALANCE or plan.mode == "adaptive"
    if deals_by_speed and shards == workers:
        yield (
            f"with as many shards as workers ({shards}) only a whole worker's share can be moved: rebalancing"
            f" helps against a worker that is more than twice as slow; --shards {_FINE * workers} would let"
            " the shares follow the speeds"
        )
    elif deals_by_speed and shards < _FINE * workers:
        yield (
            f"{shards} shards among {workers} workers can be assigned by speed only coarsely;"
            f" --shards {_FINE * workers} follows the speeds more closely"
        )
    if elastic.on_give_up is OnGiveUp.PAUSE:
        yield (
            f"with fewer than {elastic.min_workers} workers, and no replacement left, the run waits for "
            "`paceline workers add`"
        )


def describe_length(plan: Plan) -> str:
    """Length of a run whose samples were counted; empty for others."""
    if plan.num_samples is None:
        return ""
    seen = f"{plan.total_samples / plan.num_samples:.3g} times all {plan.num_samples:,} training samples"
    return f"; {seen}" if plan.epochs is None else f"; {plan.epochs:g} epochs requested, {seen} trained"


def describe_evaluation(evaluation: Evaluation) -> str:
    when = "at the end of every epoch" if evaluation.every is None else f"every {evaluation.every} steps"
    text = f"on the validation data {when}, divided among the workers, and after the last step"
    if evaluation.patience is None:
        return text
    metric = evaluation.metric or "valid_loss (or test_loss)"
    better = "fell" if evaluation.lower_is_better else "rose"
    times = "1 evaluation" if evaluation.patience == 1 else f"{evaluation.patience} evaluations in a row"
    return (
        f"{text}; training stops when {metric} {better} no further for {times}, and the best weights are kept"
    )


def describe_lr_scaling(plan: Plan) -> str:
    """Effect of `--scale-lr linear` on the rate; empty without an effect."""
    if plan.lr_scale <= 1.0:
        return ""
    return (
        f"times {plan.lr_scale:g} (linear rule: {plan.global_batch} samples per update instead of"
        f" {plan.global_batch // plan.num_workers})"
    )


def announce_lr_scaling(plan: Plan) -> str:
    """The same as a whole sentence, shown when the run starts."""
    warmup = 0 if plan.lr_schedule is None else plan.lr_schedule.warmup
    rises = f"reached over the first {warmup} steps" if warmup else "from the first step on"
    scaled = describe_lr_scaling(plan)
    return f"learning rate {scaled}, {rises}" if scaled else ""

"""Steps at which replicas agree, and steps that epochs and evaluations amount to.

Synchronous SGD agrees after every step; LocalSGD and DiLoCo at the end of a
round; adaptive as it has decided, so that only the event log knows. Clients of
FedAvg are at different steps, so there rounds are counted. Pure.
"""

import math
from dataclasses import replace
from fractions import Fraction

from paceline.config.train_config import TrainConfig
from paceline.plan import decide
from paceline.plan.catalog import MODES
from paceline.plan.plan import Evaluation, Plan
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.averaging import Rounds, averages_after, clients_per_round, starts_after

ROUND_MODES = tuple(mode.name for mode in MODES.values() if mode.in_rounds)


def has_rounds(plan: Plan) -> bool:
    """True if workers train alone between two averagings."""
    return plan.mode in MODES and MODES[plan.mode].in_rounds


def is_streaming(plan: Plan) -> bool:
    """True if fragments of the parameters are averaged at different steps, or applied later."""
    options = plan.strategy
    return plan.mode == "diloco" and (options.fragments > 1 or options.sync_delay > 0 or options.mixing > 0.0)


def longest_commit(plan: Plan) -> int:
    """How many steps are committed at once, at most."""
    may_be_alone = plan.mode == "adaptive" and plan.strategy.adaptive is not Allowed.BATCH
    return plan.strategy.sync_every if has_rounds(plan) or may_be_alone else 1


def draws_of(plan: Plan) -> Rounds:
    """The rounds of federated averaging, from the first on."""
    return Rounds(
        seed=plan.seed,
        num_workers=plan.num_workers,
        steps=plan.steps,
        every=plan.strategy.sync_every,
        count=clients_per_round(plan.strategy.clients_per_round, plan.num_workers),
    )


def commits_in(plan: Plan, steps: int) -> int:
    """Commits of an elastic run in `steps` steps: fedavg commits rounds, all other modes steps."""
    if plan.mode != "fedavg" or steps == 0:
        return steps
    in_a_round = draws_of(plan).count * plan.strategy.sync_every  # steps of single clients
    return max(1, round(steps * plan.num_workers / in_a_round))


def is_whole(plan: Plan, finished: int) -> bool:
    """Whether a run can have committed `finished` steps; False in the middle of a round."""
    if finished == 0 or not has_rounds(plan):
        return True
    if is_streaming(plan):
        return finished >= plan.steps or _averages_a_fragment(plan, finished)
    return averages_after(
        finished,
        total=plan.steps,
        every=plan.strategy.sync_every,
        post_local_after=plan.strategy.post_local_after,
    )


def _averages_a_fragment(plan: Plan, finished: int) -> bool:
    """A small model has fewer fragments than configured."""
    every = plan.strategy.sync_every
    return any(
        starts_after(finished, fragment, every=every, fragments=fragments)
        for fragments in range(1, plan.strategy.fragments + 1)
        for fragment in range(fragments)
    )


# An epoch is over when the run has seen as many samples as the task has. Its end
# need not fall on a step, so what is due then happens after the step in which it
# falls.

WARMUP_EPOCHS = 5  # Goyal 2017, arXiv 1706.02677: of 90
_WARMUP_SHARE = 5  # at most 1 of 5 steps


def needs_sample_count(config: TrainConfig) -> bool:
    """True if the plan depends on the number of training samples."""
    return config.epochs is not None or _evaluates_epochs(config) or _warms_up_by_epochs(config)


def with_steps(config: TrainConfig, num_samples: int) -> TrainConfig:
    """The same config with steps for epochs, and the warm-up that scaling the rate brings."""
    global_batch = sum(decide.batch_sizes_of(config))
    if config.epochs is not None:
        steps = steps_of_epochs(config.epochs, num_samples, global_batch)
        origins = {key: where for key, where in config.origins.items() if key != "epochs"}
        if (origin := config.origin("epochs")) is not None:
            origins["steps"] = origin
        config = replace(config, epochs=None, steps=steps, origins=origins)
    if _warms_up_by_epochs(config):
        warmup = steps_of_epochs(WARMUP_EPOCHS, num_samples, global_batch)
        config = replace(config, lr_warmup=min(warmup, decide.steps_of(config) // _WARMUP_SHARE))
    return config


def steps_of_epochs(epochs: float, num_samples: int, global_batch: int) -> int:
    """Steps of exact decimals, not of their nearest binary numbers: 0.1 of 1,000 samples is 100."""
    return max(1, math.ceil(Fraction(str(epochs)) * num_samples / global_batch))


def evaluation_of(config: TrainConfig) -> Evaluation | None:
    if config.evaluate_every is None and config.early_stop_patience is None:
        return None
    name, _, direction = (config.early_stop_metric or "").partition(":")
    return Evaluation(
        every=config.evaluate_every if isinstance(config.evaluate_every, int) else None,
        patience=config.early_stop_patience,
        metric=name or None,
        lower_is_better=direction != "max",
    )


def next_evaluation(plan: Plan, done: int) -> int:
    """Step of the run, greater than `done`, at which the next evaluation is due."""
    assert plan.evaluation is not None, "asked only where there are evaluations"
    if plan.evaluation.every is not None:
        return (done // plan.evaluation.every + 1) * plan.evaluation.every
    assert plan.num_samples is not None, "epochs were counted"
    epochs = done * plan.global_batch // plan.num_samples + 1
    return steps_of_epochs(epochs, plan.num_samples, plan.global_batch)


def _evaluates_epochs(config: TrainConfig) -> bool:
    return config.evaluate_every == "epoch" or (
        config.evaluate_every is None and config.early_stop_patience is not None
    )


def _warms_up_by_epochs(config: TrainConfig) -> bool:
    return config.scale_lr == "linear" and config.lr_warmup is None and decide.num_workers_of(config) > 1

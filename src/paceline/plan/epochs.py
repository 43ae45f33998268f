"""How many steps are so many epochs, and after which steps does one end? Pure: samples were counted before.

An epoch is over when the run has seen as many samples as the task has. Its end
need not fall on a step, so what is due then happens after the step in which it
falls.
"""

import math
from dataclasses import replace
from fractions import Fraction

from paceline.config.train_config import TrainConfig
from paceline.plan import decide
from paceline.plan.plan import Evaluation, Plan

WARMUP_EPOCHS = 5  # Goyal 2017, arXiv 1706.02677: of 90
_WARMUP_SHARE = 5  # but no more than one of so many steps


def needs_count(config: TrainConfig) -> bool:
    """Does the plan depend on how many training samples the task has?"""
    return config.epochs is not None or _evaluates_epochs(config) or _warms_up_by_epochs(config)


def with_steps(config: TrainConfig, num_samples: int) -> TrainConfig:
    """The same config with steps for epochs, and the warm-up that scaling the rate brings."""
    global_batch = sum(decide.batch_sizes_of(config))
    if config.epochs is not None:
        steps = steps_of_epochs(config.epochs, num_samples, global_batch)
        origins = {key: where for key, where in config.origins.items() if key != "epochs"}
        if (said := config.origin("epochs")) is not None:
            origins["steps"] = said
        config = replace(config, epochs=None, steps=steps, origins=origins)
    if _warms_up_by_epochs(config):
        usual = steps_of_epochs(WARMUP_EPOCHS, num_samples, global_batch)
        config = replace(config, lr_warmup=min(usual, decide.steps_of(config) // _WARMUP_SHARE))
    return config


def steps_of_epochs(epochs: float, num_samples: int, global_batch: int) -> int:
    """Of written decimals, not of their nearest binary numbers: 0.1 of 1,000 samples are 100."""
    return max(1, math.ceil(Fraction(str(epochs)) * num_samples / global_batch))


def evaluation_of(config: TrainConfig) -> Evaluation | None:
    if config.evaluate_every is None and config.early_stop_patience is None:
        return None
    name, _, wanted = (config.early_stop_metric or "").partition(":")
    return Evaluation(
        every=config.evaluate_every if isinstance(config.evaluate_every, int) else None,
        patience=config.early_stop_patience,
        metric=name or None,
        lower_is_better=wanted != "max",
    )


def next_evaluation(plan: Plan, done: int) -> int:
    """After how many steps of the run, more than are done, the next one is due."""
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

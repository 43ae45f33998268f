"""Resolves a config into a plan. Pure: facts about the machine are passed in.

Either a complete plan, or a ConfigError with every problem at once: those
found while reading (`config_problems`) and those found here.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES
from paceline.plan.check import check
from paceline.plan.plan import Dtype, EventDetail, Launcher, Plan, StrategyOptions, Transport
from paceline.plan.schedule import evaluation_of, needs_sample_count, with_steps


def resolve(
    config: TrainConfig,
    facts: Facts,
    *,
    config_problems: Sequence[Problem] = (),
    count: Callable[[TrainConfig], int] | None = None,
) -> Plan:
    """`count` gives the number of training samples; it is called only if the plan depends on it."""
    problems = [*config_problems, *check(config, facts)]
    if problems:
        raise ConfigError(problems)
    num_samples = None
    epochs = config.epochs
    if needs_sample_count(config):
        num_samples = _counted(config, count)
        config = with_steps(config, num_samples)
        if problems := check(config, facts):  # now that the steps are known
            raise ConfigError(problems)
    optimizer = decide.optimizer_of(config)
    return Plan(
        run=decide.run_name_of(config),
        task=_builtin_in_lower_case(decide.task_of(config)),
        mode=decide.mode_name_of(config),
        num_workers=decide.num_workers_of(config),
        steps=decide.steps_of(config),
        batch_sizes=decide.batch_sizes_of(config),
        epochs=epochs,
        num_samples=num_samples,
        evaluation=evaluation_of(config),
        launcher=Launcher(config.launcher or Launcher.LOCAL),
        ray=decide.ray_of(config),
        transport=decide.transport_of(config, facts),
        seed=config.seed or 0,
        shuffle_block=config.shuffle_block,
        dtype=Dtype(config.dtype or Dtype.FLOAT32),
        device=decide.device_of(config, facts),
        task_options=decide.task_options_of(config),
        optimizer=optimizer,
        # A named optimizer carries its own rate; this one overrides the task's.
        lr=config.lr if optimizer is None else None,
        lr_scale=decide.lr_scale_of(config),
        lr_schedule=decide.lr_schedule_of(config),
        clip_norm=config.clip_norm,
        grad_accumulation=config.grad_accumulation or 1,
        compress=decide.compression_of(config),
        strategy=decide.strategy_options_of(config),
        stragglers=config.straggler or (),
        vmap=decide.vmap_of(config, facts),
        pace_s=decide.pace_of(config),
        byzantine=config.byzantine or (),
        threads_per_worker=config.threads_per_worker or 1,
        timeout_s=60.0 if config.timeout is None else config.timeout,
        elastic=decide.elastic_of(config),
        checkpoint_every=decide.checkpoint_every_of(config),
        keep_checkpoints=config.keep_checkpoints or decide.KEPT_CHECKPOINTS,
        checkpoint_store=config.checkpoint_store,
        events=EventDetail(config.events or EventDetail.FULL),
        exports=config.export or (),
        gradient_norm_every=10 if config.gradient_norm_every is None else config.gradient_norm_every,
        alerts=config.alerts,
    )


def _counted(config: TrainConfig, count: Callable[[TrainConfig], int] | None) -> int:
    task = decide.task_of(config)
    num_samples = None if count is None else count(config)
    if num_samples:
        return num_samples
    message = (
        f"task {task} has no training samples"
        if count is not None
        else f"the samples of {task} were not counted"
    )
    hint = "use --steps, and --evaluate-every in steps, instead of epochs"
    raise ConfigError(
        [Problem(f"the length of an epoch is unknown: {message}", hint, config.origin("epochs"))]
    )


def _builtin_in_lower_case(name: str) -> str:
    return name if ":" in name else name.lower()


# Each mode gets the settings that it reads. `alone` is the baseline of every mode:
# one worker that does the same steps on the same samples, with the compute time of
# all workers. Pure.

BASELINE = "single"
_KNOBS = frozenset(field.name for field in dataclasses.fields(StrategyOptions))


def config_for_mode(config: TrainConfig, mode: str) -> TrainConfig:
    """The config under this mode; settings that the mode does not read are left out."""
    known = decide.mode_of(replace(config, mode=mode))
    unread = frozenset[str]() if known is None or known.options is None else _KNOBS - known.options
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in unread}
    return TrainConfig(**{**values, "mode": mode})


def unused_settings(config: TrainConfig, modes: Sequence[str]) -> list[str]:
    """Settings that were given and that none of these modes reads."""
    if any(":" in mode for mode in modes):
        return []  # a user's mode may read any key
    known = [options for mode in modes if mode in MODES and (options := MODES[mode].options) is not None]
    if len(known) < sum(mode in MODES for mode in modes):
        return []  # one of them reads any
    read = frozenset[str]().union(*known)
    return [name for name in sorted(_KNOBS - read) if getattr(config, name) is not None]


def single_worker_plan(plan: Plan) -> Plan:
    """The same steps on the same samples by one worker that no straggler rule slows down by its number.

    It takes as long as all of them together: a paced step lasts as much longer as it has more samples.
    """
    return replace(
        plan,
        mode=BASELINE,
        num_workers=1,
        batch_sizes=(plan.global_batch,),
        transport=Transport.NONE,
        lr_scale=1.0,
        compress=None,
        strategy=StrategyOptions(),
        stragglers=tuple(rule for rule in plan.stragglers if rule.worker is None),
        byzantine=(),
        elastic=None,
        vmap=False,
        pace_s=plan.pace_s * plan.num_workers,
    )

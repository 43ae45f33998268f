"""Which plan follows from what the user said? Pure: the machine is looked up beforehand, as Facts.

Either a complete plan, or a ConfigError with every problem at once: those
found while reading (`found`) and those found here.
"""

from collections.abc import Callable, Sequence

from paceline.config.facts import Facts
from paceline.config.train_config import TrainConfig
from paceline.errors import ConfigError, Problem
from paceline.plan import decide
from paceline.plan.check import check
from paceline.plan.epochs import evaluation_of, needs_count, with_steps
from paceline.plan.plan import Dtype, EventDetail, Launcher, Plan


def resolve(
    config: TrainConfig,
    facts: Facts,
    *,
    found: Sequence[Problem] = (),
    count: Callable[[TrainConfig], int] | None = None,
) -> Plan:
    """`count` says how many training samples the task has; it is asked only when the plan depends on it."""
    problems = [*found, *check(config, facts)]
    if problems:
        raise ConfigError(problems)
    num_samples, epochs = None, config.epochs
    if needs_count(config):
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
    what = f"task {task} has no training samples" if count is not None else f"nobody counted those of {task}"
    hint = "say --steps, and --evaluate-every in steps, instead of epochs"
    raise ConfigError([Problem(f"epochs are made of samples, but {what}", hint, config.origin("epochs"))])


def _builtin_in_lower_case(name: str) -> str:
    return name if ":" in name else name.lower()

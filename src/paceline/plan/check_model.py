"""Does the task read what was said about its model, and can the batch be cut as was said?"""

from collections.abc import Callable

from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.config.values import shown
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODEL_OPTIONS, TASKS, TASKS_WITH_MODELS


def check_model(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    problems = []
    if are_sound("task"):
        said = [key for key in MODEL_OPTIONS if getattr(config, key) is not None]
        problems += [p for key in said if are_sound(key) and (p := _of_option(config, key)) is not None]
    if config.grad_accumulation not in (None, 1) and are_sound("grad_accumulation", "mode", "batch_size"):
        problems += _of_accumulation(config, config.grad_accumulation or 1)
    if config.sync_batchnorm and are_sound("sync_batchnorm", "mode", "aggregate"):
        problems += _of_shared_statistics(config)
    return problems


def _of_option(config: TrainConfig, key: str) -> Problem | None:
    task, where = decide.task_of(config).lower(), config.origin(key)
    if task in TASKS and task not in TASKS_WITH_MODELS:
        hint = f"leave it out, or train {' or '.join(TASKS_WITH_MODELS)}: --task {TASKS_WITH_MODELS[0]}"
        return Problem(
            f"{key} is {shown(getattr(config, key))}, but task {task} does not read it", hint, where
        )
    option = MODEL_OPTIONS[key]
    if option in (config.task_options or {}):
        what = f"{key} is said twice: by {KEYS[key].flag} and by the task's option {option}"
        return Problem(what, f"keep one of them, such as {KEYS[key].flag}", where)
    if key == "compile" and config.compile and config.device == "cpu":
        return Problem("compile is for GPUs, but device is cpu", "leave compile or device out", where)
    return None


def _of_accumulation(config: TrainConfig, parts: int) -> list[Problem]:
    mode, smallest = decide.mode_name_of(config), min(decide.batch_sizes_of(config))
    reasons = [
        (
            parts > smallest,
            f"grad_accumulation is {parts}, but a worker's batch has {smallest} samples",
            f"set grad_accumulation to {smallest} or less, or batch_size to {parts} or more",
        ),
        (
            mode == "ddp",
            "grad_accumulation cuts batches, but torch's DDP averages after every part of one",
            "use --mode fsdp or --mode ssgd, which average once",
        ),
        (
            decide.elastic_of(config) is not None,
            "grad_accumulation cuts batches, but an elastic run has shards, which are computed one by one",
            "leave it out and give the run more shards of a smaller batch_size",
        ),
        (
            decide.is_virtual(config) and config.vmap is not False,
            "grad_accumulation computes parts one after the other, but vmapped workers compute all at once",
            "leave it out, or add --no-vmap",
        ),
    ]
    where = config.origin("grad_accumulation")
    return [Problem(what, hint, where) for applies, what, hint in reasons if applies]


def _of_shared_statistics(config: TrainConfig) -> list[Problem]:
    """Modes whose workers do not step together do not read the setting; here is what else excludes it."""
    aggregate = decide.aggregate_of(config)
    reasons = [
        (
            decide.elastic_of(config) is not None,
            "sync_batchnorm reduces within forward passes, but an elastic run computes shards one by one",
            "leave sync_batchnorm out, or run without --elastic and --shards",
        ),
        (
            aggregate != "mean",
            f"aggregate {aggregate} excludes bad workers, but sync_batchnorm takes every worker's statistics",
            "leave one of them out",
        ),
        (
            decide.mode_name_of(config) == "ddp" and config.compress is not None,
            "sync_batchnorm reduces in a fixed order, but torch's compression hooks reduce in threads",
            "leave compress out, or use --mode ssgd",
        ),
        (
            decide.is_virtual(config) and config.vmap is not False,
            "sync_batchnorm reduces within the forward pass, but vmapped workers compute in one pass",
            "leave sync_batchnorm out, or add --no-vmap",
        ),
    ]
    where = config.origin("sync_batchnorm")
    return [Problem(what, hint, where) for applies, what, hint in reasons if applies]

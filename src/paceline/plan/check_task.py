"""Does the task read what was said about its model, and can the batch be cut as was said?"""

from collections import Counter
from collections.abc import Callable

from paceline.config.environment import Facts
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.config.values import show_value
from paceline.core.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import DATA_OPTIONS, MODEL_OPTIONS, MODES, TASKS, TASKS_WITH_MODELS, Channel
from paceline.plan.urls import find_url_problem


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
            f"{key} is {show_value(getattr(config, key))}, but task {task} does not read it", hint, where
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


def check_data(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("task"):
        return []
    task, option, where = decide.task_of(config).lower(), decide.data_option_of(config), config.origin("data")
    said = decide.task_options_of(config).get(option)
    if isinstance(said, str) and (wrong := find_url_problem(said)) is not None:
        return [Problem(*wrong, where or config.origin(f"task_options.{option}"))]
    if config.data is None:
        return []
    if task in TASKS and task not in DATA_OPTIONS:
        what = f"data is {show_value(config.data)}, but task {task} makes its own"
        return [Problem(what, f"leave it out, or train {' or '.join(DATA_OPTIONS)}: --task cifar10", where)]
    if option in (config.task_options or {}):
        what = f"the data is said twice: by --data and by the task's option {option}"
        return [Problem(what, "keep one of them, such as --data synthetic", where)]
    return []


_WHY_NOT = {
    Channel.PEERS: "has no step after which its workers hold the same parameters",
    Channel.COLLECTIVE: "has no step after which its workers hold the same parameters",
}


def check_evaluation(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    problems = [*_both(config), *_metric(config)]
    if are_sound("mode", "elastic", "evaluate_every", "early_stop_patience"):
        problems += _evaluating(config)
    if are_sound("mode", "scale_lr"):
        problems += _scaling(config)
    return problems


def _both(config: TrainConfig) -> list[Problem]:
    if config.epochs is None or config.steps is None:
        return []
    what = f"epochs is {config.epochs:g} and steps is {config.steps}, but a run has one length"
    return [Problem(what, "leave one of them out", config.origin("epochs"))]


def _metric(config: TrainConfig) -> list[Problem]:
    said = config.early_stop_metric
    if said is None:
        return []
    where = config.origin("early_stop_metric")
    if config.early_stop_patience is None and not config.is_unreadable("early_stop_patience"):
        what = f"early_stop_metric is {said}, but nothing says how long to wait for a better one"
        return [Problem(what, "add --early-stop-patience 3, for example", where)]
    name, colon, wanted = said.partition(":")
    if name and (not colon or wanted in ("min", "max")):
        return []
    what = f"early_stop_metric is {said!r}, but it must be NAME, NAME:min or NAME:max"
    return [Problem(what, "for example valid_accuracy:max", where)]


def _evaluating(config: TrainConfig) -> list[Problem]:
    if isinstance(config.evaluate_every, str) and config.evaluate_every != "epoch":
        what = f"evaluate_every is {config.evaluate_every!r}, but it must be a number of steps, or epoch"
        return [Problem(what, "set evaluate_every to epoch, for example", config.origin("evaluate_every"))]
    said = next(
        (k for k in ("evaluate_every", "early_stop_patience") if getattr(config, k) is not None), None
    )
    mode = decide.mode_of(config)
    if said is None:
        return []
    what, hint = "", f"leave {said} out: the model is evaluated at the end; or use --mode ssgd"
    if mode is not None and not mode.is_evaluated:
        what = f"mode {mode.name} {_WHY_NOT.get(mode.channel, 'is evaluated at its end only')}"
    elif mode is not None and mode.is_split and config.early_stop_patience is not None:
        said = "early_stop_patience"
        what = f"mode {mode.name} keeps a model in parts, and no second one with the best weights"
        hint = "leave early_stop_patience out, or use --mode ddp"
    elif (config.fragments or 1) > 1 or config.sync_delay or config.mixing:
        what = "streaming diloco always has fragments on their way, so its workers never hold the same"
        hint = f"leave fragments, sync_delay and mixing out, or {said}"
    return [Problem(f"{said} is set, but {what}", hint, config.origin(said))] if what else []


def _scaling(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    if config.scale_lr != "linear" or mode is None or mode.has_one_update:
        return []
    if mode.sums_updates:
        why = f"mode {mode.name} applies each gradient alone, and already divides the rate by the workers"
    else:
        why = f"a worker of mode {mode.name} updates by its own batch, which does not grow with the workers"
    names = ", ".join(name for name, other in MODES.items() if other.has_one_update)
    hint = f"leave scale_lr out, or use a mode with one update of the whole batch: {names}"
    return [Problem(f"scale_lr is linear, but {why}", hint, config.origin("scale_lr"))]


def check_exports(config: TrainConfig, facts: Facts) -> list[Problem]:
    targets, where = config.export or (), config.origin("export")
    problems = []
    for target in targets:
        missing = [name for name in target.packages if name not in facts.packages]
        if missing:
            what = f"export {target.kind} needs {' and '.join(missing)}, which cannot be imported here"
            problems.append(Problem(what, target.install, where))
    for kind, count in Counter(target.kind for target in targets).items():
        if count > 1:
            hint = f"keep one of them, and export the finished run again: paceline export RUN --to {kind}=…"
            problems.append(Problem(f"export {kind} is said {count} times", hint, where))
    if targets and config.events == "off":
        hint = "leave events out, or leave export out"
        problems.append(Problem("export reads the event log, but events is off", hint, where))
    if config.alerts is not None and config.events == "off":
        hint = "leave events out, or leave alerts out"
        what = "alerts are found in the event log, but events is off"
        problems.append(Problem(what, hint, config.origin("alerts")))
    return problems

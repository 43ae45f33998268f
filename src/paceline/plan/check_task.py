"""Checks of the task's settings: model, batch, data, evaluation, exports."""

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
        keys = [key for key in MODEL_OPTIONS if getattr(config, key) is not None]
        problems += [p for key in keys if are_sound(key) and (p := _of_option(config, key)) is not None]
    if config.grad_accumulation not in (None, 1) and are_sound("grad_accumulation", "mode", "batch_size"):
        problems += _of_accumulation(config, config.grad_accumulation or 1)
    if config.sync_batchnorm and are_sound("sync_batchnorm", "mode", "aggregate"):
        problems += _of_shared_statistics(config)
    return problems


def _of_option(config: TrainConfig, key: str) -> Problem | None:
    task = decide.task_of(config).lower()
    where = config.origin(key)
    if task in TASKS and task not in TASKS_WITH_MODELS:
        hint = f"leave it out, or train {' or '.join(TASKS_WITH_MODELS)}: --task {TASKS_WITH_MODELS[0]}"
        return Problem(
            f"{key} is {show_value(getattr(config, key))}, but task {task} does not read it", hint, where
        )
    option = MODEL_OPTIONS[key]
    if option in (config.task_options or {}):
        message = f"{key} is set twice: by {KEYS[key].flag} and by the task option {option}"
        return Problem(message, f"keep one of them, such as {KEYS[key].flag}", where)
    if key == "compile" and config.compile and config.device == "cpu":
        return Problem("compile is for GPUs, but device is cpu", "leave compile or device out", where)
    return None


def _of_accumulation(config: TrainConfig, parts: int) -> list[Problem]:
    mode = decide.mode_name_of(config)
    smallest = min(decide.batch_sizes_of(config))
    reasons = [
        (
            parts > smallest,
            f"grad_accumulation is {parts}, but a worker's batch has {smallest} samples",
            f"set grad_accumulation to {smallest} or less, or batch_size to {parts} or more",
        ),
        (
            mode == "ddp",
            "grad_accumulation splits batches, but torch's DDP averages after every part",
            "use --mode fsdp or --mode ssgd, which average once",
        ),
        (
            decide.elastic_of(config) is not None,
            "grad_accumulation splits batches, but an elastic run computes its shards one by one",
            "leave it out, and use more --shards with a smaller --batch-size",
        ),
        (
            decide.is_virtual(config) and config.vmap is not False,
            "grad_accumulation computes parts one after the other, but vmapped workers compute all at once",
            "leave it out, or add --no-vmap",
        ),
    ]
    where = config.origin("grad_accumulation")
    return [Problem(message, hint, where) for applies, message, hint in reasons if applies]


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
            f"aggregate {aggregate} excludes bad workers, but sync_batchnorm uses the statistics of every "
            "worker",
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
    return [Problem(message, hint, where) for applies, message, hint in reasons if applies]


def check_data(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("task"):
        return []
    task = decide.task_of(config).lower()
    option = decide.data_option_of(config)
    where = config.origin("data")
    location = decide.task_options_of(config).get(option)
    if isinstance(location, str) and (wrong := find_url_problem(location)) is not None:
        return [Problem(*wrong, where or config.origin(f"task_options.{option}"))]
    if config.data is None:
        return []
    if task in TASKS and task not in DATA_OPTIONS:
        message = f"data is {show_value(config.data)}, but task {task} generates its own data"
        return [
            Problem(message, f"leave it out, or train {' or '.join(DATA_OPTIONS)}: --task cifar10", where)
        ]
    if option in (config.task_options or {}):
        message = f"the data is set twice: by --data and by the task option {option}"
        return [Problem(message, "keep one of them, such as --data synthetic", where)]
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
    message = f"epochs is {config.epochs:g} and steps is {config.steps}, but a run has one length"
    return [Problem(message, "leave one of them out", config.origin("epochs"))]


def _metric(config: TrainConfig) -> list[Problem]:
    metric = config.early_stop_metric
    if metric is None:
        return []
    where = config.origin("early_stop_metric")
    if config.early_stop_patience is None and not config.is_unreadable("early_stop_patience"):
        message = f"early_stop_metric is {metric}, but early_stop_patience is not set"
        return [Problem(message, "add --early-stop-patience 3, for example", where)]
    name, colon, direction = metric.partition(":")
    if name and (not colon or direction in ("min", "max")):
        return []
    message = f"early_stop_metric is {metric!r}, but it must be NAME, NAME:min or NAME:max"
    return [Problem(message, "for example valid_accuracy:max", where)]


def _evaluating(config: TrainConfig) -> list[Problem]:
    if isinstance(config.evaluate_every, str) and config.evaluate_every != "epoch":
        message = f"evaluate_every is {config.evaluate_every!r}, but it must be a number of steps, or epoch"
        return [Problem(message, "set evaluate_every to epoch, for example", config.origin("evaluate_every"))]
    key = next((k for k in ("evaluate_every", "early_stop_patience") if getattr(config, k) is not None), None)
    mode = decide.mode_of(config)
    if key is None:
        return []
    message = ""
    hint = f"leave {key} out: the model is evaluated at the end; or use --mode ssgd"
    if mode is not None and not mode.is_evaluated:
        message = f"mode {mode.name} {_WHY_NOT.get(mode.channel, 'is evaluated at its end only')}"
    elif mode is not None and mode.is_split and config.early_stop_patience is not None:
        key = "early_stop_patience"
        message = f"mode {mode.name} shards the model, and cannot keep a second copy with the best weights"
        hint = "leave early_stop_patience out, or use --mode ddp"
    elif (config.fragments or 1) > 1 or config.sync_delay or config.mixing:
        message = (
            "streaming diloco always has fragments in flight, so its workers never hold the same parameters"
        )
        hint = f"leave fragments, sync_delay and mixing out, or {key}"
    return [Problem(f"{key} is set, but {message}", hint, config.origin(key))] if message else []


def _scaling(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    if config.scale_lr != "linear" or mode is None or mode.has_one_update:
        return []
    if mode.sums_updates:
        why = (
            f"mode {mode.name} applies each gradient separately, and already divides the learning rate by "
            "the number of workers"
        )
    else:
        why = (
            f"a worker of mode {mode.name} updates with its own batch, which does not grow with the "
            "number of workers"
        )
    names = ", ".join(name for name, other in MODES.items() if other.has_one_update)
    hint = f"leave scale_lr out, or use a mode with one update of the whole batch: {names}"
    return [Problem(f"scale_lr is linear, but {why}", hint, config.origin("scale_lr"))]


def check_metrics(config: TrainConfig) -> list[Problem]:
    if config.metrics_port is None and config.metrics_token_file is not None:
        message = f"metrics_token_file is {config.metrics_token_file}, but no metrics are served"
        return [Problem(message, "add --metrics-port 9464", config.origin("metrics_token_file"))]
    if config.metrics_port is not None and config.events == "off":
        message = "metrics are derived from the event log, but events is off"
        return [
            Problem(message, "leave events out, or leave metrics_port out", config.origin("metrics_port"))
        ]
    return []


def check_exports(config: TrainConfig, facts: Facts) -> list[Problem]:
    targets = config.export or ()
    where = config.origin("export")
    problems = []
    for target in targets:
        missing = [name for name in target.packages if name not in facts.packages]
        if missing:
            message = f"export {target.kind} needs {' and '.join(missing)}, which cannot be imported here"
            problems.append(Problem(message, target.install, where))
    for kind, count in Counter(target.kind for target in targets).items():
        if count > 1:
            hint = f"keep one of them, and export the finished run again: paceline export RUN --to {kind}=…"
            problems.append(Problem(f"export {kind} is given {count} times", hint, where))
    if targets and config.events == "off":
        hint = "leave events out, or leave export out"
        problems.append(Problem("export reads the event log, but events is off", hint, where))
    if config.alerts is not None and config.events == "off":
        hint = "leave events out, or leave alerts out"
        message = "alerts are derived from the event log, but events is off"
        problems.append(Problem(message, hint, config.origin("alerts")))
    return problems

"""Can this run be evaluated while it trains, and may its rate be scaled? Every reason why not, at once."""

from collections.abc import Callable

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, Channel

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
    elastic = decide.elastic_of(config)
    if elastic is not None and elastic.servers > 1:
        what = "the parameters are on servers in several parts, and no version of the whole is ever named"
        hint = f"leave {said} out, or --servers"
    elif mode is not None and not mode.is_evaluated:
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

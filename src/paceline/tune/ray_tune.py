"""Ray Tune adapter: places trials and stops them by ASHA. Importing this module imports Ray.

The trials are decided before, and their outcomes are recorded by the `Listener`. Tune's own state goes to a
folder that is deleted and never read, since reading it means unpickling.
"""

import json
import logging
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from paceline.core import environ
from paceline.launchers.ray.client import describe_actor_death
from paceline.tune.trial import TrialMaker

_RETRIES = 1  # of a trial whose process or node died
_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports are in the run folder already
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # progress reports carry no metric
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are handled by the command
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output draws boxes on stdout, even with verbose=0
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000",  # trials that do not fit were refused before
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


class Listener(Protocol):
    def began(self, number: int) -> None: ...

    def on_report(self, number: int, report: Mapping[str, object]) -> None: ...

    def ended(self, number: int) -> None:
        """It finished, or it was stopped because others are better."""
        ...

    def restarted(self, number: int, why: str) -> None:
        """The trial was lost, and is started again."""
        ...

    def lost(self, number: int, why: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTrial:
    """A trial to run, with the resources it needs."""

    number: int
    text: str  # JSON of its TrialOrder
    cpus: int
    gpus: int

    @classmethod
    def read(cls, text: str) -> "PlacedTrial":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    grace: int
    reduction: float
    longest: int
    # (rung, score) of finished trials; without them the first trials of a resumed search have no rivals.
    before: tuple[tuple[tuple[int, float], ...], ...] = ()


class TrialActor(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """A process that runs trials, one after another; workers stay warm between them."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:  # Any: Ray's own
        trial = PlacedTrial.read(config["trial"])
        resources = {"CPU": trial.cpus, **({"GPU": trial.gpus} if trial.gpus else {})}
        return tune.PlacementGroupFactory([resources])

    def setup(self, config: dict[str, Any]) -> None:  # Any: Ray passes what `search` put in
        self._maker = TrialMaker()
        self._maker.begin(PlacedTrial.read(config["trial"]).text)

    def step(self) -> dict[str, object]:
        return dict(self._maker.next())

    def reset_config(self, new_config: dict[str, Any]) -> bool:  # Any: as above
        self._maker.end()
        self._maker.begin(PlacedTrial.read(new_config["trial"]).text)
        return True

    def cleanup(self) -> None:
        self._maker.close()


def search(
    trials: Sequence[PlacedTrial],
    *,
    parallel: int,
    halving: Halving | None,
    listener: Listener,
    wants_stop: Callable[[], bool],
) -> None:
    """Run all trials, or stop the running ones once `wants_stop`; Ray is connected already.

    An exception of the listener ends the search and is raised here.
    """
    environ.set_default_variables(**_SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    callback = Callback(listener)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-tune-", ignore_cleanup_errors=True) as folder:
            tune.run(
                TrialActor,
                name="search",
                config={"trial": tune.grid_search([json.dumps(asdict(t)) for t in trials])},
                max_concurrent_trials=parallel,
                scheduler=FIFOScheduler() if halving is None else _asha(halving),
                stop=_Stopper(lambda: callback.error is not None or wants_stop()),
                callbacks=[callback],
                storage_path=folder,
                max_failures=_RETRIES,
                reuse_actors=True,
                raise_on_failed_trial=False,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
                verbose=0,
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    if callback.error is not None:
        raise callback.error


def _name(trial: Any) -> str:  # Any: Ray's own
    return f"trial-{_number(trial):03d}"


def _asha(halving: Halving) -> Any:  # Any: Ray's own
    """The scheduler, with the results of earlier sessions."""
    scheduler = ASHAScheduler(
        time_attr="rung",
        metric="score",
        mode="min",
        grace_period=halving.grace,
        reduction_factor=halving.reduction,
        max_t=max(halving.longest, halving.grace),
        stop_last_trials=False,
    )
    for number, rungs in enumerate(halving.before):
        rival = SimpleNamespace(trial_id=f"before-{number}")
        scheduler.on_trial_add(None, rival)
        for rung, score in rungs:
            scheduler.on_trial_result(None, rival, {"rung": rung, "score": score})
    return scheduler


class _Stopper(tune.Stopper):  # type: ignore[misc]  # Ray has no types
    def __init__(self, wants_stop: Callable[[], bool]) -> None:
        self._wants_stop = wants_stop

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._wants_stop()


class Callback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Passes Tune's callbacks on, until the listener fails. Any: Tune's own objects.

    Exceptions are kept, since Tune would take them for the death of a trial.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.error: Exception | None = None  # the first one of the listener

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._notify(lambda: self._listener.began(_number(trial)))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if result.get("number") == _number(trial):  # a reused process may still report the trial before
            self._notify(lambda: self._listener.on_report(_number(trial), result))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._notify(lambda: self._listener.ended(_number(trial)))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._notify(lambda: self._listener.restarted(_number(trial), _why(trial)))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._notify(lambda: self._listener.lost(_number(trial), _why(trial)))

    def _notify(self, call: Callable[[], None]) -> None:
        if self.error is not None:
            return
        try:
            call()
        except Exception as error:  # `search` raises it
            self.error = error


def _number(trial: Any) -> int:  # Any: Ray's own
    return PlacedTrial.read(trial.config["trial"]).number


def _why(trial: Any) -> str:  # Any: Ray's own
    error = trial.get_error() if hasattr(trial, "get_error") else None
    return "its process died" if error is None else describe_actor_death(str(error))

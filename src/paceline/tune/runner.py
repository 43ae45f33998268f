"""Search runner: runs every unfinished trial and records each one as it goes.

Ray Tune places trials and stops bad ones early; decisions, outcomes and the best trial so far are in the
folder at every moment. See docs/guides/tune.md.
"""

import importlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from paceline.config.train_config import TrainConfig
from paceline.core import environ
from paceline.core.errors import MissingPackageError, NotReadyError, Problem, SearchError
from paceline.launchers.ray.client import INSTALL, RayClient, check_version, connect
from paceline.launchers.ray.resources import Bundle, capacity_table, fits
from paceline.plan.check_workers import check_ray
from paceline.plan.codec import dumps
from paceline.plan.plan import Launcher, Placement
from paceline.tune.experiment import (
    Record,
    Status,
    Trial,
    TrialEvaluation,
    TuneFolder,
    Tuning,
    unfinished_trials,
)
from paceline.tune.trial import WORST, TrialOrder

if TYPE_CHECKING:
    from paceline.tune.ray_tune import Halving, PlacedTrial


class TuneWatcher(Protocol):
    def began(self, trial: Trial, over: int) -> None:
        """`over` trials are over."""
        ...

    def evaluated(self, trial: Trial, record: Record) -> None: ...

    def progress(self, trial: Trial, step: int) -> None:
        """Called about twice a second."""
        ...

    def ended(self, trial: Trial, record: Record) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tuning: Tuning
    records: Mapping[int, Record]
    best: Trial | None
    stopped_by: str = ""  # SIGINT or SIGTERM


def tune(
    tuning: Tuning, folder: TuneFolder, watcher: TuneWatcher, *, address: str, parallel: int, is_new: bool
) -> Outcome:
    """Run the unfinished trials. `check_address` first; Ray is reached before anything is written."""
    records = {} if is_new else folder.records(tuning)
    todo = unfinished_trials(tuning, records)
    if not todo:
        return Outcome(tuning=tuning, records=records, best=folder.conclude(tuning, records))
    check_address(address)
    _check_ready()
    with closing(_connect(todo, address, parallel)), folder.locked():
        # Read again under the lock: another command may have written in the meantime.
        if is_new:
            folder.begin(tuning)
        else:
            records = folder.records(tuning)
        recorder = SearchRecorder(tuning, folder, records, watcher)
        if todo := unfinished_trials(tuning, records):
            with _stop_on_signals(recorder, watcher):
                _search(todo, recorder, parallel)
        return recorder.conclude()


def check_address(address: str) -> None:
    """Raises SearchError for an address that a search does not support."""
    config = TrainConfig(launcher=Launcher.RAY, address=address, origins={"address": "--address"})
    if problems := check_ray(config, lambda *_: False):
        raise SearchError(problems)
    if address.startswith("ray://"):
        message = (
            f"address is {address}, but a search writes its folder here, and Ray's client would run "
            "Tune on the cluster"
        )
        raise SearchError(
            [Problem(message, "run it on a node of the cluster, with --address HOST:PORT", "--address")]
        )


def _check_ready() -> None:
    """Raises NotReadyError without Ray Tune."""
    check_version()
    environ.prepare_ray()
    try:
        importlib.import_module("paceline.tune.ray_tune")
    except ImportError as error:
        why = str(error).strip().splitlines()[0]
        raise MissingPackageError(f"Ray Tune is not installed: {why}", INSTALL) from error


def _connect(todo: Sequence[Trial], address: str, parallel: int) -> RayClient:
    widest = max(todo, key=lambda trial: (trial.gpus, trial.cpus))
    # A local Ray is started with as many CPUs as the trials need: they share the processors, as without Ray.
    cpus = max(len(os.sched_getaffinity(0)), parallel * max(trial.cpus for trial in todo))
    ray = connect(address, num_cpus=cpus)
    nodes = ray.nodes()
    bundles = [Bundle(who=f"trial {widest.number}", cpus=widest.cpus, gpus=widest.gpus)]
    if fits(bundles, nodes, Placement.STRICT_PACK):
        return ray
    ray.close()
    raise NotReadyError(
        f"the Ray at {address} is too small: the workers of a trial are on one node\n"
        + capacity_table(bundles, nodes, Placement.STRICT_PACK),
        "use fewer workers or --threads-per-worker 1, or add a larger node",
    )


def _search(todo: Sequence[Trial], recorder: "SearchRecorder", parallel: int) -> None:
    from paceline.tune.ray_tune import search  # imports Ray

    search(
        [recorder.to_placed(trial) for trial in todo],
        parallel=parallel,
        halving=recorder.halving(),
        listener=recorder,
        wants_stop=lambda: recorder.wants_stop,
    )


class SearchRecorder:
    """Records what Ray Tune reports, and decides when to stop."""

    def __init__(
        self, tuning: Tuning, folder: TuneFolder, records: dict[int, Record], watcher: TuneWatcher
    ) -> None:
        self._tuning = tuning
        self._folder = folder
        self._records = records
        self._watcher = watcher
        self._trials = {trial.number: trial for trial in tuning.trials}
        self._available_metrics = ""  # set when the metric is missing
        self.stopped_by = ""

    @property
    def wants_stop(self) -> bool:
        return bool(self.stopped_by or self._available_metrics)

    def to_placed(self, trial: Trial) -> "PlacedTrial":
        from paceline.tune.ray_tune import PlacedTrial

        text = order_of(trial, self._tuning, self._folder)
        return PlacedTrial(number=trial.number, text=text, cpus=trial.cpus, gpus=trial.gpus)

    def halving(self) -> "Halving | None":
        from paceline.tune.ray_tune import Halving

        asha = self._tuning.asha
        if asha is None:
            return None
        before = rung_history(self._tuning, self._records)
        return Halving(grace=asha.grace, reduction=asha.reduction, longest=asha.longest, before=before)

    # Callbacks of Ray Tune.

    def began(self, number: int) -> None:
        self._write(replace(self._record(number), status=Status.RUNNING, why=""))
        over = sum(record.status.is_over for record in self._records.values())
        self._watcher.began(self._trials[number], over)

    def on_report(self, number: int, report: Mapping[str, object]) -> None:
        before = self._records[number]
        trial = self._trials[number]
        record = apply_report(before, report)
        if report.get("state") == "unmeasured":
            self._available_metrics = str(report["known"]) or "none"
        if record != before and (record.status is not Status.RUNNING or "value" in report):
            self._write(record)
        else:
            self._records[number] = record
        if record.status is not Status.RUNNING:
            return  # `ended` follows
        if "value" in report:
            self._watcher.evaluated(trial, record)
        else:
            self._watcher.progress(trial, record.step)

    def ended(self, number: int) -> None:
        record = self._records[number]
        if record.status is Status.RUNNING:  # no final report: stopped by ASHA
            record = replace(record, status=Status.STOPPED)
            self._write(record)
        self._folder.conclude(self._tuning, self._records)
        self._watcher.ended(self._trials[number], record)

    def restarted(self, number: int, why: str) -> None:
        self._watcher.note(f"trial {number} was lost: {why}; it is restarted")

    def lost(self, number: int, why: str) -> None:
        # `began` was not called if its process never started.
        self._write(replace(self._record(number), status=Status.LOST, why=why))
        self._watcher.ended(self._trials[number], self._records[number])

    def conclude(self) -> Outcome:
        for record in list(self._records.values()):
            if record.status is Status.RUNNING:
                self._write(replace(record, status=Status.INTERRUPTED))
        if self._available_metrics:
            names = " or ".join(self._tuning.metric)
            message = f"the metric is {names}, but a trial has only {self._available_metrics}"
            raise SearchError([Problem(message, "name another with --metric, in a new search", "--metric")])
        best = self._folder.conclude(self._tuning, self._records)
        return Outcome(tuning=self._tuning, records=self._records, best=best, stopped_by=self.stopped_by)

    def _record(self, number: int) -> Record:
        return self._records.get(number, Record(number=number, status=Status.RUNNING))

    def _write(self, record: Record) -> None:
        self._records[record.number] = record
        self._folder.write(record)


def order_of(trial: Trial, tuning: Tuning, folder: TuneFolder) -> str:
    """JSON of the TrialOrder, for the process that runs the trial."""
    order = TrialOrder(
        number=trial.number,
        plan=dumps(trial.plan),
        run_dir=str(folder.trial(trial.number).resolve()),
        folder=str(Path.cwd()),
        metric=tuning.metric,
        lower_is_better=tuning.lower_is_better,
    )
    return json.dumps(asdict(order))


def apply_report(before: Record, report: Mapping[str, object]) -> Record:
    """The record after a report. A resumed trial repeats steps: their old evaluations are dropped."""
    step = _int(report["step"])
    earlier = tuple(evaluation for evaluation in before.evaluations if evaluation.step < step)
    record = replace(before, step=step, evaluations=earlier if "value" in report else before.evaluations)
    if "value" in report:
        value = float(str(report["value"])) if report["has_value"] else None
        record = replace(record, metric=str(report["metric"]), value=value)
        evaluation = TrialEvaluation(step=step, rung=_int(report["rung"]), value=value)
        record = replace(record, evaluations=(*record.evaluations, evaluation))
    match report.get("state"):
        case "finished":
            record = replace(record, status=Status.FINISHED)
        case "failed" | "unmeasured":
            record = replace(
                record, status=Status.FAILED, why=str(report.get("why", "its metric is missing"))
            )
        case "interrupted":
            record = replace(record, status=Status.INTERRUPTED)
    seconds = report.get("seconds")
    return record if seconds is None else replace(record, seconds=float(str(seconds)))


def rung_history(tuning: Tuning, records: Mapping[int, Record]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """(rung, score) of each finished trial; lower is better, and NaN is worst.

    A running trial would compete with its own past; a trial evaluated only at its end reaches no rung.
    """
    sign = 1.0 if tuning.lower_is_better else -1.0
    evaluated = {trial.number for trial in tuning.trials if trial.plan.evaluation is not None}
    return tuple(
        tuple(
            (evaluation.rung, WORST if evaluation.value is None else sign * evaluation.value)
            for evaluation in record.evaluations
        )
        for number, record in records.items()
        if number in evaluated and record.status in (Status.FINISHED, Status.STOPPED) and record.evaluations
    )


def _int(value: object) -> int:
    return int(str(value))


@contextmanager
def _stop_on_signals(recorder: SearchRecorder, watcher: TuneWatcher) -> Iterator[None]:
    """The first Ctrl-C (SIGTERM, SIGHUP) stops the trials in order, a second Ctrl-C ends everything now."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            environ.leave_dead_terminal()
        elif recorder.stopped_by not in ("", "SIGHUP"):
            raise KeyboardInterrupt
        recorder.stopped_by = signal.Signals(number).name
        watcher.note("stopping: running trials write a checkpoint; press Ctrl-C again to end now")

    previous = {s: signal.signal(s, on_signal) for s in environ.stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

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

MAKER = "paceline.tune.trial:TrialMaker"


class TuneWatcher(Protocol):
    def began(self, trial: Trial, over: int) -> None:
        """`over` trials are over."""
        ...

    def evaluated(self, trial: Trial, record: Record) -> None: ...

    def progress(self, trial: Trial, step: int) -> None:
        """A sign of life, about twice a second."""
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
    """Make what is not over. What is wrong with Ray is said before anything is written."""
    records = {} if is_new else folder.records(tuning)
    todo = unfinished_trials(tuning, records)
    if not todo:
        return Outcome(tuning=tuning, records=records, best=folder.conclude(tuning, records))
    _check_ready(address)
    with closing(_connected(todo, address, parallel)), folder.locked():
        # Only now does nobody else write there: what was read before may be old.
        if is_new:
            folder.begin(tuning)
        else:
            records = folder.records(tuning)
        book = SearchRecorder(tuning, folder, records, watcher)
        if todo := unfinished_trials(tuning, records):
            with _ctrl_c_stops(book, watcher):
                _search(todo, book, parallel)
        return book.conclude()


def _check_ready(address: str) -> None:
    """NotReadyError unless Ray is here, with its Tune; ConfigError for an address that is none for us."""
    said = TrainConfig(launcher=Launcher.RAY, address=address, origins={"address": "--address"})
    if problems := check_ray(said, lambda *_: False):
        raise SearchError(problems)
    if address.startswith("ray://"):
        what = (
            f"address is {address}, but a search keeps its folder here, and Ray's client runs Tune elsewhere"
        )
        raise SearchError([Problem(what, "use HOST:PORT, from a machine of the cluster", "--address")])
    check_version()
    environ.prepare_ray()
    try:
        importlib.import_module("paceline.tune.ray_tune")
    except ImportError as error:
        why = str(error).strip().splitlines()[0]
        raise MissingPackageError(f"Ray is installed without its Tune: {why}", INSTALL) from error


def _connected(todo: Sequence[Trial], address: str, parallel: int) -> RayClient:
    widest = max(todo, key=lambda trial: (trial.gpus, trial.cpus))
    # A Ray of our own pretends to have what is needed: trials share processors, as without it.
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


def _search(todo: Sequence[Trial], book: "SearchRecorder", parallel: int) -> None:
    from paceline.tune.ray_tune import search  # brings Ray

    search(
        [book.placed(trial) for trial in todo],
        by=MAKER,
        parallel=parallel,
        halving=book.halving(),
        listener=book,
        wants_stop=lambda: book.wants_stop,
    )


class SearchRecorder:
    """Writes down what Ray Tune tells, and says when to stop."""

    def __init__(
        self, tuning: Tuning, folder: TuneFolder, records: dict[int, Record], watcher: TuneWatcher
    ) -> None:
        self._tuning = tuning
        self._folder = folder
        self._records = records
        self._watcher = watcher
        self._trials = {trial.number: trial for trial in tuning.trials}
        self._unmeasured = ""  # the metric is not there: what is
        self.stopped_by = ""

    @property
    def wants_stop(self) -> bool:
        return bool(self.stopped_by or self._unmeasured)

    def placed(self, trial: Trial) -> "PlacedTrial":
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

    # What Ray Tune tells.

    def began(self, number: int) -> None:
        self._write(replace(self._known(number), status=Status.RUNNING, why=""))
        over = sum(record.status.is_over for record in self._records.values())
        self._watcher.began(self._trials[number], over)

    def heard(self, number: int, report: Mapping[str, object]) -> None:
        before = self._records[number]
        trial = self._trials[number]
        record = apply_report(before, report)
        if report.get("state") == "unmeasured":
            self._unmeasured = str(report["known"]) or "none"
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
        if record.status is Status.RUNNING:  # it did not say so itself: others are better
            record = replace(record, status=Status.STOPPED)
            self._write(record)
        self._folder.conclude(self._tuning, self._records)
        self._watcher.ended(self._trials[number], record)

    def again(self, number: int, why: str) -> None:
        self._watcher.note(f"trial {number} was lost: {why}; it is begun once more")

    def lost(self, number: int, why: str) -> None:
        # Of one whose process never started, `began` was not told.
        self._write(replace(self._known(number), status=Status.LOST, why=why))
        self._watcher.ended(self._trials[number], self._records[number])

    def conclude(self) -> Outcome:
        for record in list(self._records.values()):
            if record.status is Status.RUNNING:
                self._write(replace(record, status=Status.INTERRUPTED))
        if self._unmeasured:
            named = " or ".join(self._tuning.metric)
            what = f"the metric is {named}, but a trial has only {self._unmeasured}"
            raise SearchError([Problem(what, "name another with --metric, in a new search", "--metric")])
        best = self._folder.conclude(self._tuning, self._records)
        return Outcome(tuning=self._tuning, records=self._records, best=best, stopped_by=self.stopped_by)

    def _known(self, number: int) -> Record:
        return self._records.get(number, Record(number=number, status=Status.RUNNING))

    def _write(self, record: Record) -> None:
        self._records[record.number] = record
        self._folder.write(record)


def order_of(trial: Trial, tuning: Tuning, folder: TuneFolder) -> str:
    """For the process that makes it."""
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
    """The record after a report. One that goes back takes back what came later: it is done again."""
    step = _whole(report["step"])
    seen = tuple(one for one in before.evaluations if one.step < step)
    record = replace(before, step=step, evaluations=seen if "value" in report else before.evaluations)
    if "value" in report:
        value = float(str(report["value"])) if report["has_value"] else None
        record = replace(record, metric=str(report["metric"]), value=value)
        one = TrialEvaluation(step=step, rung=_whole(report["rung"]), value=value)
        record = replace(record, evaluations=(*record.evaluations, one))
    match report.get("state"):
        case "finished":
            record = replace(record, status=Status.FINISHED)
        case "failed" | "unmeasured":
            record = replace(
                record, status=Status.FAILED, why=str(report.get("why", "its metric is not there"))
            )
        case "interrupted":
            record = replace(record, status=Status.INTERRUPTED)
    seconds = report.get("seconds")
    return record if seconds is None else replace(record, seconds=float(str(seconds)))


def rung_history(tuning: Tuning, records: Mapping[int, Record]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """What trials that are over have shown at each rung; less is better, and no number is worst.

    One that goes on would compete with its own past; one that is evaluated at its end only never met a rung.
    """
    sign = 1.0 if tuning.lower_is_better else -1.0
    evaluated = {trial.number for trial in tuning.trials if trial.plan.evaluation is not None}
    return tuple(
        tuple((one.rung, WORST if one.value is None else sign * one.value) for one in record.evaluations)
        for number, record in records.items()
        if number in evaluated and record.status in (Status.FINISHED, Status.STOPPED) and record.evaluations
    )


def _whole(value: object) -> int:
    return int(str(value))


@contextmanager
def _ctrl_c_stops(book: SearchRecorder, watcher: TuneWatcher) -> Iterator[None]:
    """The first Ctrl-C (SIGTERM, SIGHUP) stops the trials in order, a second Ctrl-C ends everything now."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread, and so to whoever runs it
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            environ.leave_dead_terminal()
        elif book.stopped_by not in ("", "SIGHUP"):
            raise KeyboardInterrupt
        book.stopped_by = signal.Signals(number).name
        watcher.note("stopping: trials that run leave a checkpoint; press Ctrl-C again to end now")

    previous = {s: signal.signal(s, on_signal) for s in environ.stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Data model of a search: trials with their plans, records and the folder that holds them.

`tune.json` is a `Tuning`; it is all that resuming a search needs.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from paceline import __version__
from paceline.core.disk import exclusive, make_folder, write_durably
from paceline.core.errors import DamagedRecordError, Problem, SearchError, UnreadableFileError
from paceline.plan.catalog import MODES, Channel, server_names
from paceline.plan.codec import decode, to_json
from paceline.plan.plan import Launcher, Plan
from paceline.tune.search_space import Search

SCHEMA = "paceline.tune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asha:
    """Asynchronous successive halving (Li 2018, arXiv 1810.05934): 1 of `reduction` continues per rung."""

    grace: int = 1  # evaluations before a trial may be stopped
    reduction: float = 3.0
    longest: int = 1  # evaluations of the longest trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    number: int  # from 1
    settings: dict[str, str]  # drawn values, by name of the search
    file: str  # the config file that would make the same run
    plan: Plan
    cpus: int
    gpus: int

    @property
    def description(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All decisions of a search: tune.json."""

    searches: tuple[str, ...]  # names, in the given order
    metric: tuple[str, ...]  # the first of these that a trial has
    lower_is_better: bool
    asha: Asha | None  # None: every trial runs to its end
    trials: tuple[Trial, ...]
    paceline: str = __version__
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    searches: tuple[Search, ...]
    trials: int | None = None  # None: ten, or as many as there are
    metric: str | None = None  # NAME, NAME:min or NAME:max
    wants_asha: bool | None = None  # None: where it makes sense
    grace: int = 1
    reduction: float = 3.0


def rung_of(plan: Plan, step: int) -> int:
    """Number of evaluations due by this step; the same for a run that was resumed."""
    if plan.evaluation is None:
        return 1
    if plan.evaluation.every is not None:
        return max(1, step // plan.evaluation.every)
    assert plan.num_samples is not None, "epochs were counted"
    return max(1, step * plan.global_batch // plan.num_samples)


def cpus_of(plan: Plan) -> int:
    """One CPU per thread of every participant."""
    if plan.launcher is Launcher.VIRTUAL:
        return plan.threads_per_worker
    has_server = plan.mode in MODES and MODES[plan.mode].channel is Channel.STORE
    servers = len(server_names(plan)) if plan.elastic is not None else int(has_server)
    return (plan.processes + servers) * plan.threads_per_worker


# `tune.json` holds the decisions and never changes; `trials/003.json` is the state of trial 3, and the folder
# `trials/003` is its run, written by the process that runs it. Resuming a search reads these files and
# nothing else: no state of Ray is kept or read.

RECORD_SCHEMA = "paceline.trial/1"


class Status(StrEnum):
    RUNNING = "running"  # also after the search was killed
    FINISHED = "finished"  # all steps are done, or it stopped early by itself
    STOPPED = "stopped"  # early, by ASHA
    FAILED = "failed"  # its own error, which a retry would repeat
    INTERRUPTED = "interrupted"  # with the search; resumed with it
    LOST = "lost"  # its process or node died, also on the retry

    @property
    def is_over(self) -> bool:
        return self in (Status.FINISHED, Status.STOPPED, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvaluation:
    """One evaluation during the run."""

    step: int
    rung: int  # the number of the evaluation, from 1
    value: float | None  # None: no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    number: int
    status: Status
    metric: str = ""  # the name; empty: nothing was evaluated yet
    value: float | None = None  # of the newest evaluation, or of the run's end
    step: int = 0
    seconds: float = 0.0
    evaluations: tuple[TrialEvaluation, ...] = ()
    why: str = ""  # it failed or was lost
    schema: str = RECORD_SCHEMA


class TuneFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def trial(self, number: int) -> Path:
        return self.path / "trials" / f"{number:03d}"

    def begin(self, tuning: Tuning) -> None:
        """Raises SearchError if the folder holds a search."""
        self._check_holds_none()
        make_folder(self.path)
        write_durably(self.path / "tune.json", [(json.dumps(to_json(tuning), indent=1) + "\n").encode()])

    def check_is_free(self) -> None:
        """Raises SearchError if the folder is not empty."""
        self._check_holds_none()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise SearchError([Problem(f"{self.path} is not empty", "name a new folder with --out", "--out")])

    def tuning(self) -> Tuning:
        path = self.path / "tune.json"
        try:
            tuning = decode(Tuning, path.read_text(encoding="utf-8"), schema=SCHEMA)
        except OSError as error:
            message = f"{self.path} holds no search to resume: {error.strerror}"
            raise UnreadableFileError(message, "name the folder of the search (its --out)") from error
        except ValueError as error:
            raise DamagedRecordError(f"{path} cannot be read: {error}", "start a new search") from error
        assert isinstance(tuning, Tuning), "decode(Tuning, …) builds one"
        return tuning

    def records(self, tuning: Tuning) -> dict[int, Record]:
        """Records of the started trials, by number."""
        by_number = {trial.number: self._record(trial.number) for trial in tuning.trials}
        return {number: record for number, record in by_number.items() if record is not None}

    def write(self, record: Record) -> None:
        make_folder(self.path / "trials")
        write_durably(self._file(record.number), [(json.dumps(to_json(record), indent=1) + "\n").encode()])

    def conclude(self, tuning: Tuning, records: Mapping[int, Record]) -> Trial | None:
        """Write trials.csv and best.yaml from the records so far; returns the best trial."""
        write_durably(self.path / "trials.csv", [_csv(tuning, records).encode()])
        best = best_of(tuning, records)
        if best is not None:
            text = f"# Trial {best.number}: {best.description}\n{best.file}"
            write_durably(self.path / "best.yaml", [text.encode()])
        return best

    @contextmanager
    def locked(self) -> Iterator[None]:
        """FolderInUseError while another command works on this search."""
        make_folder(self.path)
        with exclusive(self.path):
            yield

    def _check_holds_none(self) -> None:
        if (self.path / "tune.json").exists():
            hint = f"resume it: paceline tune --resume {self.path}; or name another folder with --out"
            raise SearchError([Problem(f"{self.path} holds a search already", hint, "--out")])

    def _file(self, number: int) -> Path:
        return self.path / "trials" / f"{number:03d}.json"

    def _record(self, number: int) -> Record | None:
        path = self._file(number)
        try:
            record = decode(Record, path.read_text(encoding="utf-8"), schema=RECORD_SCHEMA)
        except FileNotFoundError:
            return None
        except ValueError as error:
            hint = f"remove {path}: the trial then runs again"
            raise DamagedRecordError(f"{path} cannot be read: {error}", hint) from error
        assert isinstance(record, Record), "decode(Record, …) builds one"
        return record


def unfinished_trials(tuning: Tuning, records: Mapping[int, Record]) -> list[Trial]:
    """Trials to start, resume or repeat."""
    return [t for t in tuning.trials if t.number not in records or not records[t.number].status.is_over]


def best_of(tuning: Tuning, records: Mapping[int, Record]) -> Trial | None:
    """The best finished trial; a stopped one is not comparable."""
    return _first(tuning, records, Status.FINISHED)


def stopped_ahead(tuning: Tuning, records: Mapping[int, Record], best: Trial) -> Trial | None:
    """A stopped trial whose last value was better than the final value of `best`, if there is one."""
    ahead = _first(tuning, records, Status.STOPPED)
    if ahead is None:
        return None
    stopped_value = records[ahead.number].value
    best_value = records[best.number].value
    assert stopped_value is not None, "it was found by its value"
    assert best_value is not None, "it was found by its value"
    return (
        ahead
        if (stopped_value < best_value) == tuning.lower_is_better and stopped_value != best_value
        else None
    )


def _first(tuning: Tuning, records: Mapping[int, Record], status: Status) -> Trial | None:
    sign = 1.0 if tuning.lower_is_better else -1.0
    values = {
        trial.number: sign * value
        for trial in tuning.trials
        if (record := records.get(trial.number)) is not None
        and record.status is status
        and (value := record.value) is not None
    }
    if not values:
        return None
    number = min(values, key=lambda number: (values[number], number))
    return next(trial for trial in tuning.trials if trial.number == number)


def _csv(tuning: Tuning, records: Mapping[int, Record]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["trial", "status", *tuning.searches, "metric", "value", "evaluations", "step", "seconds"]
    )
    for trial in tuning.trials:
        writer.writerow(_row(tuning.searches, trial, records.get(trial.number)))
    return text.getvalue()


def _row(searches: Sequence[str], trial: Trial, record: Record | None) -> list[object]:
    settings = [trial.settings.get(name, "") for name in searches]
    if record is None:
        return [trial.number, "waiting", *settings, "", "", 0, 0, ""]
    value = "" if record.value is None else record.value
    return [
        trial.number,
        record.status.value,
        *settings,
        record.metric,
        value,
        len(record.evaluations),
        record.step,
        f"{record.seconds:.3f}",
    ]

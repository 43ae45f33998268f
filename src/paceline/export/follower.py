"""Feed the points of an event log to a writer: live while the run trains, or once afterwards.

Live, every poll writes the new points. Afterwards, points that a resume discarded are left out
before anything is written. Either way the points are the same, because `Series` computes them from
the lines alone.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.config.train_config import ExportKind, ExportTarget
from paceline.core.errors import DamagedRecordError, NoSuchRunError, NothingRecordedError, PacelineError
from paceline.events.follow import NewLines
from paceline.events.read import UNREADABLE, History, take_line
from paceline.events.segments import end_of_lines
from paceline.export.metrics import Series, final_values, parameters_of
from paceline.export.writer import Outcome, Point, Rewind, RunInfo, Writer
from paceline.plan.codec import read
from paceline.plan.plan import EventDetail


@dataclass(frozen=True, slots=True)
class ExportResult:
    place: str
    points: int


def follow(run_dir: Path, target: ExportTarget, *, since: int, is_over: Callable[[], bool]) -> ExportResult:
    """Export what follows `since` bytes of the log, until the run is over. `is_over` blocks briefly."""
    while not (run_dir / "plan.json").exists():  # a run writes its plan first
        if is_over() and not (run_dir / "plan.json").exists():  # it may have begun and ended meanwhile
            raise PacelineError("there is nothing to export: the run did not start", "see the run's output")
    record = _Record(run_dir)
    record.wait_for_header(is_over)
    if since:
        for _ in record.new_points(end=since):
            pass  # exported by an earlier session
    writer = open_writer(target, record.run_info(goes_on=since > 0))
    exported = _forward(record.new_points(), writer)
    while not is_over():
        exported += _forward(record.new_points(), writer)
    exported += _forward(record.new_points(), writer)
    return _end(record, writer, exported)


def export(run_dir: Path, target: ExportTarget) -> ExportResult:
    """Export all points that count of a finished run, or of as much as there is."""
    record = _Record(run_dir)
    kept = _valid_points(record)
    writer = open_writer(target, record.run_info(goes_on=False))
    writer.write(kept)
    return _end(record, writer, len(kept))


@dataclass(frozen=True, slots=True)
class RecordedPoints:
    started_unix_s: float
    points: list[Point]


def points_of(run_dir: Path, *, every: int | None = None) -> RecordedPoints:
    """The points that would be exported, one for every `every` steps."""
    record = _Record(run_dir, every=every)
    kept = _valid_points(record)
    return RecordedPoints(record.run_info(goes_on=False).started_unix_s, [*kept, *record.last()])


def _valid_points(record: "_Record") -> list[Point]:
    """All points of the log, without those that a resume discarded."""
    kept: list[Point] = []
    for item in record.new_points():
        if isinstance(item, Rewind):
            kept = [point for point in kept if point.step < item.step]
        else:
            kept.append(item)
    if not record.has_begun:
        raise NoSuchRunError(
            f"{record.run_dir} has no event log", "name the folder of a run that was trained with events"
        )
    return kept


def open_writer(target: ExportTarget, run_info: RunInfo) -> Writer:
    """Imports lazily: a writer loads its vendor's whole package."""
    match target.kind:
        case ExportKind.TENSORBOARD:
            from paceline.export.tensorboard_writer import TensorboardWriter

            return TensorboardWriter(run_info, target.where)
        case ExportKind.MLFLOW:
            from paceline.export.mlflow_writer import MlflowWriter

            return MlflowWriter(run_info, target.where)
        case ExportKind.WANDB:
            from paceline.export.wandb_writer import WandbWriter

            return WandbWriter(run_info, target.where)


def _forward(items: Iterator[Point | Rewind], writer: Writer) -> int:
    points: list[Point] = []
    exported = 0
    for item in items:
        if isinstance(item, Rewind):
            writer.write(points)
            exported += len(points)
            points.clear()
            writer.rewind(item.step)
        else:
            points.append(item)
    if points:
        writer.write(points)
    return exported + len(points)


def _end(record: "_Record", writer: Writer, exported: int) -> ExportResult:
    last = record.last()
    writer.write(last)
    writer.end(record.outcome)
    return ExportResult(writer.place, exported + len(last))


class _Record:
    """Reads the folder of a run, incrementally."""

    def __init__(self, run_dir: Path, *, every: int | None = None) -> None:
        self.run_dir = run_dir
        self._plan = read(run_dir / "plan.json")
        if self._plan.events is EventDetail.OFF:
            raise NothingRecordedError(
                f"{run_dir} was trained with events off", "train it again with --events full"
            )
        self._series = Series(self._plan, every=every)
        self._header = History()
        self._ended_unix_s = 0.0
        self.has_begun = False
        self._log = run_dir / "events.jsonl"
        self.lines = NewLines(self._log)

    @property
    def outcome(self) -> Outcome:
        return self._series.outcome

    def wait_for_header(self, is_over: Callable[[], bool]) -> None:
        while not end_of_lines(self._log) and not is_over():
            pass  # `is_over` blocks briefly

    def new_points(self, end: int | None = None) -> Iterator[Point | Rewind]:
        """Points of the new lines, up to this offset of the log."""
        for line in (line for part in self.lines.parts(end) for line in part):
            content = History()
            try:
                take_line(content, line, is_header=not self.has_begun)
            except UNREADABLE as error:
                if self.has_begun:
                    continue
                message = f"the header of {self.run_dir}/events.jsonl cannot be read: {error}"
                raise DamagedRecordError(message, "train again with this version") from error
            if not self.has_begun:
                self.has_begun = True
                self._header = content
                self._series.begin(content)
            for event in content.plain:
                self._ended_unix_s = self._series.unix_s(event.at_ns)
            yield from self._series.take(content)

    def run_info(self, *, goes_on: bool) -> RunInfo:
        return RunInfo(
            name=self.run_dir.resolve().name,
            folder=self.run_dir.resolve(),
            parameters=parameters_of(self._plan),
            started_unix_s=self._header.started_unix_s,
            goes_on=goes_on,
        )

    def last(self) -> list[Point]:
        """The incomplete stretches, and the numbers of result.json."""
        points = list(self._series.finish())
        path = self.run_dir / "result.json"
        if self.outcome is Outcome.FAILED or not path.exists():
            return points
        try:
            result = json.loads(path.read_bytes())
        except ValueError as error:
            raise DamagedRecordError(f"{path} cannot be read: {error}", "train again") from error
        return [*points, Point(int(result["steps"]), self._ended_unix_s, final_values(result))]

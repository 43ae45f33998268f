"""Reading an event log: line by line over all of its segments, with rows rebuilt from columns.

A last line without its end (the writer was killed while writing) is left out. A line that
cannot be read (a full disk cut it short, a disk or a person changed it) is skipped, counted
and named by its number; the lines behind it are read. Only a header that cannot be read is
an error: without it no line has a meaning.

A fragment may have another process's line glued to it. Every line begins with `{"kind":`, and
inside of JSON strings the quotes of these bytes are escaped, so the whole line is found again.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from paceline.core.errors import DamagedRecordError, NoSuchRunError
from paceline.events.schema import SAMPLE_KINDS, SCHEMA, AbandonedRow, CustomRow, ServerRow, StepRow
from paceline.events.segments import chunks

# Errors of parsing damaged lines.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, AssertionError)
EVALUATIONS = ("evaluated", "early_stop")  # one of each for a step
STEP_EVENTS = ("adapted", *EVALUATIONS)  # dropped if a resume goes back behind their step
ELASTIC_SERVERS = ("server_started", "server_promoted")  # events that only elastic servers write
_BEGINS = b'{"kind":'
_NAMED = 20  # lines that are named; of more only the number is kept


@dataclass(slots=True)
class Torn:
    """Lines of a log that were skipped: how many, and the numbers of the first, from 1."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.first) < _NAMED:
            self.first.append(number)

    def describe(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        word = "line" if self.count == 1 else "lines"
        return f"{word} {', '.join(map(str, self.first))}{more}"


def decode_lines(raw: bytes) -> tuple[list[str], bool]:
    """The whole events between two newlines, usually one, and whether there is also a fragment.

    Only their ends are checked; other damage shows when they are parsed.
    """
    parts = [raw]
    if raw.rfind(_BEGINS) > 0:  # lines that were glued together
        parts = [part for part in raw.replace(_BEGINS, b"\n" + _BEGINS).split(b"\n") if part]
    whole: list[str] = []
    for part in parts:
        if part.startswith(b"{") and part.endswith(b"}"):
            with suppress(UnicodeDecodeError):
                whole.append(part.decode())
    return whole, len(whole) < len(parts)


@dataclass(frozen=True, slots=True)
class PlainEvent:
    kind: str
    who: str
    at_ns: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Updates that were applied, and discarded when a server began again with an older version."""

    to_version: int
    last_version: int
    updates: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run resumed from a checkpoint: of the rows before, those that the checkpoint holds count."""

    version: int
    clocks: tuple[int, ...]  # steps kept, by rank
    by_position: bool  # elastic workers count their own steps, of several shards: positions are the run's

    def keeps_step(self, rank: int, step: int, position: int) -> bool:
        if self.by_position:
            shards = len(self.clocks)
            return position // shards < self.clocks[position % shards]
        return step < self._clock(rank)

    def keeps_server(self, op: str, rank: int, step: int, version: int) -> bool:
        # Steps abandoned by then stay abandoned, although their number occurs again later.
        return version <= self.version and (op == "abandon" or step < self._clock(rank))

    def keeps_abandoned(self, version: int) -> bool:
        return version < self.version

    def keeps_plain(self, step: int) -> bool:
        return step <= sum(self.clocks) // len(self.clocks)

    def _clock(self, rank: int) -> int:
        """There may have been more workers before the resume."""
        return self.clocks[rank] if rank < len(self.clocks) else max(self.clocks)


@dataclass(frozen=True, slots=True)
class Restored:
    """A server restarted from an older version: later updates do not count."""

    at_ns: int
    version: int

    def keeps_step(self, start_ns: int, version: int) -> bool:
        return start_ns > self.at_ns or version < self.version

    def keeps_server(self, at_ns: int, version: int) -> bool:
        return at_ns > self.at_ns or version <= self.version


@dataclass(slots=True)
class History:
    """The content of a run's log, by participant."""

    run: str = ""
    plan: str = ""
    t0_ns: int = 0
    started_unix_s: float = 0.0
    steps: dict[int, list[StepRow]] = field(default_factory=dict)  # by rank
    abandoned: dict[int, list[AbandonedRow]] = field(default_factory=dict)  # by rank
    server: list[ServerRow] = field(default_factory=list)
    plain: list[PlainEvent] = field(default_factory=list)
    sessions: list[dict[int, int]] = field(default_factory=list)  # rows per rank when each resume began
    rolled_back: list[RolledBack] = field(default_factory=list)
    torn: Torn = field(default_factory=Torn)  # lines that could not be read
    _evaluations: dict[tuple[str, int], PlainEvent] = field(default_factory=dict, compare=False, repr=False)

    def add_evaluation(self, event: PlainEvent) -> None:
        """Keep one of each kind for a step.

        A lost process may have written it before the others committed it; then they computed it again.
        """
        key = (event.kind, _int(event.fields["step"]))
        earlier = self._evaluations.get(key)
        if earlier is not None:
            self.plain = [other for other in self.plain if other is not earlier]
        self._evaluations[key] = event
        self.plain.append(event)

    @property
    def has_elastic_servers(self) -> bool:
        return any(event.kind in ELASTIC_SERVERS for event in self.plain)

    def resume(self, version: int, clocks: Sequence[int]) -> None:
        """The run resumed from a checkpoint: drop everything after it."""
        by_position = any(event.kind == "generation_entered" for event in self.plain)
        resumed = Resumed(version, tuple(clocks), by_position)
        if not by_position:
            for rank in range(len(clocks)):
                self.steps.setdefault(rank, [])
        self.keep_steps(lambda rank, row: resumed.keeps_step(rank, row.step, row.position))
        kept = [r for r in self.server if resumed.keeps_server(r.op, r.rank, r.step, r.version)]
        self.keep(kept, version)
        for rank, abandoned in self.abandoned.items():
            self.abandoned[rank] = [row for row in abandoned if resumed.keeps_abandoned(row.version)]
        self.plain = [
            e for e in self.plain if e.kind not in STEP_EVENTS or resumed.keeps_plain(_int(e.fields["step"]))
        ]
        self.sessions.append({rank: len(rows) for rank, rows in self.steps.items()})

    def keep_steps(self, keeps: Callable[[int, StepRow], bool]) -> None:
        """Keep these rows of the workers, and update where sessions begin."""
        for rank, rows in self.steps.items():
            for session in self.sessions:
                session[rank] = sum(keeps(rank, row) for row in rows[: session.get(rank, 0)])
            self.steps[rank] = [row for row in rows if keeps(rank, row)]

    def keep(self, kept: list[ServerRow], to_version: int) -> None:
        """Keep these rows of the servers, and record the updates that were rolled back."""
        before = {row.version for row in self.server if row.op == "apply"}
        gone = before - {row.version for row in kept if row.op == "apply"}
        if gone:
            self.rolled_back.append(RolledBack(to_version, max(gone), len(gone)))
        self.server = kept


def rank_of(participant: str) -> int:
    return int(participant.rpartition("-")[2])


def _int(value: object) -> int:
    return int(str(value))


def read_history(path: Path) -> History:
    history = History()
    for event in read_events(path, history.torn):
        if isinstance(event, Header):
            _begin(history, event)
            continue
        try:
            _take(history, event.event)
        except UNREADABLE:
            history.torn.add(event.number)
    sort_history(history)
    return history


@dataclass(frozen=True, slots=True)
class Header:
    run: str
    plan: str
    t0_ns: int
    started_unix_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """One parsed line behind the header."""

    number: int  # from 1 (the header)
    event: dict[str, object]


def read_custom(path: Path, participant: str) -> list[CustomRow]:
    """Values that this participant recorded (`paceline.metric`, `run.log`), in the order of the log."""
    rows: list[CustomRow] = []
    torn = Torn()
    for event in read_events(path, torn, lambda raw: b'"custom"' not in raw):
        if isinstance(event, Header) or event.event.get("kind") != "custom":
            continue
        columns = event.event["columns"]
        if event.event["who"] == participant and isinstance(columns, dict):
            count = int(str(event.event["rows"]))
            listed = (columns[name] for name in CustomRow._fields)
            complete = (column if isinstance(column, list) else [column] * count for column in listed)
            rows += starmap(CustomRow, zip(*complete, strict=True))
    return rows


def read_events(
    path: Path, torn: Torn, is_skipped: Callable[[bytes], bool] | None = None
) -> Iterator[Header | Line]:
    """Every line of a log, one at a time; lines that cannot be read are only counted in `torn`.

    Lines that `is_skipped` are not parsed. It is given lines with one event only.
    """
    for number, raw in enumerate(_raw_lines(path), start=1):
        if number == 1:
            yield _header(path, raw)
            continue
        if not raw:
            continue  # the newline that ends a fragment, behind a line that another process had glued to it
        if is_skipped is not None and raw.find(_BEGINS, 1) < 0 and is_skipped(raw):
            continue
        lines, is_torn = decode_lines(raw)
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                yield Line(number, event)
            else:
                is_torn = True
        if is_torn:
            torn.add(number)


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Lines without the rest after the last newline, which is empty or still being written."""
    rest = b""
    try:
        for data in chunks(path):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    except OSError as error:
        raise NoSuchRunError(
            f"cannot read the event log {path}: {error.strerror}", "name the folder of a run"
        ) from error


def _header(path: Path, raw: bytes) -> Header:
    try:
        return header_of(json.loads(raw))
    except UNREADABLE as error:
        raise DamagedRecordError(
            f"{path}:1: the header of the event log cannot be read: {error}",
            "the log is damaged or was written by another version; train again",
        ) from error


def header_of(fields: dict[str, object]) -> Header:
    if fields["schema"] != SCHEMA:
        raise ValueError(f"schema is {fields['schema']!r}, this version reads {SCHEMA!r}")
    t0_ns = int(str(fields["t0_ns"]))
    started_unix_s = float(str(fields["started_unix_s"]))
    return Header(str(fields["run"]), str(fields["plan"]), t0_ns, started_unix_s)


def sort_history(history: History) -> None:
    """Merge the rows of servers that took over from each other: in order of time, each row once.

    A backup that takes over repeats rows that the lost primary may have written already, and a
    primary that was frozen may write late. Updates after the version that a server was restored
    to do not count.
    """
    if not history.has_elastic_servers:
        return
    history.server = list(dict.fromkeys(sorted(history.server, key=lambda row: row.at_ns)))
    for event in history.plain:
        if event.kind == "server_restored":
            _restore(history, restored_of(event))


def _restore(history: History, restored: Restored) -> None:
    after = [r for r in history.server if r.at_ns > restored.at_ns]
    history.server = [r for r in history.server if r.at_ns <= restored.at_ns]
    kept = [r for r in history.server if restored.keeps_server(r.at_ns, r.version)]
    history.keep(kept, restored.version)
    history.server += after
    history.keep_steps(lambda _, row: restored.keeps_step(row.start_ns, row.version))


def restored_of(event: PlainEvent) -> Restored:
    return Restored(event.at_ns, _int(event.fields["version"]))


def take_line(history: History, line: str, *, is_header: bool) -> None:
    """One whole line of a log that is still being written; one of UNREADABLE if it makes no sense."""
    event = json.loads(line)
    if is_header:
        _begin(history, header_of(event))
    else:
        _take(history, event)


def _begin(history: History, header: Header) -> None:
    history.run = header.run
    history.plan = header.plan
    history.t0_ns = header.t0_ns
    history.started_unix_s = header.started_unix_s


def _take(history: History, event: dict[str, object]) -> None:
    kind = str(event["kind"])
    participant = str(event["who"])
    columns = event.get("columns")
    if kind in SAMPLE_KINDS:  # read by paceline.monitoring; the training does not depend on them
        return
    if isinstance(columns, dict):
        count = int(str(event["rows"]))
        if kind == "steps":
            history.steps.setdefault(rank_of(participant), []).extend(rows_of(StepRow, columns, count))
        elif kind == "abandoned":
            history.abandoned.setdefault(rank_of(participant), []).extend(
                rows_of(AbandonedRow, columns, count)
            )
        else:
            history.server.extend(rows_of(ServerRow, columns, count))
        return
    plain = plain_event(event)
    if kind == "run_resumed" and event["clocks"]:
        history.resume(int(str(event["version"])), clocks_of(plain))
    if kind in EVALUATIONS:
        history.add_evaluation(plain)
    else:
        history.plain.append(plain)


def plain_event(event: Mapping[str, object]) -> PlainEvent:
    rest = {name: value for name, value in event.items() if name not in ("kind", "who", "at_ns")}
    return PlainEvent(str(event["kind"]), str(event["who"]), int(str(event["at_ns"])), rest)


def clocks_of(resumed: PlainEvent) -> list[int]:
    """Clocks by rank; empty where servers log the version that they were restored to."""
    text = str(resumed.fields["clocks"])
    return [int(clock) for clock in text.split(",")] if text else []


Row = TypeVar("Row", StepRow, AbandonedRow, ServerRow)
# By name, with a value per row. Any: each column has the type of the row's field, which `_column` checks.
Columns: TypeAlias = Mapping[str, Sequence[Any]]
_NUMBERS = frozenset({int, float, bool, type(None)})


def rows_of(kind: type[Row], columns: Mapping[str, object], count: int) -> list[Row]:
    """All rows of a line, or ValueError and none of them."""
    return list(starmap(kind, zip(*columns_of(kind, columns, count).values(), strict=True)))


def columns_of(kind: type[Row], columns: Mapping[str, object], count: int) -> Columns:
    """All columns of a line, each with a value per row, in the order of the row's fields; or ValueError."""
    if unknown := columns.keys() - set(kind._fields):
        raise ValueError(f"columns {sorted(unknown)} are unknown")
    complete: dict[str, list[Any]] = {}
    for name in kind._fields:
        if name in columns:
            complete[name] = _column(name, columns[name], count)
        elif name in kind._field_defaults:
            complete[name] = [kind._field_defaults[name]] * count
        else:
            raise ValueError(f"column {name} is missing")
    return complete


def _column(name: str, value: object, count: int) -> list[Any]:
    values = value if isinstance(value, list) else [value] * count
    allowed = {str} if name == "op" else _NUMBERS
    if len(values) != count or not allowed.issuperset(map(type, values)):
        raise ValueError(f"column {name} does not hold {count} values of its kind")
    return values

"""Summary of an event log in bounded memory: the log is read twice or three times, and never held.

Which rows count is decided by events behind them: a resume takes back what its checkpoint does not hold, a
restored server what came after its version. The first reading finds these events, and parses hardly any
rows. The second is needed only where a server discarded gradients: it finds which. The last one adds up
the rows that count, column by column.

A backup that takes over begins with the rows that the lost primary may not have written (sort_history in
events/read.py). Only these can be in the log twice, so only these are held. The numbers are those of
`summarise(read_history(path))`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

from paceline.events.read import (
    ELASTIC_SERVERS,
    STEP_EVENTS,
    UNREADABLE,
    Columns,
    Header,
    Line,
    PlainEvent,
    Restored,
    Resumed,
    Torn,
    clocks_of,
    columns_of,
    plain_event,
    rank_of,
    read_events,
    restored_of,
    rows_of,
)
from paceline.events.schema import SAMPLE_KINDS, AbandonedRow, ServerRow, StepRow
from paceline.events.summary import StepSet, Summary, Totals

_NO_CONTROL = tuple(f'{{"kind":"{kind}",'.encode() for kind in ("abandoned", *SAMPLE_KINDS))
_STEPS = b'{"kind":"steps",'
_SERVER = b'{"kind":"server",'
_WHO_BYTES = 200  # prefix of a line that contains `who`


@dataclass(frozen=True, slots=True)
class LogSummary:
    summary: Summary
    steady_samples_per_s: float
    has_diverged: bool
    interruptions: tuple[PlainEvent, ...]  # events `record_interrupted`
    torn: Torn


def summarise_log(path: Path) -> LogSummary:
    outline = _outline(path)
    discarded = _discarded(path, outline) if outline.has_discards else StepSet()
    totals = Totals(
        t0_ns=outline.t0_ns,
        workers=len(outline.steppers),
        has_elastic_servers=outline.has_elastic_servers,
        discarded=discarded,
    )
    torn = Torn()
    interruptions: list[PlainEvent] = []
    reading = _Reading(outline)
    for event in read_events(path, torn):
        if isinstance(event, Line):
            try:
                plain = _add(totals, reading, event.event)
            except UNREADABLE:
                torn.add(event.number)
                continue
            if plain is not None and plain.kind == "record_interrupted":
                interruptions.append(plain)
    return LogSummary(
        summary=totals.summary(),
        steady_samples_per_s=totals.steady_samples_per_s(),
        has_diverged=totals.has_diverged(),
        interruptions=tuple(interruptions),
        torn=torn,
    )


@dataclass(slots=True)
class _Outline:
    """The events that decide which rows count."""

    t0_ns: int = 0
    resumes: list[Resumed] = field(default_factory=list)  # in log order
    restores: list[Restored] = field(default_factory=list)  # none where servers are not elastic
    has_elastic_servers: bool = False
    has_discards: bool = False
    steppers: set[str] = field(default_factory=set)  # participants that wrote steps
    written_again: set[ServerRow] = field(default_factory=set)  # rows repeated by backups that took over


def _outline(path: Path) -> _Outline:
    outline = _Outline()
    is_elastic = False
    promoted: dict[str, int] = {}  # version up to which a participant writes rows again

    def is_skipped(raw: bytes) -> bool:
        if raw.startswith(_STEPS):
            outline.steppers.add(_participant(raw))
            return True
        if raw.startswith(_SERVER):
            outline.has_discards = outline.has_discards or b'"discard"' in raw
            return _participant(raw) not in promoted
        return raw.startswith(_NO_CONTROL)

    for event in read_events(path, Torn(), is_skipped):
        if isinstance(event, Header):
            outline.t0_ns = event.t0_ns
            continue
        try:
            kind = str(event.event["kind"])
            participant = str(event.event["who"])
            columns = event.event.get("columns")
            if isinstance(columns, dict):
                if kind == "steps":
                    outline.steppers.add(participant)
                elif kind == "server":
                    rows = rows_of(ServerRow, columns, int(str(event.event["rows"])))
                    outline.has_discards = outline.has_discards or any(row.op == "discard" for row in rows)
                    _take_written_again(outline, promoted, participant, rows)
                continue
            plain = plain_event(event.event)
            is_elastic = is_elastic or kind == "generation_entered"
            if (resumed := _resumed(plain, is_elastic=is_elastic)) is not None:
                outline.resumes.append(resumed)
            elif kind == "server_restored":
                outline.restores.append(restored_of(plain))
            elif kind == "server_promoted":
                promoted[participant] = int(str(plain.fields["version"]))
            outline.has_elastic_servers = outline.has_elastic_servers or kind in ELASTIC_SERVERS
        except UNREADABLE:
            continue  # counted by the last reading
    if not outline.has_elastic_servers:
        outline.restores.clear()
    return outline


def _take_written_again(
    outline: _Outline, promoted: dict[str, int], participant: str, rows: Sequence[ServerRow]
) -> None:
    """A promoted server writes rows of its predecessor first, then its own, with newer versions."""
    if participant not in promoted:
        return
    outline.written_again.update(row for row in rows if row.version <= promoted[participant])
    if any(row.version > promoted[participant] for row in rows):
        del promoted[participant]


def _participant(raw: bytes) -> str:
    parts = raw[:_WHO_BYTES].split(b'"', 8)
    return parts[7].decode(errors="replace") if len(parts) > 7 else ""


def _resumed(event: PlainEvent, *, is_elastic: bool) -> Resumed | None:
    """None: not a resume, or one without clocks, where servers log the restored version instead."""
    if event.kind != "run_resumed" or not event.fields["clocks"]:
        return None
    return Resumed(int(str(event.fields["version"])), tuple(clocks_of(event)), is_elastic)


class _Reading:
    """Which rows count, while the log is read from its beginning."""

    def __init__(self, outline: _Outline) -> None:
        self._resumes = list(outline.resumes)  # resumes not reached yet
        self._restores = outline.restores
        self._written_again = set(outline.written_again)  # and not met yet
        self._times_ns = {row.at_ns for row in outline.written_again}
        self._seen: set[ServerRow] = set()

    def resume(self) -> Resumed:
        return self._resumes.pop(0)

    def steps(self, rank: int, rows: Columns) -> Columns:
        if not self._resumes and not self._restores:
            return rows
        names = ("step", "position", "start_ns", "version")
        values = zip(*(rows[name] for name in names), strict=True)
        return _selected(rows, [self._keeps_step(rank, *row) for row in values])

    def server(self, rows: Columns) -> Columns:
        if self._resumes or self._restores:
            names = ("op", "rank", "step", "version", "at_ns")
            values = zip(*(rows[name] for name in names), strict=True)
            rows = _selected(rows, [self._keeps_server(*row) for row in values])
        if not self._times_ns.isdisjoint(rows["at_ns"]):
            rows = _selected(rows, list(self._first_times(rows)))
        return rows

    def abandoned(self, rows: Columns) -> Columns:
        kept = [all(r.keeps_abandoned(version) for r in self._resumes) for version in rows["version"]]
        return _selected(rows, kept)

    def keeps_plain(self, event: PlainEvent) -> bool:
        if event.kind not in STEP_EVENTS:
            return True
        return all(r.keeps_plain(int(str(event.fields["step"]))) for r in self._resumes)

    def _keeps_step(self, rank: int, step: int, position: int, start_ns: int, version: int) -> bool:
        return all(r.keeps_step(rank, step, position) for r in self._resumes) and all(
            r.keeps_step(start_ns, version) for r in self._restores
        )

    def _keeps_server(self, op: str, rank: int, step: int, version: int, at_ns: int) -> bool:
        return all(r.keeps_server(op, rank, step, version) for r in self._resumes) and all(
            r.keeps_server(at_ns, version) for r in self._restores
        )

    def _first_times(self, rows: Columns) -> Iterator[bool]:
        """Whether each row is its first copy in the log; a repeated row does not count."""
        for values in zip(*rows.values(), strict=True):
            row = ServerRow(*values)
            yield row not in self._seen
            if row in self._written_again:
                self._seen.add(row)


def _selected(rows: Columns, kept: Sequence[bool]) -> Columns:
    if all(kept):
        return rows
    return {name: list(compress(values, kept)) for name, values in rows.items()}


def _add(totals: Totals, reading: _Reading, event: dict[str, object]) -> PlainEvent | None:
    """The event, if it is a plain one."""
    kind = str(event["kind"])
    participant = str(event["who"])
    columns = event.get("columns")
    if kind in SAMPLE_KINDS:
        return None
    if not isinstance(columns, dict):
        plain = plain_event(event)
        _add_plain(totals, reading, plain)
        return plain
    count = int(str(event["rows"]))
    if kind == "steps":
        rank = rank_of(participant)
        totals.take_steps(rank, reading.steps(rank, columns_of(StepRow, columns, count)))
    elif kind == "abandoned":
        rank = rank_of(participant)
        totals.take_abandoned(rank, reading.abandoned(columns_of(AbandonedRow, columns, count)))
    else:
        totals.take_server(reading.server(columns_of(ServerRow, columns, count)))
    return None


def _add_plain(totals: Totals, reading: _Reading, event: PlainEvent) -> None:
    if _resumed(event, is_elastic=False) is not None:
        resumed = reading.resume()
        if not resumed.by_position:
            totals.add_ranks(range(len(resumed.clocks)))
        totals.begin_session()
    elif reading.keeps_plain(event):
        totals.take_plain(event)


def _discarded(path: Path, outline: _Outline) -> StepSet:
    """Gradients that a server discarded, as far as these rows count."""
    discarded = StepSet()
    reading = _Reading(outline)

    def is_skipped(raw: bytes) -> bool:
        if raw.startswith(_SERVER):
            return b'"discard"' not in raw
        return raw.startswith((_STEPS, *_NO_CONTROL))

    for event in read_events(path, Torn(), is_skipped):
        if isinstance(event, Header):
            continue
        try:
            columns = event.event.get("columns")
            if not isinstance(columns, dict):
                if _resumed(plain_event(event.event), is_elastic=False) is not None:
                    reading.resume()
            elif event.event["kind"] == "server":
                rows = reading.server(columns_of(ServerRow, columns, int(str(event.event["rows"]))))
                for op, rank, step in zip(rows["op"], rows["rank"], rows["step"], strict=True):
                    if op == "discard":
                        discarded.add(rank, step)
        except UNREADABLE:
            continue  # counted by the last reading
    return discarded

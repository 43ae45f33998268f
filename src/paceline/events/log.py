"""How do several processes write one event log without waiting for each other?

Each appends whole batches of lines with one write to a file opened for append:
the kernel keeps such writes apart. Frequent events are collected as rows and
written as columns, so an event costs about a microsecond on the step path.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from paceline import environ
from paceline.clock import Clock, SystemClock
from paceline.events.read import PlainEvent
from paceline.events.sample_rows import CustomRow
from paceline.events.schema import COLUMN_KINDS, SCHEMA, AbandonedRow, PartRow, Scalar, ServerRow, StepRow

FLUSH_NS = 500_000_000
LIVE_FLUSH_NS = 50_000_000  # while somebody watches
FLUSH_ROWS = 4096


def write_header(path: Path, *, run: str, plan: str, t0_ns: int, started_unix_s: float) -> None:
    """Begin a log; later parts of a resumed run append another header-less stretch."""
    header = {"schema": SCHEMA, "run": run, "plan": plan, "t0_ns": t0_ns, "started_unix_s": started_unix_s}
    if path.exists():
        # Half a line of a writer that was killed: what comes now must not be glued to it.
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    if not path.exists() or path.stat().st_size == 0:
        path.write_text(json.dumps(header) + "\n")


class Log(Protocol):
    """Where a participant's events go: a file, nowhere, or a list in memory."""

    @property
    def is_on(self) -> bool: ...

    def write(self, kind: str, **fields: Scalar) -> None: ...

    def add_step(self, row: StepRow) -> None: ...

    def add_abandoned(self, row: AbandonedRow) -> None: ...

    def add_server(self, row: ServerRow) -> None: ...

    def add_part(self, row: PartRow) -> None: ...

    def add_custom(self, rows: Sequence[CustomRow]) -> None: ...

    def flush(self) -> None:
        """What was added is in the log even if this process is killed now."""
        ...

    def close(self) -> None: ...


class MemoryLog:
    """Keeps the rows of one run in lists, for virtual runs and replays."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.steps: dict[int, list[StepRow]] = {}
        self.abandoned: dict[int, list[AbandonedRow]] = {}
        self.server: list[ServerRow] = []
        self.parts: list[PartRow] = []
        self.custom: dict[int, list[CustomRow]] = {}
        self.plain: list[PlainEvent] = []

    def of(self, rank: int) -> "MemoryLog":
        """A pen for one worker that writes into this log."""
        pen = MemoryLog(self._clock)
        pen.steps, pen.abandoned, pen.server = self.steps, self.abandoned, self.server
        pen.plain, pen.parts, pen.custom = self.plain, self.parts, self.custom
        pen._rank = rank
        return pen

    _rank = 0
    is_on = True

    def write(self, kind: str, **fields: Scalar) -> None:
        self.plain.append(PlainEvent(kind, f"worker-{self._rank}", self._clock.now_ns(), fields))

    def add_step(self, row: StepRow) -> None:
        self.steps.setdefault(self._rank, []).append(row)

    def add_abandoned(self, row: AbandonedRow) -> None:
        self.abandoned.setdefault(self._rank, []).append(row)

    def add_server(self, row: ServerRow) -> None:
        self.server.append(row)

    def add_part(self, row: PartRow) -> None:
        self.parts.append(row)

    def add_custom(self, rows: Sequence[CustomRow]) -> None:
        self.custom.setdefault(self._rank, []).extend(rows)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """One process's pen. With `path=None` everything is dropped: instrumentation off."""

    def __init__(self, path: Path | None, *, who: str, clock: Clock) -> None:
        self._who = who
        self._clock = clock
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._steps: list[StepRow] = []
        self._abandoned: list[AbandonedRow] = []
        self._server: list[ServerRow] = []
        self._parts: list[PartRow] = []
        self._custom: list[CustomRow] = []
        self._flushed_ns = clock.now_ns()
        self._flush_ns = LIVE_FLUSH_NS if environ.wants_live_log() else FLUSH_NS

    @property
    def is_on(self) -> bool:
        return self._fd is not None

    def write(self, kind: str, **fields: Scalar) -> None:
        self.flush()
        self._append({"kind": kind, "who": self._who, "at_ns": self._clock.now_ns(), **fields})

    def add_step(self, row: StepRow) -> None:
        self._steps.append(row)
        self._maybe_flush(len(self._steps), row.start_ns)

    def add_abandoned(self, row: AbandonedRow) -> None:
        self._abandoned.append(row)
        self._maybe_flush(len(self._abandoned), row.start_ns)

    def add_server(self, row: ServerRow) -> None:
        self._server.append(row)
        self._maybe_flush(len(self._server), row.at_ns)

    def add_part(self, row: PartRow) -> None:
        self._parts.append(row)
        self._maybe_flush(len(self._parts), row.at_ns)

    def add_custom(self, rows: Sequence[CustomRow]) -> None:
        self._custom.extend(rows)
        if len(self._custom) >= FLUSH_ROWS:
            self.flush()

    def write_rows(self, kind: str, rows: Sequence[tuple[Scalar, ...]]) -> None:
        """At once: for what comes about once a second."""
        self._flush_columns(kind, COLUMN_KINDS[kind], list(rows))

    def flush(self) -> None:
        self._flush_columns("steps", StepRow._fields, self._steps)
        self._flush_columns("abandoned", AbandonedRow._fields, self._abandoned)
        self._flush_columns("server", ServerRow._fields, self._server)
        self._flush_columns("part", PartRow._fields, self._parts)
        self._flush_columns("custom", CustomRow._fields, self._custom)
        self._flushed_ns = self._clock.now_ns()

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _maybe_flush(self, rows: int, now_ns: int) -> None:
        if rows >= FLUSH_ROWS or now_ns - self._flushed_ns > self._flush_ns:
            self.flush()

    def _flush_columns(
        self,
        kind: str,
        names: Sequence[str],
        rows: list[StepRow]
        | list[AbandonedRow]
        | list[ServerRow]
        | list[PartRow]
        | list[CustomRow]
        | list[tuple[Scalar, ...]],
    ) -> None:
        if rows:
            columns = dict(zip(names, map(_packed, zip(*rows, strict=True)), strict=True))
            self._append({"kind": kind, "who": self._who, "rows": len(rows), "columns": columns})
            rows.clear()

    def _append(self, event: Mapping[str, object]) -> None:
        if self._fd is not None:
            # One write per line: appends of one call are never interleaved with another process's.
            line = (json.dumps(event, separators=(",", ":")) + "\n").encode()
            written = os.write(self._fd, line)
            assert written == len(line), f"only {written} of {len(line)} bytes fit on the disk"


def _packed(column: tuple[Scalar, ...]) -> Scalar | tuple[Scalar, ...]:
    """A column whose values are all the same is written as that one value."""
    return column[0] if column.count(column[0]) == len(column) else column

"""The event log's writers: several processes append to the newest segment without waiting for each other.

Each line is one write to a file opened for append: the kernel does not interleave such writes.
The segment is closed when it is large, and another begins (events/segments.py).
Frequent events are collected as rows and written as columns, so an event costs about a
microsecond on the step path.

Recording errors never end the training. A line that a full disk refuses waits in memory and is
tried again with the next one. A line that was cut short is written again, whole, behind a
newline that ends the fragment; where another process has appended to the fragment before
that, readers find its line behind the fragment (events/read.py). A `record_interrupted`
event then has the number of fragments and of lines that were dropped for lack of memory.
"""

import errno
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from paceline.core import environ
from paceline.core.clock import Clock, SystemClock, monotonic_s
from paceline.core.disk import write_durably
from paceline.core.errors import without_secrets
from paceline.events.read import PlainEvent
from paceline.events.schema import (
    COLUMN_KINDS,
    SCHEMA,
    AbandonedRow,
    CustomRow,
    Scalar,
    ServerRow,
    StepRow,
)
from paceline.events.segments import SegmentWriter, size_of_whole_lines

FLUSH_NS = 500_000_000
LIVE_FLUSH_NS = 50_000_000  # while the run is watched
FLUSH_ROWS = 4096
CLOSING_S = 5.0  # longest wait of a process's last lines for a rotation
WAITING_BYTES = 32_000_000  # lines that the disk refuses; beyond it the oldest are dropped and counted
_QUOTES = frozenset(("reason", "note", "message", "error", "why"))  # fields that quote errors of others


def write_header(path: Path, *, run: str, plan: str, t0_ns: int, started_unix_s: float) -> None:
    """Begin a log; later parts of a resumed run append another header-less stretch."""
    header = {"schema": SCHEMA, "run": run, "plan": plan, "t0_ns": t0_ns, "started_unix_s": started_unix_s}
    if path.exists():
        # Half a line of a killed writer: new lines must not be appended to it.
        os.truncate(path, size_of_whole_lines(path))
    if not path.exists() or path.stat().st_size == 0:
        write_durably(path, [(json.dumps(header) + "\n").encode()])


class LineWriter(Protocol):
    """The port of a file that is appended to; a write may take fewer bytes than it is given."""

    def write(self, data: bytes) -> int: ...

    def close(self) -> None: ...


class Lines:
    """Whole lines, in order, on a disk that may be full for a while. Never raises an OSError."""

    def __init__(self, file: LineWriter, *, who: str, clock: Clock, notify: Callable[[str], None]) -> None:
        self._file = file
        self._participant = who
        self._clock = clock
        self._notify = notify
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_torn = False  # the file may end with a fragment of the first line that waits
        self._fragments = 0  # since the last `record_interrupted`
        self._dropped = 0
        self._reason = ""  # why lines wait, or waited since then
        self._has_warned = False

    def append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self.try_again()
        while self._waiting_bytes > WAITING_BYTES and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1
            self._reason = self._reason or "a rotation of the log did not end"

    def try_again(self) -> None:
        """Write the waiting lines, as far as the disk accepts them."""
        try:
            while self._waiting:
                self._put(self._waiting[0])
                self._waiting_bytes -= len(self._waiting.popleft())
                if not self._waiting and self._reason:
                    self._log_interruption()
        except BlockingIOError:
            return  # a rotation is under way; the lines keep waiting
        except OSError as error:
            self._reason = error.strerror or str(error)
            if not self._has_warned:
                self._has_warned = True
                self._notify(
                    f"events of {self._participant} cannot be written and are kept in memory: {self._reason}"
                )

    def close(self) -> None:
        give_up_s = monotonic_s() + CLOSING_S
        self.try_again()
        while self._waiting and not self._reason and monotonic_s() < give_up_s:
            self.try_again()
        if lost := len(self._waiting) + self._dropped:
            self._notify(f"{lost} lines of {self._participant} are missing in the event log: {self._reason}")
        self._file.close()

    def _put(self, line: bytes) -> None:
        fence = b"\n" if self._is_torn else b""
        written = self._file.write(fence + line)
        if written == len(fence) + len(line):
            self._is_torn = False
            return
        if written == len(fence) + len(line) - 1:  # all but its newline: the line is not a fragment
            self._is_torn = False
            self._waiting[0] = b"\n"
            self._waiting_bytes -= len(line) - 1
        elif written > len(fence):  # a newline alone ends the previous fragment
            self._is_torn = True
            self._fragments += 1
        elif written:
            self._is_torn = False
        raise OSError(errno.ENOSPC, "the disk accepted only a part of a line")

    def _log_interruption(self) -> None:
        event = {
            "kind": "record_interrupted",
            "who": self._participant,
            "at_ns": self._clock.now_ns(),
            "reason": self._reason,
            "fragments": self._fragments,
            "dropped": self._dropped,
        }
        self._reason = ""
        self._fragments = 0
        self._dropped = 0
        line = _encoded(event)
        self._waiting.append(line)
        self._waiting_bytes += len(line)


def _encoded(event: Mapping[str, object]) -> bytes:
    return (json.dumps(event, separators=(",", ":")) + "\n").encode()


def _to_stderr(text: str) -> None:
    """Write to stderr; a worker's stderr is its file in logs/, which may be on the same full disk."""
    with suppress(OSError):
        print(f"warning: {text}", file=sys.stderr, flush=True)


class Log(Protocol):
    """The port of a participant's event log: a file, a no-op, or lists in memory."""

    @property
    def is_on(self) -> bool: ...

    def write(self, kind: str, **fields: Scalar) -> None: ...

    def add_step(self, row: StepRow) -> None: ...

    def add_abandoned(self, row: AbandonedRow) -> None: ...

    def add_server(self, row: ServerRow) -> None: ...

    def add_custom(self, rows: Sequence[CustomRow]) -> None: ...

    def flush(self) -> None:
        """Write the added rows, so that they survive a kill of this process."""
        ...

    def close(self) -> None: ...


class MemoryLog:
    """Keeps the rows of one run in lists, for virtual runs and replays."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.steps: dict[int, list[StepRow]] = {}
        self.abandoned: dict[int, list[AbandonedRow]] = {}
        self.server: list[ServerRow] = []
        self.custom: dict[int, list[CustomRow]] = {}
        self.plain: list[PlainEvent] = []

    def of(self, rank: int) -> "MemoryLog":
        """A log of one worker that writes into this one."""
        log = MemoryLog(self._clock)
        log.steps = self.steps
        log.abandoned = self.abandoned
        log.server = self.server
        log.plain = self.plain
        log.custom = self.custom
        log._rank = rank
        return log

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

    def add_custom(self, rows: Sequence[CustomRow]) -> None:
        self.custom.setdefault(self._rank, []).extend(rows)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """One process's writer. With `path=None` everything is dropped: instrumentation off."""

    def __init__(
        self,
        path: Path | None,
        *,
        who: str,
        clock: Clock,
        notify: Callable[[str], None] = _to_stderr,
        file: LineWriter | None = None,
    ) -> None:
        """`notify` is called once when the disk refuses lines, and at the end if some are missing."""
        self._participant = who
        self._clock = clock
        if file is None and path is not None:
            file = SegmentWriter(path)
        self._lines = None if file is None else Lines(file, who=who, clock=clock, notify=notify)
        self._steps: list[StepRow] = []
        self._abandoned: list[AbandonedRow] = []
        self._server: list[ServerRow] = []
        self._custom: list[CustomRow] = []
        self._flushed_ns = clock.now_ns()
        self._flush_ns = LIVE_FLUSH_NS if environ.wants_live_log() else FLUSH_NS

    @property
    def is_on(self) -> bool:
        return self._lines is not None

    def write(self, kind: str, **fields: Scalar) -> None:
        self.flush()
        for name in _QUOTES & fields.keys():
            value = fields[name]
            fields[name] = without_secrets(value) if isinstance(value, str) else value
        self._append({"kind": kind, "who": self._participant, "at_ns": self._clock.now_ns(), **fields})

    def add_step(self, row: StepRow) -> None:
        self._steps.append(row)
        self._maybe_flush(len(self._steps), row.start_ns)

    def add_abandoned(self, row: AbandonedRow) -> None:
        self._abandoned.append(row)
        self._maybe_flush(len(self._abandoned), row.start_ns)

    def add_server(self, row: ServerRow) -> None:
        self._server.append(row)
        self._maybe_flush(len(self._server), row.at_ns)

    def add_custom(self, rows: Sequence[CustomRow]) -> None:
        self._custom.extend(rows)
        if len(self._custom) >= FLUSH_ROWS:
            self.flush()

    def write_rows(self, kind: str, rows: Sequence[tuple[Scalar, ...]]) -> None:
        """Write rows at once, for kinds written about once a second."""
        self._flush_columns(kind, COLUMN_KINDS[kind], list(rows))

    def append_lines(self, lines: bytes) -> None:
        """Whole lines that another process encoded."""
        if self._lines is not None:
            for line in lines.splitlines(keepends=True):
                self._lines.append(line)

    def flush(self) -> None:
        self._flush_columns("steps", StepRow._fields, self._steps)
        self._flush_columns("abandoned", AbandonedRow._fields, self._abandoned)
        self._flush_columns("server", ServerRow._fields, self._server)
        self._flush_columns("custom", CustomRow._fields, self._custom)
        if self._lines is not None:
            self._lines.try_again()
        self._flushed_ns = self._clock.now_ns()

    def close(self) -> None:
        self.flush()
        if self._lines is not None:
            self._lines.close()
            self._lines = None

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
        | list[CustomRow]
        | list[tuple[Scalar, ...]],
    ) -> None:
        if rows:
            columns = dict(zip(names, map(_packed, zip(*rows, strict=True)), strict=True))
            self._append({"kind": kind, "who": self._participant, "rows": len(rows), "columns": columns})
            rows.clear()

    def _append(self, event: Mapping[str, object]) -> None:
        if self._lines is not None:
            self._lines.append(_encoded(event))


def _packed(column: tuple[Scalar, ...]) -> Scalar | tuple[Scalar, ...]:
    """A column whose values are all the same is written as that one value."""
    return column[0] if column.count(column[0]) == len(column) else column

"""Live stream of a run: one reader of the log, and a bounded mailbox per viewer.

A thread reads the log at most every `TICK_S`. New lines become messages once for all viewers, and only while
there are viewers. `seq` counts lines of the log, so a viewer that reconnects, also to another dashboard,
continues exactly where it stopped.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from paceline.core.clock import monotonic_s
from paceline.dashboard.run_index import LOG, NoRunError
from paceline.events.schema import BOUNDS_S, Timings
from paceline.monitoring.alerts.rules import Rules
from paceline.monitoring.view.feed import Feed
from paceline.monitoring.view.run_view import RunView
from paceline.plan.codec import Json

DELAY = "paceline_dashboard_event_delay_seconds"


@dataclass(slots=True)
class DashboardStats:
    viewers: int = 0
    frames: int = 0  # messages made; none without viewers
    dropped: int = 0  # messages that slow viewers did not get
    delays: Timings = field(default_factory=Timings)  # of frames, behind their newest step

    def exposition(self) -> bytes:
        rows = (
            ("paceline_dashboard_viewers", "gauge", "Pages that follow a run.", self.viewers),
            ("paceline_dashboard_frames_total", "counter", "Messages created for viewers.", self.frames),
            (
                "paceline_dashboard_frames_dropped_total",
                "counter",
                "Frames dropped for slow viewers.",
                self.dropped,
            ),
        )
        lines = []
        for name, kind, text, value in rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return ("\n".join([*lines, *self._delays()]) + "\n").encode()

    def _delays(self) -> list[str]:
        text = "Time from the newest step of a frame until the frame was created."
        lines = [f"# HELP {DELAY} {text}", f"# TYPE {DELAY} histogram"]
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.delays.counts, strict=True):
            so_far += count
            lines.append(f'{DELAY}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{DELAY}_count {so_far}", f"{DELAY}_sum {self.delays.total_s}"]


CAPACITY = 64


class Kind(Enum):
    FRAME = "frame"  # new rows of steps
    VIEW = "view"  # the whole view, without what frames carry
    EVENT = "event"  # something happened
    RESET = "reset"  # take a new snapshot: GET /api/v1/snapshot


@dataclass(frozen=True, slots=True)
class Message:
    """Serialized once for all viewers."""

    kind: Kind
    seq: int  # lines of the run's log up to and including this message
    data: bytes

    def wire(self) -> bytes:
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.kind.value.encode(), self.data)


class Mailbox:
    """Bounded queue of one viewer. Pure.

    Frames and views are superseded by later ones, so a full queue drops the oldest of them. Events must not
    be lost: when the queue is full of events, it is cleared, and the viewer must take a new snapshot.
    """

    def __init__(self, wake: Callable[[], None], capacity: int = CAPACITY) -> None:
        self._queue = deque[Message]()
        self._wake = wake
        self._capacity = capacity
        self.dropped = 0

    def put(self, message: Message) -> None:
        if len(self._queue) >= self._capacity and not self._drop_oldest():
            self.reset(message.seq)
        self._queue.append(message)
        self._wake()

    def reset(self, seq: int) -> None:
        self._queue.clear()
        self._queue.append(Message(Kind.RESET, seq, b"{}"))
        self._wake()

    def take(self) -> list[Message]:
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def _drop_oldest(self) -> bool:
        """Drop the oldest frame or view; False: there are only events."""
        for position, message in enumerate(self._queue):
            if message.kind in (Kind.FRAME, Kind.VIEW):
                del self._queue[position]
                self.dropped += 1
                return True
        return False


TICK_S = 0.04
VIEW_S = 0.5
MANY_WORKERS = 100  # workers
HEAD_BYTES = 256
IDLE_S = 1.0  # between reads without viewers
MAX_BEHIND = 4000  # lines that a reconnecting viewer is sent; beyond it, a reset


class LiveRun:
    def __init__(self, run_dir: Path, rules: Rules | None, stats: DashboardStats) -> None:
        self.run_dir = run_dir
        self._rules = rules
        self._log = _read_log_file(run_dir)
        self.feed = Feed(run_dir, rules=rules)
        self._stats = stats
        self._viewers: set[Mailbox] = set()
        self._lock = asyncio.Lock()  # the feed is used by one thread at a time
        self._sent_seq = 0  # lines that were sent to viewers
        self._framed_seq = 0  # of the last frame
        self._view_at_s = 0.0
        self._is_replaced = False  # the log was replaced; viewers need a reset
        self._task: asyncio.Task[None] | None = None
        self._viewer_joined = asyncio.Event()

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def start(self) -> None:
        """Start following, or restart after an unreadable log ended it."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name=f"follow {self.run_dir.name}")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Viewers take a new snapshot, whose response reports the problem of the log."""
        if not task.cancelled() and task.exception() is not None:
            for mailbox in self._viewers:
                mailbox.reset(self._sent_seq)

    def _read(self) -> None:
        """Read new lines. A log that was replaced under this name is another run: viewers are reset."""
        log = _read_log_file(self.run_dir)
        if log is None:
            raise NoRunError(f"the folder of {self.run_dir.name} was removed", "select another run")
        if self._log is not None and (not log.head.startswith(self._log.head) or log.size < self._log.size):
            self.feed = Feed(self.run_dir, rules=self._rules)
            self.feed.read()
            self._sent_seq = self._framed_seq = self.feed.view.seq
            self._is_replaced = True
        self._log = log
        self.feed.read()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def snapshot(self) -> dict[str, Json]:
        async with self._lock:
            return await asyncio.to_thread(self._snapshot)

    async def timeline(self, from_s: float, to_s: float, most: int) -> dict[str, Json]:
        return await self._query(lambda view: view.timeline(from_s, to_s, most=most))

    async def series(
        self, names: list[str] | None, from_s: float | None, to_s: float | None, points: int
    ) -> dict[str, Json]:
        return await self._query(lambda view: view.series(names, from_s=from_s, to_s=to_s, points=points))

    async def _query(self, query: Callable[[RunView], dict[str, Json]]) -> dict[str, Json]:
        def read_and_query() -> dict[str, Json]:
            self._read()
            return query(self.feed.view)

        async with self._lock:
            return await asyncio.to_thread(read_and_query)

    async def metrics(self) -> bytes:
        from paceline.monitoring.metrics.prometheus import exposition

        def read_and_query() -> bytes:
            self._read()
            return exposition(self.feed.view, self.feed.now_ns())

        async with self._lock:
            return await asyncio.to_thread(read_and_query)

    @asynccontextmanager
    async def viewer(self, last_seq: int | None) -> AsyncIterator[tuple[Mailbox, asyncio.Event]]:
        """A mailbox that receives everything after `last_seq`, or a reset first."""
        wakeup = asyncio.Event()
        mailbox = Mailbox(wakeup.set)
        async with self._lock:
            await asyncio.to_thread(self._catch_up, mailbox, last_seq)
            self._viewers.add(mailbox)
        self._viewer_joined.set()
        try:
            yield mailbox, wakeup
        finally:
            self._viewers.discard(mailbox)
            self._stats.dropped += mailbox.dropped

    def _snapshot(self) -> dict[str, Json]:
        self._read()
        return self._view()

    def _view(self) -> dict[str, Json]:
        view = self.feed.view
        snapshot = view.snapshot(self.feed.now_ns())
        # The view of a finished run does not depend on the current time.
        return view.snapshot() if snapshot["state"] in ("finished", "stopped", "failed") else snapshot

    def _catch_up(self, mailbox: Mailbox, last_seq: int | None) -> None:
        """Send a reconnecting viewer what it missed; the rest follows with the next tick."""
        if self._sent_seq == 0 or not self._viewers:
            self._read()
            self._sent_seq = self._framed_seq = self.feed.view.seq
        seq = self.feed.view.seq
        if last_seq is None or not 0 < last_seq <= seq or seq - last_seq > MAX_BEHIND:
            mailbox.reset(seq)
            return
        for message in self._messages(last_seq, last_seq):
            mailbox.put(message)

    async def _follow(self) -> None:
        while True:
            began_s = monotonic_s()
            async with self._lock:
                messages = await asyncio.to_thread(self._tick)
                if self._is_replaced:
                    self._is_replaced = False
                    for mailbox in self._viewers:
                        mailbox.reset(self._sent_seq)
                self._send(messages)
                if self._viewers and began_s - self._view_at_s >= self._view_every_s():
                    self._view_at_s = began_s
                    self._send(
                        [await asyncio.to_thread(self._view_message)]
                    )  # after the frame, which is urgent
            wait_s = TICK_S if self._viewers else IDLE_S
            try:
                async with asyncio.timeout(max(0.005, wait_s - (monotonic_s() - began_s))):
                    await self._viewer_joined.wait()
            except TimeoutError:
                continue
            self._viewer_joined.clear()

    def _tick(self) -> list[Message]:
        self._read()
        if not self._viewers:
            return []
        # A snapshot request may have read the newest lines already.
        messages = self._messages(self._sent_seq, self._framed_seq)
        self._sent_seq = self.feed.view.seq
        if any(message.kind is Kind.FRAME for message in messages):
            self._framed_seq = self._sent_seq
            self._stats.delays.add(max(0.0, (self.feed.now_ns() - self.feed.view.last_ns) / 1e9))
        return messages

    def _view_message(self) -> Message:
        return Message(Kind.VIEW, self._sent_seq, _bytes(without_events(self._view())))

    def _view_every_s(self) -> float:
        """Longer with many workers, since the view grows with them; frames carry what changes fast."""
        return VIEW_S if len(self.feed.view.track.workers) <= MANY_WORKERS else 2 * VIEW_S

    def _send(self, messages: list[Message]) -> None:
        self._stats.frames += len(messages)
        for message in messages:
            for mailbox in self._viewers:
                mailbox.put(message)

    def _messages(self, after: int, framed: int) -> list[Message]:
        """Messages for the lines after `after`; `framed`: the last line of the previous frame."""
        view = self.feed.view
        if view.seq <= after:
            return []
        events = [
            Message(Kind.EVENT, int(str(event["seq"])), _bytes(event)) for event in view.events_since(after)
        ]
        if steps := view.steps_since(after):
            frame: dict[str, Json] = {
                "after": framed,
                "seq": view.seq,
                "now_s": self._now_s(),
                "steps": list(steps),
            }
            events.append(Message(Kind.FRAME, view.seq, _bytes(frame)))
        return events

    def _now_s(self) -> float:
        return (self.feed.now_ns() - self.feed.view.t0_ns) / 1e9


@dataclass(frozen=True, slots=True)
class _LogFile:
    head: bytes  # start of its first line, which holds the start time; inode numbers are reused
    size: int


def _read_log_file(run_dir: Path) -> _LogFile | None:
    """None: it does not exist."""
    try:
        with (run_dir / LOG).open("rb") as file:
            return _LogFile(file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        return None


def without_events(view: dict[str, Json]) -> dict[str, Json]:
    """Events are sent one by one."""
    return {name: value for name, value in view.items() if name != "events"}


def _bytes(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

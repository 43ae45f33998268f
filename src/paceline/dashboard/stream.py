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
    frames: int = 0  # that were made: none while nobody looks
    dropped: int = 0  # that slow viewers did not get
    delays: Timings = field(default_factory=Timings)  # of frames, behind the newest thing that they tell

    def exposition(self) -> bytes:
        rows = (
            ("paceline_dashboard_viewers", "gauge", "Pages that follow a run here.", self.viewers),
            ("paceline_dashboard_frames_total", "counter", "Messages made for viewers.", self.frames),
            (
                "paceline_dashboard_frames_dropped_total",
                "counter",
                "Frames that slow viewers did not get.",
                self.dropped,
            ),
        )
        lines = []
        for name, kind, text, value in rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return ("\n".join([*lines, *self._delays()]) + "\n").encode()

    def _delays(self) -> list[str]:
        text = "From the newest step of a frame until the frame was made."
        lines = [f"# HELP {DELAY} {text}", f"# TYPE {DELAY} histogram"]
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.delays.counts, strict=True):
            so_far += count
            lines.append(f'{DELAY}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{DELAY}_count {so_far}", f"{DELAY}_sum {self.delays.total_s}"]


# Frames are numbers that the next frame makes old: the oldest goes when there is no
# room. Events are what happened: when there is room for no more of them, all is
# thrown away, and the viewer is told to look anew. Pure.

CAPACITY = 64


class Kind(Enum):
    FRAME = "frame"  # new rows of steps
    VIEW = "view"  # the whole view, without what frames carry
    EVENT = "event"  # something happened
    RESET = "reset"  # look anew: GET /api/v1/snapshot


@dataclass(frozen=True, slots=True)
class Message:
    """As it goes over the wire; made once for all viewers."""

    kind: Kind
    seq: int  # bytes of the run's log that are in it, and in all before
    data: bytes

    def wire(self) -> bytes:
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.kind.value.encode(), self.data)


class Mailbox:
    def __init__(self, wake: Callable[[], None], room: int = CAPACITY) -> None:
        self._waiting = deque[Message]()
        self._wake = wake
        self._room = room
        self.dropped = 0

    def put(self, message: Message) -> None:
        if len(self._waiting) >= self._room and not self._drop_oldest():
            self.reset(message.seq)
        self._waiting.append(message)
        self._wake()

    def reset(self, seq: int) -> None:
        self._waiting.clear()
        self._waiting.append(Message(Kind.RESET, seq, b"{}"))
        self._wake()

    def take(self) -> list[Message]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _drop_oldest(self) -> bool:
        """Of what may be dropped; False: there is nothing but events."""
        for position, message in enumerate(self._waiting):
            if message.kind in (Kind.FRAME, Kind.VIEW):
                del self._waiting[position]
                self.dropped += 1
                return True
        return False


TICK_S = 0.04
VIEW_S = 0.5
MANY_WORKERS = 100  # workers
HEAD_BYTES = 256
IDLE_S = 1.0  # between looks while nobody watches
MAX_BEHIND = 4000  # lines that a viewer may have missed and still be told; more: it looks anew


class LiveRun:
    def __init__(self, run_dir: Path, rules: Rules | None, counted: DashboardStats) -> None:
        self.run_dir = run_dir
        self._rules = rules
        self._log = _log_of(run_dir)
        self.feed = Feed(run_dir, rules=rules)
        self._counted = counted
        self._viewers: set[Mailbox] = set()
        self._lock = asyncio.Lock()  # the feed belongs to one thread at a time
        self._told_seq = 0  # lines that viewers know
        self._framed_seq = 0  # of the last frame
        self._view_at_s = 0.0
        self._is_new = False  # the log, and nobody was told
        self._task: asyncio.Task[None] | None = None
        self._someone_came = asyncio.Event()

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def start(self) -> None:
        """Again, if a log that could not be read has ended it."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name=f"follow {self.run_dir.name}")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever watches looks anew, and is told what is wrong with the log."""
        if not task.cancelled() and task.exception() is not None:
            for mailbox in self._viewers:
                mailbox.reset(self._told_seq)

    def _read(self) -> None:
        """What is new. A log that was written anew under this name is another run: all look anew."""
        log = _log_of(self.run_dir)
        if log is None:
            raise NoRunError(f"the folder of {self.run_dir.name} is gone", "look at another run")
        if self._log is not None and (not log.head.startswith(self._log.head) or log.size < self._log.size):
            self.feed = Feed(self.run_dir, rules=self._rules)
            self.feed.read()
            self._told_seq = self._framed_seq = self.feed.view.seq
            self._is_new = True
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
        return await self._look(lambda view: view.timeline(from_s, to_s, most=most))

    async def series(
        self, names: list[str] | None, from_s: float | None, to_s: float | None, points: int
    ) -> dict[str, Json]:
        return await self._look(lambda view: view.series(names, from_s=from_s, to_s=to_s, points=points))

    async def _look(self, ask: Callable[[RunView], dict[str, Json]]) -> dict[str, Json]:
        def look() -> dict[str, Json]:
            self._read()
            return ask(self.feed.view)

        async with self._lock:
            return await asyncio.to_thread(look)

    async def metrics(self) -> bytes:
        from paceline.monitoring.metrics.prometheus import exposition

        def look() -> bytes:
            self._read()
            return exposition(self.feed.view, self.feed.now_ns())

        async with self._lock:
            return await asyncio.to_thread(look)

    @asynccontextmanager
    async def viewer(self, last_seq: int | None) -> AsyncIterator[tuple[Mailbox, asyncio.Event]]:
        """A mailbox that gets everything from `last_seq` on, or at first a reset."""
        bell = asyncio.Event()
        mailbox = Mailbox(bell.set)
        async with self._lock:
            await asyncio.to_thread(self._catch_up, mailbox, last_seq)
            self._viewers.add(mailbox)
        self._someone_came.set()
        try:
            yield mailbox, bell
        finally:
            self._viewers.discard(mailbox)
            self._counted.dropped += mailbox.dropped

    def _snapshot(self) -> dict[str, Json]:
        self._read()
        return self._view()

    def _view(self) -> dict[str, Json]:
        view = self.feed.view
        found = view.snapshot(self.feed.now_ns())
        # Of a run that is over nothing changes any more, whenever one looks.
        return view.snapshot() if found["state"] in ("finished", "stopped", "failed") else found

    def _catch_up(self, mailbox: Mailbox, last_seq: int | None) -> None:
        """Whoever has seen something is told what it missed; the rest comes with the next tick."""
        if self._told_seq == 0 or not self._viewers:
            self._read()
            self._told_seq = self._framed_seq = self.feed.view.seq
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
                if self._is_new:
                    self._is_new = False
                    for mailbox in self._viewers:
                        mailbox.reset(self._told_seq)
                self._put(messages)
                if self._viewers and began_s - self._view_at_s >= self._view_every_s():
                    self._view_at_s = began_s
                    self._put([await asyncio.to_thread(self._whole)])  # after the frame, which is urgent
            wait_s = TICK_S if self._viewers else IDLE_S
            try:
                async with asyncio.timeout(max(0.005, wait_s - (monotonic_s() - began_s))):
                    await self._someone_came.wait()
            except TimeoutError:
                continue
            self._someone_came.clear()

    def _tick(self) -> list[Message]:
        self._read()
        if not self._viewers:
            return []
        # Somebody else, who asked for a snapshot, may have read the newest lines.
        messages = self._messages(self._told_seq, self._framed_seq)
        self._told_seq = self.feed.view.seq
        if any(message.kind is Kind.FRAME for message in messages):
            self._framed_seq = self._told_seq
            self._counted.delays.add(max(0.0, (self.feed.now_ns() - self.feed.view.last_ns) / 1e9))
        return messages

    def _whole(self) -> Message:
        return Message(Kind.VIEW, self._told_seq, _bytes(without_events(self._view())))

    def _view_every_s(self) -> float:
        """It grows with the workers; what moves fast is in the frames."""
        return VIEW_S if len(self.feed.view.track.workers) <= MANY_WORKERS else 2 * VIEW_S

    def _put(self, messages: list[Message]) -> None:
        self._counted.frames += len(messages)
        for message in messages:
            for mailbox in self._viewers:
                mailbox.put(message)

    def _messages(self, after: int, framed: int) -> list[Message]:
        """What the lines behind `after` said; `framed`: how far the frame before this one went."""
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
class _Log:
    head: bytes  # of its first line, which says when it began; numbers of files are used again
    size: int


def _log_of(run_dir: Path) -> _Log | None:
    """None: it is gone."""
    try:
        with (run_dir / LOG).open("rb") as file:
            return _Log(file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        return None


def without_events(view: dict[str, Json]) -> dict[str, Json]:
    """They travel one by one."""
    return {name: value for name, value in view.items() if name != "events"}


def _bytes(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

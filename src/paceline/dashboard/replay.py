"""Replay of a recorded run: the live view, computed from the log at a time that the viewer chooses.

A page that plays requests a stream from a time on, at a speed; a page that pauses closes it. The position is
state of the page: the server keeps none.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from paceline.core.clock import monotonic_s
from paceline.dashboard.stream import Kind, Message, without_events
from paceline.monitoring.alerts.rules import Rules
from paceline.monitoring.view.feed import Replay
from paceline.plan.codec import Json

FRAME_S = 0.1
VIEW_S = 0.5
SPEEDS = (0.1, 100.0)


class RecordedRun:
    """A finished recording: its view at any time."""

    def __init__(self, run_dir: Path, rules: Rules | None) -> None:
        self._run_dir = run_dir
        self._rules = rules
        self._replay: Replay | None = None
        self._lock = asyncio.Lock()

    async def snapshot(self, at_s: float | None) -> dict[str, Json]:
        """The view at `at_s`; None: at the end."""
        async with self._lock:
            return await asyncio.to_thread(self._at, at_s)

    async def timeline(self, at_s: float | None, from_s: float, to_s: float, most: int) -> dict[str, Json]:
        def query() -> dict[str, Json]:
            return self._seek(at_s).view.timeline(from_s, to_s, most=most)

        async with self._lock:
            return await asyncio.to_thread(query)

    async def series(
        self,
        at_s: float | None,
        names: list[str] | None,
        from_s: float | None,
        to_s: float | None,
        points: int,
    ) -> dict[str, Json]:
        def query() -> dict[str, Json]:
            return self._seek(at_s).view.series(names, from_s=from_s, to_s=to_s, points=points)

        async with self._lock:
            return await asyncio.to_thread(query)

    async def duration_s(self) -> float:
        async with self._lock:
            return await asyncio.to_thread(lambda: self._opened().duration_s)

    async def play(self, from_s: float, speed: float) -> AsyncIterator[Message]:
        """Everything after `from_s`, at this speed, until the end of the recording."""
        replay = await asyncio.to_thread(Replay, self._run_dir, rules=self._rules)
        await asyncio.to_thread(replay.seek, from_s)
        yield Message(Kind.RESET, replay.view.seq, b"{}")
        began_s = monotonic_s()
        view_at_s = 0.0
        seq = replay.view.seq
        at_s = from_s
        while at_s < replay.duration_s:
            at_s = min(replay.duration_s, from_s + (monotonic_s() - began_s) * speed)
            await asyncio.to_thread(replay.seek, at_s)
            for message in await asyncio.to_thread(_messages, replay, seq, at_s):
                yield message
            seq = replay.view.seq
            if monotonic_s() - view_at_s >= VIEW_S or at_s >= replay.duration_s:
                view_at_s = monotonic_s()
                view = await asyncio.to_thread(_view, replay, at_s)
                yield Message(Kind.VIEW, seq, _bytes(without_events(view)))
            await asyncio.sleep(FRAME_S)

    def _opened(self) -> Replay:
        if self._replay is None:
            self._replay = Replay(self._run_dir, rules=self._rules)
        return self._replay

    def _seek(self, at_s: float | None) -> Replay:
        replay = self._opened()
        replay.seek(replay.duration_s if at_s is None else min(at_s, replay.duration_s))
        return replay

    def _at(self, at_s: float | None) -> dict[str, Json]:
        replay = self._seek(at_s)
        return _view(replay, replay.duration_s if at_s is None else at_s)


def _view(replay: Replay, at_s: float) -> dict[str, Json]:
    view = replay.view
    if at_s >= replay.duration_s:
        return view.snapshot()
    return view.snapshot(view.t0_ns + round(at_s * 1e9))


def _messages(replay: Replay, after: int, at_s: float) -> list[Message]:
    view = replay.view
    messages = [
        Message(Kind.EVENT, int(str(event["seq"])), _bytes(event)) for event in view.events_since(after)
    ]
    if steps := view.steps_since(after):
        frame: dict[str, Json] = {"after": after, "seq": view.seq, "now_s": at_s, "steps": list(steps)}
        messages.append(Message(Kind.FRAME, view.seq, _bytes(frame)))
    return messages


def _bytes(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

"""Who forms generations? The leader, for runs that want it to: whenever workers came or went."""

import asyncio
from contextlib import suppress

from paceline.clock import monotonic_s
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.feed import TooOldError
from paceline.coordinator.shell.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.state.forming import Later, last_joined, next_generation

IDLE_S = 0.5  # a new leader looks at everything at least this often


class Former:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed = asyncio.Event()
        # Of each run the newest incarnation, and when it was first seen here.
        self._joins: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            while True:
                wait_s = await self._form_all() if self._node.raft.is_leader else IDLE_S
                # Not wait_for: on Python 3.11 it forgets that we were stopped if something changes just then.
                with suppress(TimeoutError):  # then it is time to look again
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                self._changed.clear()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                async for _ in self._node.feed.watch(self._node.applied):
                    self._changed.set()
            except TooOldError:
                self._changed.set()

    async def _form_all(self) -> float:
        """Form what is due; how long until something else may be."""
        wait_s, runs = IDLE_S, self._node.state.runs
        self._joins = {run: seen for run, seen in self._joins.items() if run in runs}
        for run, record in list(runs.items()):
            found = next_generation(record, self._waited_ms(run, last_joined(record)))
            if isinstance(found, Later):
                wait_s = min(wait_s, max(0.001, found.in_ms / 1000))
            elif found is not None:
                await self._propose(found)
        return wait_s

    def _waited_ms(self, run: str, newest: int) -> int:
        now_s = monotonic_s()
        incarnation, seen_s = self._joins.get(run, (0, now_s))
        if incarnation != newest:
            seen_s = now_s
        self._joins[run] = (newest, seen_s)
        return int((now_s - seen_s) * 1000)

    async def _propose(self, forming: pb.FormGeneration) -> None:
        try:
            # A refusal means that something changed meanwhile, and then we are woken again.
            await self._node.propose(pb.Command(form_generation=forming))
        except (NotLeaderError, TooBusyError):
            return

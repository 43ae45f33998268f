"""Change feed: the newest changes of the state, in log order, for watchers.

A watcher that falls behind the changes in memory, or whose node installed a snapshot instead of
applying entries, gets TooOldError and reads the state again. Orders are the few kinds of change
that every worker of a run must receive; they have an event of their own, so that thousands of
workers do not wake up when one of them joins.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from paceline.coordinator.proto import cluster_pb2 as pb

MAX_CHANGES = 10_000
ORDERS = frozenset({"run", "generation", "server", "action"})


class TooOldError(Exception):
    """Some changes after that index are no longer in memory."""


class ChangeFeed:
    def __init__(self) -> None:
        self._changes: deque[pb.Change] = deque(maxlen=MAX_CHANGES)
        self._forgotten = 0  # changes up to this index may be missing
        self._any_change = asyncio.Event()
        self._any_order = asyncio.Event()

    def restart(self, index: int) -> None:
        """The state up to this index was replaced at once (a snapshot), without single changes."""
        self._changes.clear()
        self._forgotten = index
        self.wake()

    def add(self, changes: Sequence[pb.Change]) -> None:
        for change in changes:
            if len(self._changes) == MAX_CHANGES:
                self._forgotten = self._changes[0].index
            self._changes.append(change)
        if changes:
            self._any_change = _wake_waiters(self._any_change)
        if any(change.WhichOneof("what") in ORDERS for change in changes):
            self._any_order = _wake_waiters(self._any_order)

    def wake(self) -> None:
        """Wake all watchers, for instance because this node lost leadership."""
        self._any_change = _wake_waiters(self._any_change)
        self._any_order = _wake_waiters(self._any_order)

    async def watch(
        self, after: int, run: str = "", *, only_orders: bool = False
    ) -> AsyncIterator[list[pb.Change]]:
        """All changes after this index, without end; an empty list after `wake`."""
        while True:
            event = self._any_order if only_orders else self._any_change
            if after < self._forgotten:
                raise TooOldError
            newer = self._newer_than(after)
            after = newer[-1].index if newer else after
            yield [change for change in newer if _concerns(change, run, only_orders)]
            await event.wait()

    def _newer_than(self, after: int) -> list[pb.Change]:
        newer: list[pb.Change] = []
        for change in reversed(self._changes):
            if change.index <= after:
                break
            newer.append(change)
        newer.reverse()
        return newer


def _concerns(change: pb.Change, run: str, only_orders: bool) -> bool:
    kind = change.WhichOneof("what")
    if kind is None or (only_orders and kind not in ORDERS):
        return False
    return not run or (kind not in ("node", "lighthouse") and getattr(change, kind).run == run)


def _wake_waiters(event: asyncio.Event) -> asyncio.Event:
    event.set()
    return asyncio.Event()

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
    """What came after that index is not all known here any more."""


class ChangeFeed:
    def __init__(self) -> None:
        self._changes: deque[pb.Change] = deque(maxlen=MAX_CHANGES)
        self._forgotten = 0  # changes up to this index may be missing
        self._all, self._orders = asyncio.Event(), asyncio.Event()

    def restart(self, index: int) -> None:
        """Everything up to this index was taken over at once, without its changes."""
        self._changes.clear()
        self._forgotten = index
        self.wake()

    def add(self, changes: Sequence[pb.Change]) -> None:
        for change in changes:
            if len(self._changes) == MAX_CHANGES:
                self._forgotten = self._changes[0].index
            self._changes.append(change)
        if changes:
            self._all = _woken(self._all)
        if any(change.WhichOneof("what") in ORDERS for change in changes):
            self._orders = _woken(self._orders)

    def wake(self) -> None:
        """Let everybody look up, for instance because this node does not lead any more."""
        self._all, self._orders = _woken(self._all), _woken(self._orders)

    async def watch(
        self, after: int, run: str = "", *, only_orders: bool = False
    ) -> AsyncIterator[list[pb.Change]]:
        """All changes behind this index, for ever; an empty list: somebody said `wake`."""
        while True:
            bell = self._orders if only_orders else self._all
            if after < self._forgotten:
                raise TooOldError
            behind = self._behind(after)
            after = behind[-1].index if behind else after
            yield [change for change in behind if _concerns(change, run, only_orders)]
            await bell.wait()

    def _behind(self, after: int) -> list[pb.Change]:
        found: list[pb.Change] = []
        for change in reversed(self._changes):
            if change.index <= after:
                break
            found.append(change)
        found.reverse()
        return found


def _concerns(change: pb.Change, run: str, only_orders: bool) -> bool:
    kind = change.WhichOneof("what")
    if kind is None or (only_orders and kind not in ORDERS):
        return False
    return not run or (kind not in ("node", "lighthouse") and getattr(change, kind).run == run)


def _woken(bell: asyncio.Event) -> asyncio.Event:
    bell.set()
    return asyncio.Event()

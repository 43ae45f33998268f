"""Whom does a node not hear for a while, because somebody wants to see what happens? An experiment's fault.

A cut is silence, not an error: messages between nodes are dropped, calls of others wait,
and what they said is heard, and answered, when it is mended. The node mends it
by its own clock, so it lasts no longer than was said, whatever became of who asked for it.
What is asked about the nodes themselves (service Nodes) always passes: else nobody could look.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from paceline.clock import monotonic_s
from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.shell.callers import ports_of

LONGEST_S = 300.0
_ALWAYS_HEARD = ("Nodes", "Raft")  # of the latter single messages are dropped, by their sender


@dataclass(slots=True)
class _Cut:
    nodes: frozenset[NodeId]
    pids: frozenset[int]
    others: bool  # all but those processes are cut off
    until_s: float
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    known: dict[str, bool] = field(default_factory=dict)  # by connection: is it cut?


class Cuts:
    def __init__(self, ports: Callable[[Collection[int]], set[int]] = ports_of) -> None:
        self._ports = ports
        self._cut: _Cut | None = None

    def cut(
        self, for_s: float, *, nodes: Collection[NodeId] = (), pids: Collection[int] = (), others: bool
    ) -> None:
        """From now on, in the place of what was cut before."""
        assert 0 < for_s <= LONGEST_S, "whoever asks is told"
        self.mend()
        cut = _Cut(frozenset(nodes), frozenset(pids), others, monotonic_s() + for_s)
        cut.timer = asyncio.get_running_loop().call_later(for_s, self._mend, cut)
        self._cut = cut

    def mend(self) -> None:
        if self._cut is not None:
            self._mend(self._cut)

    @property
    def are_some(self) -> bool:
        return self._cut is not None

    def left_s(self) -> float:
        """0: nothing is cut."""
        return 0.0 if self._cut is None else max(0.001, self._cut.until_s - monotonic_s())

    def drops(self, other: NodeId) -> bool:
        """Do no messages pass between this node and that one?"""
        return self._cut is not None and other in self._cut.nodes

    async def until_heard(self, peer: str, method: str) -> None:
        """A call from there goes on at once, or when what cuts it off is mended."""
        while (cut := self._cut) is not None and self._is_cut(cut, peer, method):
            await cut.is_over.wait()

    def _is_cut(self, cut: _Cut, peer: str, method: str) -> bool:
        if not (cut.pids or cut.others) or method.rpartition("/")[0].rpartition(".")[2] in _ALWAYS_HEARD:
            return False
        if peer not in cut.known:  # a connection stays its process's
            port = peer.rpartition(":")[2]
            is_named = port.isdecimal() and int(port) in self._ports(cut.pids)
            cut.known[peer] = is_named is not cut.others
        return cut.known[peer]

    def _mend(self, cut: _Cut) -> None:
        if cut.timer is not None:
            cut.timer.cancel()
        cut.is_over.set()
        if self._cut is cut:
            self._cut = None

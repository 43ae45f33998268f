"""Membership history: the voters and learners that hold as of each entry of the log.

A node uses the newest membership in its log, committed or not (4.1); when such
an entry is overwritten, the one before it holds again. Changing one voter at a
time makes any two majorities overlap, so no joint phase is needed.
"""

import json

from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.types import Index, Membership, NodeId


class Memberships:
    def __init__(self, log: RaftLog) -> None:
        self._base = log.snapshot.membership
        self._newer = [(index, decode(data)) for index, data in log.memberships()]
        self.latest = self._newer[-1][1] if self._newer else self._base

    def add(self, index: Index, data: bytes) -> None:
        self._newer.append((index, decode(data)))
        self.latest = self._newer[-1][1]

    def cut(self, first: Index) -> None:
        """The log was cut off from here on."""
        self._newer = [(index, membership) for index, membership in self._newer if index < first]
        self.latest = self._newer[-1][1] if self._newer else self._base

    def at(self, index: Index) -> Membership:
        """The one that holds at an entry, for a snapshot that ends there."""
        latest = self._base
        for start, membership in self._newer:
            if start <= index:
                latest = membership
        return latest

    def since(self, index: Index) -> list[Membership]:
        """The one that holds at an entry, and all that follow it."""
        return [self.at(index), *(membership for start, membership in self._newer if start > index)]

    def compact(self, index: Index) -> None:
        self._base = self.at(index)
        self._newer = [(start, membership) for start, membership in self._newer if start > index]

    def restore(self, membership: Membership) -> None:
        self._base = self.latest = membership
        self._newer = []


def encode(membership: Membership) -> bytes:
    document = {"voters": sorted(membership.voters), "learners": sorted(membership.learners)}
    return json.dumps(document).encode()


def decode(data: bytes) -> Membership:
    """ValueError: this is none."""
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("a membership is not nested so deeply") from error
    if not isinstance(document, dict) or document.keys() != {"voters", "learners"}:
        raise ValueError("a membership has voters and learners")
    return Membership(_nodes(document["voters"]), _nodes(document["learners"]))


def _nodes(value: object) -> frozenset[NodeId]:
    if not isinstance(value, list) or not all(isinstance(node, int) for node in value):
        raise ValueError("nodes are whole numbers")
    return frozenset(NodeId(node) for node in value)


def is_one_step(old: Membership, new: Membership) -> bool:
    """Whether one change leads from `old` to `new`: at most one voter more or fewer (4.1)."""
    return len(old.voters ^ new.voters) <= 1 and bool(new.voters) and not new.voters & new.learners

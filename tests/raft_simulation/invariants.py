"""What must hold after every event? The safety properties of the paper's figure 3, checked as they arise."""

from dataclasses import dataclass, field

from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.types import Entry, Index, NodeId, Term


class ViolationError(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Invariants:
    leaders: dict[Term, NodeId] = field(default_factory=dict)
    entries: dict[tuple[Index, Term], tuple[bytes, Term]] = field(default_factory=dict)
    committed: dict[Index, tuple[Term, bytes]] = field(default_factory=dict)
    acknowledged: int = 0  # the largest index that a client was told of

    def check_leader(self, raft: Raft) -> None:
        """Election safety: at most one leader in a term."""
        known = self.leaders.setdefault(raft.term, raft.me)
        if known != raft.me:
            raise ViolationError(f"two leaders in term {raft.term}: {known} and {raft.me}")

    def check_new_leader(self, raft: Raft) -> None:
        """Leader completeness: it has all that is committed."""
        for index, (term, _) in self.committed.items():
            if index > raft.log.snapshot.index and raft.log.term(index) != term:
                raise ViolationError(
                    f"leader {raft.me} of term {raft.term} lacks entry {index}, committed in term {term}"
                )

    def check_entries(self, entries: list[Entry], raft: Raft) -> None:
        """Log matching: the same index and term mean the same entry, and the same one before it."""
        for entry in entries:
            before = raft.log.term(Index(entry.index - 1))
            known = self.entries.get((entry.index, entry.term))
            if known is None:
                self.entries[entry.index, entry.term] = entry.data, before or Term(0)
            elif known[0] != entry.data or (before is not None and known[1] != before):
                raise ViolationError(f"two entries {entry.index} of term {entry.term} differ")

    def check_applied(self, node: NodeId, entry: Entry) -> None:
        """State machine safety: nobody applies another entry at an index."""
        known = self.committed.setdefault(entry.index, (entry.term, entry.data))
        if known != (entry.term, entry.data):
            raise ViolationError(f"node {node} applied another entry at {entry.index}")

    def check_read(self, index: Index, floor: int) -> None:
        """A read sees all that was acknowledged before it was asked."""
        if index < floor:
            raise ViolationError(f"a read at {index} misses the acknowledged entry {floor}")

"""What is left on a node's disk after a crash? What was synced, and perhaps some of what was not.

Records are appended in order. A crash keeps the synced ones and any number of
those after them; one that was torn in the middle does not count, as its
checksum fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.types import Entry, HardState, Snapshot, Term


@dataclass(frozen=True, slots=True)
class Compacted:
    """Our own snapshot: the log up to it is dropped."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Installed:
    """A leader's snapshot: it takes the place of the whole log."""

    snapshot: Snapshot


Record = HardState | Compacted | Installed | tuple[Entry, ...]


@dataclass(slots=True)
class Disk:
    first: Snapshot
    records: list[Record] = field(default_factory=list)
    synced: int = 0

    def write(self, record: Record) -> None:
        self.records.append(record)

    def sync(self) -> None:
        self.synced = len(self.records)

    def crash(self, dice: Callable[[int], int]) -> None:
        kept = self.synced + dice(len(self.records) - self.synced + 1)
        del self.records[kept:]
        self.synced = kept

    def read(self) -> tuple[HardState, RaftLog]:
        hard_state, snapshot, entries = HardState(Term(0), None), self.first, list[Entry]()
        for record in self.records:
            if isinstance(record, HardState):
                hard_state = record
            elif isinstance(record, Installed):
                snapshot, entries = record.snapshot, []
            elif isinstance(record, Compacted):
                snapshot = record.snapshot
                entries = [e for e in entries if e.index > snapshot.index]
            else:
                entries = [e for e in entries if e.index < record[0].index]
                entries += [e for e in record if e.index > snapshot.index]
        return hard_state, RaftLog(snapshot, entries)

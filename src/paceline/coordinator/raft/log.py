"""The Raft log in memory, with its stable, commit and applied indexes.

Indexes count from 1. Entries up to the snapshot's index are no longer in the list. `stable` is
the last index on disk; only stable entries are acknowledged, counted or applied. The server
writes the copy on disk (server/storage.py).
"""

from collections.abc import Sequence

from paceline.coordinator.raft.types import Entry, EntryKind, Index, Membership, Snapshot, Term


class RaftLog:
    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        self.snapshot = snapshot
        self._entries: list[Entry] = list(entries)
        self.stable = self.last_index
        self.commit: Index = snapshot.index
        self.applied: Index = snapshot.index  # returned for applying

    @property
    def last_index(self) -> Index:
        return Index(self.snapshot.index + len(self._entries))

    @property
    def last_term(self) -> Term:
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term(self, index: Index) -> Term | None:
        """The term of the entry there; None when it is compacted away or not there yet."""
        place = index - self.snapshot.index
        if place == 0:
            return self.snapshot.term
        return self._entries[place - 1].term if 0 < place <= len(self._entries) else None

    def matches(self, index: Index, term: Term) -> bool:
        return self.term(index) == term

    def is_up_to_date(self, index: Index, term: Term) -> bool:
        """Whether a log with this last entry is at least as up to date as this one (paper 5.4.1)."""
        return term > self.last_term or (term == self.last_term and index >= self.last_index)

    def slice(self, first: Index, limit_bytes: int) -> tuple[Entry, ...]:
        """Entries from `first` on, up to about `limit_bytes`, but at least one if any exists."""
        start = first - self.snapshot.index - 1
        size = 0
        end = start
        while end < len(self._entries):
            size += len(self._entries[end].data) + 16
            if end > start and size > limit_bytes:
                break
            end += 1
        return tuple(self._entries[start:end])

    def between(self, first: Index, last: Index) -> list[Entry]:
        base = self.snapshot.index + 1
        return self._entries[first - base : last - base + 1]

    def append(self, term: Term, kind: EntryKind, data: bytes) -> Entry:
        entry = Entry(Index(self.last_index + 1), term, kind, data)
        self._entries.append(entry)
        return entry

    def overwrite(self, entries: Sequence[Entry]) -> Index | None:
        """Take over what a leader sent; the first index that was cut off, if any was.

        What we already have stays: a delayed message must not shorten the log (paper figure 2).
        """
        for number, entry in enumerate(entries):
            if self.term(entry.index) == entry.term:
                continue
            cut = entry.index if entry.index <= self.last_index else None
            assert entry.index > self.commit, f"entry {entry.index} is committed and cannot be replaced"
            del self._entries[entry.index - self.snapshot.index - 1 :]
            self._entries.extend(entries[number:])
            self.stable = min(self.stable, Index(entry.index - 1))
            return cut
        return None

    def unstable(self) -> list[Entry]:
        return self._entries[self.stable - self.snapshot.index :]

    def persisted(self, index: Index, term: Term) -> None:
        """The disk has everything up to this entry, unless it has been replaced since."""
        if index > self.stable and self.matches(index, term):
            self.stable = index

    def disagreement(self, index: Index, term: Term) -> tuple[Index, Term]:
        """The last place at or before `index` where a leader with an entry of `term` there may agree."""
        place = min(index, self.last_index)
        while place > self.snapshot.index and (self.term(place) or 0) > term:
            place = Index(place - 1)
        return place, self.term(place) or Term(0)

    def to_apply(self) -> list[Entry]:
        end = min(self.commit, self.stable)
        if end <= self.applied:
            return []
        entries = self.between(Index(self.applied + 1), end)
        self.applied = end
        return entries

    def compact(self, snapshot: Snapshot) -> None:
        """Forget the log up to the snapshot of what was applied."""
        assert snapshot.index <= self.applied, "only what was applied can be in a snapshot"
        if snapshot.index > self.snapshot.index:
            del self._entries[: snapshot.index - self.snapshot.index]
            self.snapshot = snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Another node's snapshot takes the place of everything."""
        self.snapshot = snapshot
        self._entries = []
        self.stable = self.commit = self.applied = snapshot.index

    def memberships(self) -> list[tuple[Index, bytes]]:
        return [(e.index, e.data) for e in self._entries if e.kind is EntryKind.MEMBERSHIP]


def empty_snapshot(membership: Membership) -> Snapshot:
    """Initial snapshot of a new coordinator group."""
    return Snapshot(Index(0), Term(0), membership, b"")

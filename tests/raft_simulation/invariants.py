"""Invariants: the properties of the Raft paper, figure 3, and that no acknowledged write is lost."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.membership import decode
from paceline.coordinator.raft.types import (
    NO_TERM,
    NOWHERE,
    Entry,
    EntryKind,
    Index,
    Kind,
    Message,
    NodeId,
    Snapshot,
    Term,
)


class ViolationError(AssertionError):
    """Something that must never happen has happened."""


@dataclass(frozen=True, slots=True)
class Committed:
    entry: Entry
    known_in: Term  # of the node that was the first to know: every later leader must have it


@dataclass(slots=True)
class Invariants:
    leaders: dict[Term, NodeId] = field(default_factory=dict)
    entries: dict[tuple[Index, Term], tuple[Entry, Term]] = field(default_factory=dict)
    committed: dict[Index, Committed] = field(default_factory=dict)
    acknowledged: dict[Index, Term] = field(default_factory=dict)  # what a client was told to be safe
    snapshots: dict[Index, Snapshot] = field(default_factory=dict)
    newest_acknowledged: Index = NOWHERE
    _known: dict[NodeId, Index] = field(default_factory=dict)  # each node's commit index when last looked at
    _promised: dict[NodeId, tuple[Term, Index]] = field(default_factory=dict)  # acknowledged up to here
    _led: dict[NodeId, tuple[Term, Index]] = field(default_factory=dict)  # the last look at each leader

    def check(self, raft: Raft, written: Iterable[Entry], leaders: Iterable[Raft]) -> None:
        """One node has just done something; `written` is what is new in its log."""
        written = list(written)
        if written:
            self.check_entries(raft, written, are_seen=False)
            self.check_membership(raft)
        if raft.is_leader:
            self.check_leader(raft)
            self.check_beliefs(raft)
        self.check_promise(raft)
        if raft.log.commit > self._known.get(raft.me, NOWHERE):
            self.check_commit(raft, leaders)

    def restarted(self, raft: Raft) -> None:
        """It has only what its disk remembers."""
        log = raft.log
        self._known[raft.me] = log.commit
        self._led.pop(raft.me, None)
        self.check_entries(raft, log.between(Index(log.snapshot.index + 1), log.last_index), are_seen=True)
        self.check_snapshot(log.snapshot)
        self.check_promise(raft)

    def check_leader(self, raft: Raft) -> None:
        """Leader append-only: it never drops an entry. And what a new one must have."""
        if raft.log.term(raft.log.commit) == raft.term:
            self.check_election(raft.term, raft.me)
        term, last = self._led.get(raft.me, (NO_TERM, NOWHERE))
        if term != raft.term:
            self.check_new_leader(raft)
        elif raft.log.last_index < last:
            raise ViolationError(f"leader {raft.me} of term {raft.term} dropped its entry {last}")
        self._led[raft.me] = raft.term, raft.log.last_index

    def check_election(self, term: Term, leader: NodeId) -> None:
        """Election safety: at most one leader in a term.

        A leader counts once it can be observed, by its messages or commits. A node that needs no other node's
        vote may crash before its disk knows that it was elected: then it never was.
        """
        known = self.leaders.setdefault(term, leader)
        if known != leader:
            raise ViolationError(f"two leaders in term {term}: {known} and {leader}")

    def check_beliefs(self, raft: Raft) -> None:
        """A leader does not believe that others have what it never sent them since it was elected."""
        for node, progress in raft.progress().items():
            if progress.round > raft.round or progress.match > raft.log.last_index:
                raise ViolationError(
                    f"leader {raft.me} of term {raft.term} believes that {node} has {progress.match} and"
                    f" heard sign of life {progress.round}; it sent {raft.log.last_index} and {raft.round}"
                )

    def check_new_leader(self, raft: Raft) -> None:
        """Leader completeness: it has all that an earlier leader has committed."""
        for index, result in self.committed.items():
            if result.known_in < raft.term and index > raft.log.snapshot.index:
                self._check_has(raft, result)

    def check_entries(self, raft: Raft, entries: Iterable[Entry], *, are_seen: bool) -> None:
        """Log matching: the same index and term mean the same entry, and the same one before it.

        Entries count as seen once they were sent or written: one that only a node that has crashed since knew
        of was never there.
        """
        for entry in entries:
            is_there = raft.log.term(entry.index) == entry.term  # it may have been replaced since
            before = raft.log.term(Index(entry.index - 1)) if is_there else None
            self._check_entry(entry, before, are_seen=are_seen)

    def check_sent(self, message: Message) -> None:
        if message.kind in (Kind.APPEND, Kind.SNAPSHOT):
            self.check_election(message.term, message.sender)
        if message.kind is Kind.APPEND_REPLY and not message.rejected:
            term, index = self._promised.get(message.sender, (NO_TERM, NOWHERE))
            newest = max(index, message.index) if term == message.term else message.index
            self._promised[message.sender] = message.term, newest
        before = message.log_term
        for entry in message.entries:
            self._check_entry(entry, before, are_seen=True)
            before = entry.term

    def _check_entry(self, entry: Entry, before: Term | None, *, are_seen: bool) -> None:
        known = self.entries.get((entry.index, entry.term))
        if known is None:
            if are_seen and before is not None:
                self.entries[entry.index, entry.term] = entry, before
        elif known[0] != entry or (before is not None and known[1] != before):
            raise ViolationError(f"two entries {entry.index} of term {entry.term} differ")

    def check_promise(self, raft: Raft) -> None:
        """What a node has acknowledged it keeps for the rest of the term, also across a crash."""
        term, index = self._promised.get(raft.me, (NO_TERM, NOWHERE))
        if raft.term < term or (raft.term == term and raft.log.last_index < index):
            raise ViolationError(f"node {raft.me} forgot what it acknowledged: {index} in term {term}")

    def check_commit(self, raft: Raft, leaders: Iterable[Raft]) -> None:
        """State machine safety: no node ever considers another entry committed at an index."""
        log = raft.log
        first = max(self._known.get(raft.me, NOWHERE), log.snapshot.index) + 1
        for entry in log.between(Index(first), log.commit):
            known = self.committed.get(entry.index)
            if known is None:
                known = self.committed[entry.index] = Committed(entry, raft.term)
                for leader in leaders:
                    if leader.term > raft.term and entry.index > leader.log.snapshot.index:
                        self._check_has(leader, known)
            if known.entry != entry:
                raise ViolationError(f"node {raft.me} committed another entry at {entry.index}")
        self._known[raft.me] = log.commit

    def check_applied(self, node: NodeId, entry: Entry) -> None:
        """State machine safety: what is applied is what was committed there."""
        known = self.committed.get(entry.index)
        if known is None or known.entry != entry:
            raise ViolationError(f"node {node} applied another entry at {entry.index}")

    def check_membership(self, raft: Raft) -> None:
        """The newest membership in the log holds, committed or not, and no other one (4.1)."""
        in_log = raft.log.memberships()
        expected = decode(in_log[-1][1]) if in_log else raft.log.snapshot.membership
        if raft.membership != expected:
            raise ViolationError(f"node {raft.me} uses a membership that is not the newest in its log")

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Who takes a snapshot at an index takes the same one, and it ends where the log was committed."""
        known = self.snapshots.setdefault(snapshot.index, snapshot)
        if known != snapshot:
            raise ViolationError(f"two snapshots at {snapshot.index} differ")
        committed = self.committed.get(snapshot.index)
        if committed is not None and committed.entry.term != snapshot.term:
            raise ViolationError(f"the snapshot at {snapshot.index} ends with an entry that is not committed")

    def check_read(self, index: Index, floor: Index) -> None:
        """A read sees all that was acknowledged before it was asked."""
        if index < floor:
            raise ViolationError(f"a read at {index} misses the acknowledged entry {floor}")

    def acknowledge(self, index: Index, term: Term) -> None:
        self.acknowledged[index] = term
        self.newest_acknowledged = max(self.newest_acknowledged, index)

    def check_nothing_lost(self, raft: Raft) -> None:
        """A leader of the newest term has every write that a client was told to be safe."""
        for index, term in self.acknowledged.items():
            result = self.committed.get(index)
            is_kept = result is not None and result.entry.term == term
            is_there = index <= raft.log.snapshot.index or raft.log.term(index) == term
            if not (is_kept and is_there):
                raise ViolationError(f"the acknowledged write {index} of term {term} is lost")

    def replayed(self, end: Index) -> dict[str, str]:
        """The state that one machine would be in, having applied all that was committed up to here."""
        state: dict[str, str] = {}
        for index in range(1, end + 1):
            entry = self.committed[Index(index)].entry
            if entry.kind is EntryKind.COMMAND:
                apply(state, entry)
        return state

    def _check_has(self, leader: Raft, committed: Committed) -> None:
        entry = committed.entry
        if leader.log.term(entry.index) != entry.term:
            reported = ", which a client was told to be safe" if entry.index in self.acknowledged else ""
            raise ViolationError(
                f"leader {leader.me} of term {leader.term} lacks entry {entry.index} of term {entry.term},"
                f" committed in term {committed.known_in}{reported}"
            )


def apply(state: dict[str, str], entry: Entry) -> None:
    """The clients' registers: `key=value` sets one."""
    key, _, value = entry.data.decode().partition("=")
    state[key] = value

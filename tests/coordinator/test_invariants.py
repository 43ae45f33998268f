"""Each property that the simulation checks can fail: one broken world for each."""

from collections.abc import Sequence

from tests.fixtures.wording import Wording
from tests.raft_simulation.invariants import Committed, Invariants, ViolationError

from paceline.coordinator.raft.core import Raft, Role
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.membership import encode
from paceline.coordinator.raft.progress import Progress
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Kind,
    Membership,
    Message,
    NodeId,
    Snapshot,
    Term,
)

THREE = Membership(frozenset({NodeId(1), NodeId(2), NodeId(3)}))
TWO = Membership(frozenset({NodeId(1), NodeId(2)}))


def entry(index: int, term: int, data: bytes = b"a=1") -> Entry:
    return Entry(Index(index), Term(term), EntryKind.COMMAND, data)


def node(me: int, term: int, entries: Sequence[Entry] = (), *, leads: bool = False, commit: int = 0) -> Raft:
    log = RaftLog(empty_snapshot(THREE), entries)
    log.commit = Index(commit)
    raft = Raft(NodeId(me), HardState(Term(term), None), log, randrange=lambda _: 0)
    raft.role = Role.LEADER if leads else Role.FOLLOWER
    return raft


def test_one_leader_in_a_term(wording: Wording) -> None:
    checks = Invariants()
    checks.check_sent(Message(Kind.APPEND, NodeId(1), NodeId(3), Term(3)))
    checks.check_sent(Message(Kind.APPEND, NodeId(2), NodeId(3), Term(4)))
    with wording.raises(ViolationError):
        checks.check_sent(Message(Kind.SNAPSHOT, NodeId(2), NodeId(3), Term(3)))
    with wording.raises(ViolationError):
        checks.check(node(2, 3, [entry(1, 3)], leads=True, commit=1), (), ())


def test_a_leadership_that_sent_no_message_does_not_count() -> None:
    checks = Invariants()
    checks.check(node(1, 3, leads=True), (), ())
    checks.check_sent(Message(Kind.APPEND, NodeId(2), NodeId(3), Term(3)))


def test_a_leader_never_drops_an_entry(wording: Wording) -> None:
    checks = Invariants()
    checks.check(node(1, 3, [entry(1, 3)], leads=True), (), ())
    with wording.raises(ViolationError):
        checks.check(node(1, 3, leads=True), (), ())


def test_a_leader_rejects_impossible_messages(wording: Wording) -> None:
    for wrong in (Progress(next=Index(5), match=Index(4)), Progress(next=Index(1), round=1)):
        raft = node(1, 1)
        raft._campaign(Role.CANDIDATE)
        raft._become_leader()
        Invariants().check(raft, (), ())
        raft.progress()[NodeId(2)] = wrong
        with wording.raises(ViolationError):
            Invariants().check(raft, (), ())


def test_the_same_index_and_term_mean_the_same_entry(wording: Wording) -> None:
    checks = Invariants()
    checks.check_entries(node(1, 1, [entry(1, 1)]), [entry(1, 1)], are_seen=True)
    other = entry(1, 1, b"a=2")
    with wording.raises(ViolationError):
        checks.check(node(2, 1, [other]), [other], ())


def test_the_same_entry_has_the_same_one_before_it(wording: Wording) -> None:
    checks = Invariants()
    checks.check_entries(node(1, 2, [entry(1, 1), entry(2, 2)]), [entry(2, 2)], are_seen=True)
    with wording.raises(ViolationError):
        checks.check(node(2, 2, [entry(1, 2), entry(2, 2)]), [entry(2, 2)], ())


def test_what_was_sent_counts_as_seen(wording: Wording) -> None:
    checks = Invariants()
    sent = Message(Kind.APPEND, NodeId(1), NodeId(2), Term(1), entries=(entry(1, 1),))
    checks.check_sent(sent)
    with wording.raises(ViolationError):
        checks.restarted(node(1, 1, [entry(1, 1, b"a=2")]))


def test_a_later_leader_has_all_that_was_committed(wording: Wording) -> None:
    checks = Invariants()
    checks.check(node(1, 1, [entry(1, 1)], leads=True, commit=1), (), ())
    with wording.raises(ViolationError):
        checks.check(node(2, 2, [entry(1, 2)], leads=True), (), ())


def test_a_leader_whose_votes_came_late_may_lack_what_a_newer_one_has_committed() -> None:
    checks = Invariants()
    checks.check(node(1, 3, [entry(1, 3)], leads=True, commit=1), (), ())
    checks.check(node(2, 2, leads=True), (), ())


def test_what_is_committed_later_must_be_in_the_log_of_a_leader_that_is_already_there(
    wording: Wording,
) -> None:
    checks = Invariants()
    newer = node(2, 2, [entry(1, 2)], leads=True)
    checks.check(newer, (), ())
    with wording.raises(ViolationError):
        checks.check(node(1, 1, [entry(1, 1)], leads=True, commit=1), (), [newer])


def test_no_node_commits_another_entry_at_an_index(wording: Wording) -> None:
    checks = Invariants()
    checks.check(node(1, 1, [entry(1, 1)], commit=1), (), ())
    with wording.raises(ViolationError):
        checks.check(node(2, 2, [entry(1, 2)], commit=1), (), ())


def test_no_node_applies_an_uncommitted_entry(wording: Wording) -> None:
    checks = Invariants(committed={Index(1): Committed(entry(1, 1), Term(1))})
    checks.check_applied(NodeId(1), entry(1, 1))
    for wrong in (entry(1, 2), entry(1, 1, b"a=2"), entry(2, 1)):
        with wording.raises(ViolationError):
            checks.check_applied(NodeId(1), wrong)


def test_an_acknowledged_write_is_never_lost(wording: Wording) -> None:
    checks = Invariants(committed={Index(1): Committed(entry(1, 1), Term(1))})
    checks.acknowledge(Index(1), Term(1))
    checks.check_nothing_lost(node(1, 2, [entry(1, 1)]))
    with wording.raises(ViolationError):
        checks.check_nothing_lost(node(1, 2, []))
    with wording.raises(ViolationError):
        checks.check(node(2, 2, leads=True), (), ())


def test_a_node_keeps_what_it_acknowledged(wording: Wording) -> None:
    checks = Invariants()
    message = Message(Kind.APPEND_REPLY, NodeId(2), NodeId(1), Term(2), index=Index(1))
    checks.check_sent(message)
    checks.check(node(2, 2, [entry(1, 1)]), (), ())
    checks.check(node(2, 3), (), ())  # in a later term another leader may have replaced it
    for forgetful in (node(2, 2), node(2, 1, [entry(1, 1)])):
        with wording.raises(ViolationError):
            checks.restarted(forgetful)


def test_a_read_sees_all_that_was_acknowledged_before_it(wording: Wording) -> None:
    checks = Invariants()
    checks.check_read(Index(5), Index(5))
    with wording.raises(ViolationError):
        checks.check_read(Index(4), Index(5))


def test_the_newest_membership_in_the_log_holds(wording: Wording) -> None:
    change = Entry(Index(1), Term(1), EntryKind.MEMBERSHIP, encode(TWO))
    raft = node(1, 1, [change])
    Invariants().check(raft, [change], ())
    raft.log.overwrite([entry(1, 2)])
    with wording.raises(ViolationError):
        Invariants().check(raft, [entry(1, 2)], ())


def test_two_snapshots_at_one_index_are_the_same_and_end_where_the_log_was_committed(
    wording: Wording,
) -> None:
    checks = Invariants(committed={Index(5): Committed(entry(5, 1), Term(1))})
    checks.check_snapshot(Snapshot(Index(5), Term(1), THREE, b"{}"))
    for other in (Snapshot(Index(5), Term(1), TWO, b"{}"), Snapshot(Index(5), Term(1), THREE, b"")):
        with wording.raises(ViolationError):
            checks.check_snapshot(other)
    with wording.raises(ViolationError):
        Invariants(committed=checks.committed).check_snapshot(Snapshot(Index(5), Term(2), THREE, b""))

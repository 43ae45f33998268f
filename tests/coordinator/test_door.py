"""Message validation, replacement of a departed leader, and retransmission of a lost log tail."""

import pytest

from paceline.coordinator.raft.core import Raft, Role, Timing
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.membership import decode
from paceline.coordinator.raft.progress import Progress, Sending
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Kind,
    Membership,
    Message,
    NodeId,
    Term,
)
from paceline.coordinator.raft.validate import MOST_TERMS, why_impossible, why_malformed

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
THREE = Membership(frozenset({ME, OTHER, THIRD}))
LONGEST = Timing().election * 2


def follower(leader: NodeId, wait: int) -> Raft:
    """Of this leader in term 1; would wait `wait` ticks longer than it must."""
    raft = Raft(ME, HardState(Term(1), None), RaftLog(empty_snapshot(THREE)), randrange=lambda _: wait)
    raft.step(Message(Kind.APPEND, leader, ME, Term(1)))
    return raft


def ticks_until_it_asks(raft: Raft) -> int:
    for number in range(1, LONGEST + 1):
        raft.tick()
        if raft.role is not Role.FOLLOWER:
            return number
    raise AssertionError("it never asks")


@pytest.mark.parametrize("wait", [0, 1, 5, 9])
def test_a_broken_connection_of_the_leader_saves_the_first_half_of_the_wait(wait: int) -> None:
    assert ticks_until_it_asks(follower(OTHER, wait)) == 10 + wait
    raft = follower(OTHER, wait)
    raft.lost_touch(OTHER)
    assert ticks_until_it_asks(raft) == max(1, wait)


def test_a_broken_connection_of_another_peer_changes_nothing() -> None:
    raft = follower(OTHER, 5)
    raft.lost_touch(THIRD)
    assert ticks_until_it_asks(raft) == 15


def test_a_leader_that_is_reachable_again_is_followed() -> None:
    raft = follower(OTHER, 5)
    raft.lost_touch(OTHER)
    raft.step(Message(Kind.APPEND, OTHER, ME, Term(1)))
    assert ticks_until_it_asks(raft) == 15


def test_a_node_in_contact_with_the_leader_refuses_a_candidate_without_it() -> None:
    raft = follower(OTHER, 5)
    raft.ready()
    raft.step(Message(Kind.PRE_VOTE, THIRD, ME, Term(2)))
    assert raft.ready().messages == []
    raft.lost_touch(OTHER)
    raft.step(Message(Kind.PRE_VOTE, THIRD, ME, Term(2)))
    assert [(m.kind, m.rejected) for m in raft.ready().messages] == [(Kind.PRE_VOTE_REPLY, False)]


def test_a_follower_that_lost_what_it_acknowledged_gets_it_again() -> None:
    progress = Progress(next=Index(11), match=Index(10), sending=Sending.REPLICATE)
    assert not progress.rejected(Index(7), Index(3))  # an old answer
    assert progress.rejected(Index(10), Index(8))
    assert (progress.next, progress.sending) == (9, Sending.PROBE)
    progress.acknowledged(Index(10))
    assert (progress.next, progress.sending) == (11, Sending.REPLICATE)


IMPOSSIBLE = [
    Message(Kind.APPEND, THIRD, ME, Term(1)),
    Message(Kind.SNAPSHOT, THIRD, ME, Term(1)),
    Message(Kind.TIMEOUT_NOW, THIRD, ME, Term(1)),
    Message(Kind.VOTE, THIRD, ME, Term(2 + MOST_TERMS)),
]


@pytest.mark.parametrize("message", IMPOSSIBLE, ids=lambda m: m.kind.name)
def test_what_cannot_be_is_not_let_in(message: Message) -> None:
    assert why_impossible(follower(OTHER, 5), message) is not None


def test_a_message_of_the_leader_is_accepted() -> None:
    raft = follower(OTHER, 5)
    for kind in (Kind.APPEND, Kind.TIMEOUT_NOW):
        assert why_impossible(raft, Message(kind, OTHER, ME, Term(1))) is None
    assert why_impossible(raft, Message(Kind.APPEND, THIRD, ME, Term(2))) is None


def append(*entries: Entry, log_term: int = 2) -> Message:
    return Message(Kind.APPEND, OTHER, ME, Term(3), Index(4), Term(log_term), entries)


def entry(index: int, term: int, kind: EntryKind = EntryKind.COMMAND, data: bytes = b"") -> Entry:
    return Entry(Index(index), Term(term), kind, data)


MALFORMED = {
    "a gap": append(entry(6, 3)),
    "an older term after a newer one": append(entry(5, 3), entry(6, 2)),
    "a term that is not there yet": append(entry(5, 4)),
    "a log that is ahead of its term": append(log_term=4),
    "no membership": append(entry(5, 3, EntryKind.MEMBERSHIP, b"{}")),
    "an empty membership": append(entry(5, 3, EntryKind.MEMBERSHIP, b'{"voters": [], "learners": []}')),
    "entries in a vote": Message(Kind.VOTE, OTHER, ME, Term(3), entries=(entry(1, 1),)),
    "without a sender": Message(Kind.VOTE, NodeId(0), ME, Term(3)),
    "a number beyond all numbers": Message(Kind.APPEND_REPLY, OTHER, ME, Term(3), Index(1 << 63)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_message_that_no_node_sends_is_malformed(name: str) -> None:
    assert why_malformed(MALFORMED[name]) is not None


def test_messages_of_nodes_are_well_formed() -> None:
    assert why_malformed(append(entry(5, 2), entry(6, 3))) is None


@pytest.mark.parametrize("data", [b"", b"[1]", b"[" * 100_000, b'{"voters": 3, "learners": []}', b"\xff\xfe"])
def test_a_membership_that_is_none_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever
        decode(data)

"""Properties of a single Raft node that a whole cluster seldom shows."""

from paceline.coordinator.raft.core import Raft, Role
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.progress import MOST_IN_FLIGHT, Progress, Sending
from paceline.coordinator.raft.types import HardState, Index, Kind, Membership, Message, NodeId, Term

ME = NodeId(1)


def alone_with_a_learner() -> Raft:
    membership = Membership(frozenset({ME}), frozenset({NodeId(2)}))
    log = RaftLog(empty_snapshot(membership))
    raft = Raft(ME, HardState(Term(0), None), log, randrange=lambda _: 0)
    while not raft.is_leader:
        raft.tick()
    return raft


def test_a_lone_voter_sends_nothing_in_a_term_before_its_disk_has_it() -> None:
    """Or it could lead the same term twice, with other entries, after a crash."""
    raft = alone_with_a_learner()
    ready = raft.ready()
    assert ready.hard_state == HardState(Term(1), ME)
    assert ready.early == []
    assert [message.kind for message in ready.messages] == [Kind.APPEND]
    raft.propose(b"x=1")
    assert raft.ready().early == []  # asked again before the disk is done
    raft.persisted(ready.entries[-1].index, ready.entries[-1].term)
    raft.step(Message(Kind.APPEND_REPLY, NodeId(2), ME, Term(1), index=Index(1)))
    raft.propose(b"x=2")
    assert [message.kind for message in raft.ready().early] == [Kind.APPEND]


def test_a_leader_that_others_voted_for_sends_early() -> None:
    log = RaftLog(empty_snapshot(Membership(frozenset(NodeId(n) for n in (1, 2, 3)))))
    raft = Raft(ME, HardState(Term(0), None), log, randrange=lambda _: 0)
    while raft.role is not Role.PRE_CANDIDATE:
        raft.tick()
    raft.step(Message(Kind.PRE_VOTE_REPLY, NodeId(2), ME, Term(1)))
    requested = raft.ready()
    assert {message.kind for message in requested.messages} == {Kind.PRE_VOTE, Kind.VOTE}  # after the disk
    raft.step(Message(Kind.VOTE_REPLY, NodeId(2), ME, Term(1)))
    assert {message.kind for message in raft.ready().early} == {Kind.APPEND}


def test_asking_again_before_the_disk_is_done_gives_the_same_entries_again() -> None:
    raft = alone_with_a_learner()
    first = raft.ready().entries
    raft.propose(b"x=1")
    assert raft.ready().entries[:1] == first


def test_answers_that_were_lost_do_not_slow_a_follower_down_for_ever() -> None:
    progress = Progress(next=Index(1), sending=Sending.REPLICATE)
    for _ in range(MOST_IN_FLIGHT):
        progress.sent(1)
    assert progress.is_paused()
    progress.acknowledged(Index(MOST_IN_FLIGHT))  # of all these, only the last answer arrived
    assert progress.in_flight == 0

"""Every quorum request is answered, across leader changes: stories on the real state machine."""

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.coordinator.commands import Cluster, command, result

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.torchft import state
from paceline.coordinator.torchft.service import ReplicaRegistry, Request
from paceline.coordinator.torchft.state import Issue

NAMES = "abc"
Event = tuple[int, int, int]


@dataclass
class Replica:
    """As a manager behind a proxy: it asks, and asks the same again until it hears."""

    name: str
    step: int = 0
    failures: int = 0
    number: int = 0
    asked: torchft.QuorumMember | None = None
    waiting: Request | None = None
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def nonce(self) -> str:
        return f"{self.name}{self.number}"

    def request(self, loop: asyncio.AbstractEventLoop, now_s: float) -> Request:
        if self.asked is None:
            self.number += 1
            self.asked = torchft.QuorumMember(
                replica_id=self.name, step=self.step, commit_failures=self.failures
            )
        self.waiting = Request(self.asked, self.nonce, now_s, loop.create_future())
        return self.waiting


class Story:
    def __init__(self, loop: asyncio.AbstractEventLoop, min_replicas: int, join_timeout_s: int = 3) -> None:
        self.loop, self.now_s = loop, 0.0
        self.cluster = Cluster()
        open_lighthouse = pb.OpenLighthouse(
            job="j", min_replicas=min_replicas, join_timeout_ms=join_timeout_s * 1_000
        )
        self.cluster.ok(open_lighthouse, pb.Lighthouse)
        self.replicas = [Replica(name) for name in NAMES]
        self.rounds: list[pb.IssuedQuorum] = []
        self.lead()

    def lead(self) -> None:
        """Another node leads: what the last one knew is gone, and so is what it had not said."""
        self.call = ReplicaRegistry.restore(self.cluster.state.lighthouses["j"], self.now_s)
        for replica in self.replicas:
            replica.waiting = None

    def ask(self, replica: Replica) -> None:
        self.call.ask(replica.request(self.loop, self.now_s))
        self.look()

    def look(self) -> None:
        outcome = self.call.next(self.now_s)
        if isinstance(outcome, Issue):
            issue_quorum = self.call.command(outcome.replicas).issue_quorum
            issued = result(self.cluster.apply(command(issue_quorum, int(self.now_s * 1000))).outcome)
            assert isinstance(issued, pb.IssuedQuorum)
            self.rounds.append(issued)
            self.call.take(issued)

    def hear(self, replica: Replica, *, commits: bool) -> None:
        """Unless the leader that had the answer is gone."""
        if replica.waiting is None or not replica.waiting.answer.done():
            return
        replica.heard.append((replica.nonce, replica.waiting.answer.result()))
        replica.asked = replica.waiting = None
        replica.step, replica.failures = replica.step + commits, 0 if commits else replica.failures + 1

    def happen(self, event: Event) -> None:
        kind, who, number = event
        replica = self.replicas[who % len(self.replicas)]
        match kind % 5:
            case 0 | 1:
                self.ask(replica)
            case 2:
                self.call.heard(replica.name, self.now_s)
            case 3:
                self.hear(replica, commits=number % 4 > 0)
            case 4 if number % 3 == 0:
                self.lead()
            case 4:
                self.now_s += number
                self.look()


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 7)), max_size=120),
)
def test_members_receive_the_logged_quorum_and_the_newest_is_sent_again(
    min_replicas: int, events: list[Event]
) -> None:
    loop = asyncio.new_event_loop()
    try:
        story = Story(loop, min_replicas)
        for event in events:
            story.happen(event)
    finally:
        loop.close()
    _check_numbers(story.rounds)
    for sooner, later in pairwise(story.rounds):
        twice = _nonces(sooner) & _nonces(later)
        assert not twice, "a member of the newest quorum receives it again, and is not in the next"
    for replica in story.replicas:
        for nonce, answer in replica.heard:
            assert answer in [
                state.answer(outcome).SerializeToString(deterministic=True)
                for outcome in story.rounds
                if nonce in _nonces(outcome)
            ]


def _nonces(issued_quorum: pb.IssuedQuorum) -> set[str]:
    return {entry.nonce for entry in issued_quorum.seats}


def _check_numbers(rounds: list[pb.IssuedQuorum]) -> None:
    """They only grow, and exactly when torchft's do."""
    names: list[str] = []
    number = 0
    for issued_quorum in rounds:
        members = [entry.member.replica_id for entry in issued_quorum.seats]
        is_new = members != names or any(entry.member.commit_failures > 0 for entry in issued_quorum.seats)
        assert issued_quorum.quorum_id > number if is_new else issued_quorum.quorum_id == number
        names, number = members, issued_quorum.quorum_id


def test_a_new_leader_grants_every_member_a_whole_period_of_silence() -> None:
    loop = asyncio.new_event_loop()
    try:
        story = Story(loop, 2, join_timeout_s=60)
        for replica in story.replicas:
            story.call.heard(replica.name, 0.0)
        for replica in story.replicas:
            story.ask(replica)
        for replica in story.replicas:
            story.hear(replica, commits=True)
        assert len(story.rounds) == 1
        story.now_s = 100.0
        story.lead()
        for replica in story.replicas[:2]:
            story.ask(replica)
        assert len(story.rounds) == 1, "the third may only be looking for the new leader"
        story.now_s = 104.9
        story.call.heard("a", 104.9)
        story.call.heard("b", 104.9)
        story.look()
        assert len(story.rounds) == 1
        story.now_s = 105.1
        story.look()
        assert [entry.member.replica_id for entry in story.rounds[-1].seats] == ["a", "b"]
    finally:
        loop.close()

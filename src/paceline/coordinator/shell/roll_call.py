"""Who of a torchft job lives, and who asks? What the leader of the coordinators knows, and nobody else.

None of it is in the log: a new leader begins with the members of the last
quorum, whom it grants a whole period of silence, and hears everybody else
within a moment, because proxies send again what was not answered.
"""

import asyncio
import math
from dataclasses import dataclass, field

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.state import lighthouses
from paceline.coordinator.state.model import LighthouseRecord
from paceline.coordinator.state.quorum import Asking, Issue, Rule, Wait, next_quorum

Answer = bytes  # a torchft.LighthouseQuorumResponse: the same bytes for every member


@dataclass(slots=True)
class Request:
    """One replica that waits. `answer` may end with an exception, too."""

    member: torchft.QuorumMember
    nonce: str
    since_s: float
    answer: "asyncio.Future[Answer]"


@dataclass(slots=True)
class RollCall:
    job: str
    opened: int  # a job that was forgotten and opened again is another one
    rule: Rule
    heard_s: dict[str, float]
    round: int = 0
    last: frozenset[str] = frozenset()
    answered: dict[str, str] = field(default_factory=dict)  # nonces of the last quorum, by replica
    answer: Answer = b""
    asking: dict[str, Request] = field(default_factory=dict)
    is_issuing: bool = False
    look_again: asyncio.TimerHandle | None = None

    @classmethod
    def begun(cls, record: LighthouseRecord, now_s: float) -> "RollCall":
        found = record.lighthouse
        rule = Rule(
            min_replicas=found.min_replicas,
            join_timeout_s=found.join_timeout_ms / 1000,
            heartbeat_timeout_s=found.heartbeat_timeout_ms / 1000,
        )
        call = cls(found.job, found.opened, rule, dict.fromkeys(found.replicas, now_s))
        if record.issued is not None:
            call.take(record.issued)
        return call

    def take(self, issued: pb.IssuedQuorum) -> None:
        """It is in the log: whoever it answers may hear it."""
        self.round = issued.round
        self.answered = {seat.member.replica_id: seat.nonce for seat in issued.seats}
        self.last = frozenset(self.answered)
        self.answer = lighthouses.answer(issued).SerializeToString(deterministic=True)
        for replica, nonce in self.answered.items():
            request = self.asking.get(replica)
            if request is not None and request.nonce == nonce:
                del self.asking[replica]
                if not request.answer.done():
                    request.answer.set_result(self.answer)

    def heard(self, replica: str, at_s: float) -> None:
        self.heard_s[replica] = max(at_s, self.heard_s.get(replica, at_s))

    def ask(self, request: Request) -> Request | None:
        """Join those who ask; an earlier one of the same replica is given back, and is out."""
        replica = request.member.replica_id
        self.heard(replica, request.since_s)
        if self.answered.get(replica) == request.nonce:
            request.answer.set_result(self.answer)  # the first answer was lost on its way
            return None
        earlier = self.asking.get(replica)
        if earlier is not None and earlier.nonce == request.nonce:
            request.since_s = earlier.since_s
        self.asking[replica] = request
        return earlier

    def withdraw(self, request: Request) -> None:
        if self.asking.get(request.member.replica_id) is request:
            del self.asking[request.member.replica_id]

    def next(self, now_s: float, attentive_since_s: float = -math.inf) -> Issue | Wait:
        """Silence and waiting count from the end of this process's last standstill at the earliest."""
        self.heard_s = {name: max(at_s, attentive_since_s) for name, at_s in self.heard_s.items()}
        for request in self.asking.values():
            request.since_s = max(request.since_s, attentive_since_s)
        self._forget_silent(now_s)
        asking = {name: Asking(found.member, found.since_s) for name, found in self.asking.items()}
        return next_quorum(self.rule, self.last, asking, self.heard_s, now_s)

    def command(self, replicas: tuple[str, ...]) -> pb.Command:
        said = pb.IssueQuorum(job=self.job, previous=self.round)
        for replica in replicas:
            request = self.asking[replica]
            said.seats.add(member=request.member, nonce=request.nonce)
        return pb.Command(issue_quorum=said)

    def _forget_silent(self, now_s: float) -> None:
        limit_s = now_s - self.rule.heartbeat_timeout_s
        self.heard_s = {name: at_s for name, at_s in self.heard_s.items() if at_s > limit_s}

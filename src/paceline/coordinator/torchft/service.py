"""The service Lighthouses: the leader collects quorum requests and logs each quorum before it answers.

The registry of waiting replicas is not in the log. A new leader starts with the members of the
last quorum, grants each a whole heartbeat timeout, and receives the other requests soon, because
proxies repeat what was not answered. See torchft/state.py for the quorum rule, and
docs/guides/torchft.md.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.server import services
from paceline.coordinator.server.change_feed import TooOldError
from paceline.coordinator.server.guard import Context
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.server.services import service, unary
from paceline.coordinator.state import results
from paceline.coordinator.state.model import LighthouseRecord
from paceline.coordinator.torchft import state
from paceline.coordinator.torchft.state import Issue, QuorumRequest, Rule, Wait, next_quorum
from paceline.core.clock import StandstillDetector, boottime_s, monotonic_s

# None of it is in the log: a new leader begins with the members of the last
# quorum, whom it grants a whole period of silence, and hears everybody else
# within a moment, because proxies send again what was not answered.

Answer = bytes  # a torchft.LighthouseQuorumResponse: the same bytes for every member


@dataclass(slots=True)
class Request:
    """One replica that waits. `answer` may end with an exception, too."""

    member: torchft.QuorumMember
    nonce: str
    since_s: float
    answer: "asyncio.Future[Answer]"


@dataclass(slots=True)
class ReplicaRegistry:
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
    def begun(cls, record: LighthouseRecord, now_s: float) -> "ReplicaRegistry":
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
        self.answer = state.answer(issued).SerializeToString(deterministic=True)
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
        asking = {name: QuorumRequest(found.member, found.since_s) for name, found in self.asking.items()}
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


MAX_MEMBER_BYTES = 16 << 10  # bytes of what a replica says about itself
MAX_NONCE_LENGTH = 64
BUSY_S = 0.05


class RefusedRequestError(Exception):
    """It cannot have an answer."""

    def __init__(self, refusal: pb.Refusal) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal


class LighthouseService:
    def __init__(self, node: Node, leader_address: Callable[[], str], attention: StandstillDetector) -> None:
        self._node, self._leader_address = node, leader_address
        self._attention = attention  # the keeper looks all the time
        self._term = 0  # the one that we lead in and call rolls for
        self._calls: dict[str, ReplicaRegistry] = {}
        self._issuing: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        quorum = grpc.unary_unary_rpc_method_handler(
            self._quorum, request_deserializer=pb.AskQuorum.FromString, response_serializer=bytes
        )
        return service(
            "Lighthouses", {"Quorum": quorum, "Beat": unary(self._beat, pb.ReplicaBeats, pb.Heard)}
        )

    async def run(self) -> None:
        """Until it is cancelled: notice when we lead no more, and when a job is over."""
        try:
            while True:
                try:
                    async for changes in self._node.feed.watch(self._node.applied):
                        self._follow(changes)
                except TooOldError:
                    self._give_up()  # proxies ask again, and then we read the state anew
        finally:
            self._give_up()

    # What proxies ask.

    async def _quorum(self, request: pb.AskQuorum, context: Context) -> Answer:
        try:
            self._check(request)
            call = await self._call_of(request.job)
            asked = Request(
                request.requester,
                request.nonce,
                monotonic_s(),
                asyncio.get_running_loop().create_future(),
            )
            self._admit(call, asked)
            try:
                return await asked.answer
            finally:
                call.withdraw(asked)
        except NotLeaderError:
            await services.abort_not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await services.abort_refused(context, error.refusal)

    async def _beat(self, request: pb.ReplicaBeats, context: Context) -> pb.Heard:
        try:
            call = await self._call_of(request.job)
            self._check_room(call, len(request.beats))
        except NotLeaderError:
            await services.abort_not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await services.abort_refused(context, error.refusal)
        now_s = monotonic_s()
        for beat in request.beats:
            call.heard(beat.replica_id, now_s - beat.age_ms / 1000)
        self._look(call)
        return pb.Heard()

    def _check(self, request: pb.AskQuorum) -> None:
        what, hint = "", ""
        if not request.requester.replica_id or not 0 < len(request.nonce) <= MAX_NONCE_LENGTH:
            what, hint = "a quorum was asked for without saying who asks", "send a replica_id and a nonce"
        elif (size := request.requester.ByteSize()) > MAX_MEMBER_BYTES:
            what = f"replica {request.requester.replica_id[:100]!r} describes itself in {size} bytes"
            hint = f"use {MAX_MEMBER_BYTES} at most"
        if what:
            raise RefusedRequestError(results.invalid(what, hint))

    def _check_room(self, call: ReplicaRegistry, more: int) -> None:
        if len(call.heard_s) + more > 2 * state.MAX_REPLICAS:
            what = f"job {call.job!r} has {len(call.heard_s)} replicas that live"
            raise RefusedRequestError(results.not_now(what, "start fewer"))

    def _admit(self, call: ReplicaRegistry, asked: Request) -> None:
        self._check_room(call, 1)
        earlier = call.ask(asked)
        if earlier is not None and not earlier.answer.done():
            what = f"replica {asked.member.replica_id[:100]!r} has asked again"
            hint = "wait for the answer to its newest request"
            earlier.answer.set_exception(RefusedRequestError(results.fenced(what, hint)))
        self._look(call)

    async def _call_of(self, job: str) -> ReplicaRegistry:
        await self._lead()
        record = self._node.state.lighthouses.get(job)
        if record is None:
            raise RefusedRequestError(state.not_open(job))
        call = self._calls.get(job)
        if call is None or call.opened != record.lighthouse.opened:
            call = self._calls[job] = ReplicaRegistry.begun(record, monotonic_s())
        return call

    async def _lead(self) -> None:
        """A new leader decides nothing before all that earlier ones have issued is applied here."""
        raft = self._node.raft
        while not raft.is_leader or self._term != raft.term:
            term = raft.term
            await self._node.agree()
            if raft.is_leader and raft.term == term != self._term:
                self._give_up()
                self._term = term

    # What follows from it.

    def _look(self, call: ReplicaRegistry) -> None:
        if call.look_again is not None:
            call.look_again.cancel()
            call.look_again = None
        if call.is_issuing or not call.asking or self._calls.get(call.job) is not call:
            return
        now_s = monotonic_s()
        found = call.next(now_s, self._attention.look(now_s, boottime_s()))
        if isinstance(found, Issue):
            call.is_issuing = True
            task = asyncio.create_task(self._issue(call, found.replicas))
            self._issuing.add(task)
            task.add_done_callback(self._issuing.discard)
        elif found.until_s is not None:
            self._look_later(call, found.until_s - now_s)

    def _look_later(self, call: ReplicaRegistry, wait_s: float) -> None:
        call.look_again = asyncio.get_running_loop().call_later(max(wait_s, 0.001), self._look, call)

    async def _issue(self, call: ReplicaRegistry, replicas: tuple[str, ...]) -> None:
        try:
            outcome = await self._node.propose(call.command(replicas))
        except NotLeaderError:
            self._end(call, NotLeaderError())  # whether it is in the log is for the next leader to say
            return
        except TooBusyError:
            call.is_issuing = False
            self._look_later(call, BUSY_S)
            return
        call.is_issuing = False
        if outcome.HasField("quorum"):
            call.take(outcome.quorum)
            self._look(call)
        elif outcome.refusal.why == pb.FENCED:
            self._end(call, NotLeaderError())  # another round has come between: proxies ask again
        else:
            self._end(call, RefusedRequestError(outcome.refusal))

    def _follow(self, changes: list[pb.Change]) -> None:
        raft = self._node.raft
        if self._term and (not raft.is_leader or raft.term != self._term):
            self._give_up()
        for change in changes:
            gone = self._calls.get(change.lighthouse.job) if change.HasField("lighthouse") else None
            if gone is not None and change.lighthouse.is_forgotten:
                self._end(gone, RefusedRequestError(state.not_open(gone.job)))

    def _give_up(self) -> None:
        """We lead no more, or in another term: proxies must ask whoever leads now."""
        self._term = 0
        for call in list(self._calls.values()):
            self._end(call, NotLeaderError())

    def _end(self, call: ReplicaRegistry, error: Exception) -> None:
        if self._calls.get(call.job) is call:
            del self._calls[call.job]
        if call.look_again is not None:
            call.look_again.cancel()
        for request in call.asking.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        call.asking = {}

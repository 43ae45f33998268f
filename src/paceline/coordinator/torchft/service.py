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

Answer = bytes  # a torchft.LighthouseQuorumResponse: the same bytes for every member


@dataclass(slots=True)
class Request:
    """The request of a waiting replica. `answer` may also end with an exception."""

    member: torchft.QuorumMember
    nonce: str
    since_s: float
    answer: "asyncio.Future[Answer]"


@dataclass(slots=True)
class ReplicaRegistry:
    job: str
    opened: int  # log index: a job that was forgotten and opened again is a new one
    rule: Rule
    heard_s: dict[str, float]
    round: int = 0
    last: frozenset[str] = frozenset()
    answered: dict[str, str] = field(default_factory=dict)  # nonces of the last quorum, by replica
    answer: Answer = b""
    requests: dict[str, Request] = field(default_factory=dict)
    is_issuing: bool = False
    timer: asyncio.TimerHandle | None = None

    @classmethod
    def restore(cls, record: LighthouseRecord, now_s: float) -> "ReplicaRegistry":
        lighthouse = record.lighthouse
        rule = Rule(
            min_replicas=lighthouse.min_replicas,
            join_timeout_s=lighthouse.join_timeout_ms / 1000,
            heartbeat_timeout_s=lighthouse.heartbeat_timeout_ms / 1000,
        )
        registry = cls(lighthouse.job, lighthouse.opened, rule, dict.fromkeys(lighthouse.replicas, now_s))
        if record.issued is not None:
            registry.take(record.issued)
        return registry

    def take(self, issued: pb.IssuedQuorum) -> None:
        """The quorum is in the log: answer the requests that it covers."""
        self.round = issued.round
        self.answered = {entry.member.replica_id: entry.nonce for entry in issued.seats}
        self.last = frozenset(self.answered)
        self.answer = state.answer(issued).SerializeToString(deterministic=True)
        for replica, nonce in self.answered.items():
            request = self.requests.get(replica)
            if request is not None and request.nonce == nonce:
                del self.requests[replica]
                if not request.answer.done():
                    request.answer.set_result(self.answer)

    def heard(self, replica: str, at_s: float) -> None:
        self.heard_s[replica] = max(at_s, self.heard_s.get(replica, at_s))

    def ask(self, request: Request) -> Request | None:
        """Add a request; return an earlier one of the same replica, which it replaces."""
        replica = request.member.replica_id
        self.heard(replica, request.since_s)
        if self.answered.get(replica) == request.nonce:
            request.answer.set_result(self.answer)  # the first answer was lost on its way
            return None
        earlier = self.requests.get(replica)
        if earlier is not None and earlier.nonce == request.nonce:
            request.since_s = earlier.since_s
        self.requests[replica] = request
        return earlier

    def withdraw(self, request: Request) -> None:
        if self.requests.get(request.member.replica_id) is request:
            del self.requests[request.member.replica_id]

    def next(self, now_s: float, attentive_since_s: float = -math.inf) -> Issue | Wait:
        """Timeouts count from the end of this process's last standstill at the earliest."""
        self.heard_s = {name: max(at_s, attentive_since_s) for name, at_s in self.heard_s.items()}
        for request in self.requests.values():
            request.since_s = max(request.since_s, attentive_since_s)
        self._forget_silent(now_s)
        asking = {
            name: QuorumRequest(request.member, request.since_s) for name, request in self.requests.items()
        }
        return next_quorum(self.rule, self.last, asking, self.heard_s, now_s)

    def command(self, replicas: tuple[str, ...]) -> pb.Command:
        issue = pb.IssueQuorum(job=self.job, previous=self.round)
        for replica in replicas:
            request = self.requests[replica]
            issue.seats.add(member=request.member, nonce=request.nonce)
        return pb.Command(issue_quorum=issue)

    def _forget_silent(self, now_s: float) -> None:
        limit_s = now_s - self.rule.heartbeat_timeout_s
        self.heard_s = {name: at_s for name, at_s in self.heard_s.items() if at_s > limit_s}


MAX_MEMBER_BYTES = 16 << 10  # limit of a replica's description
MAX_NONCE_LENGTH = 64
BUSY_S = 0.05


class RefusedRequestError(Exception):
    """The request is refused."""

    def __init__(self, refusal: pb.Refusal) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal


class LighthouseService:
    def __init__(self, node: Node, leader_address: Callable[[], str], attention: StandstillDetector) -> None:
        self._node = node
        self._leader_address = leader_address
        self._attention = attention  # polled by the lease monitor
        self._term = 0  # term in which this node leads and collects requests; 0: not leading
        self._registries: dict[str, ReplicaRegistry] = {}
        self._issuing: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        quorum = grpc.unary_unary_rpc_method_handler(
            self._quorum, request_deserializer=pb.AskQuorum.FromString, response_serializer=bytes
        )
        return service(
            "Lighthouses", {"Quorum": quorum, "Beat": unary(self._beat, pb.ReplicaBeats, pb.Heard)}
        )

    async def run(self) -> None:
        """Run until cancelled: end all requests when leadership is lost, or those of a dropped job."""
        try:
            while True:
                try:
                    async for changes in self._node.feed.watch(self._node.applied):
                        self._on_changes(changes)
                except TooOldError:
                    self._end_all()  # proxies send their requests again, and the state is read again
        finally:
            self._end_all()

    # Calls of proxies.

    async def _quorum(self, request: pb.AskQuorum, context: Context) -> Answer:
        try:
            self._check(request)
            registry = await self._registry_of(request.job)
            waiting = Request(
                request.requester,
                request.nonce,
                monotonic_s(),
                asyncio.get_running_loop().create_future(),
            )
            self._admit(registry, waiting)
            try:
                return await waiting.answer
            finally:
                registry.withdraw(waiting)
        except NotLeaderError:
            await services.abort_not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await services.abort_refused(context, error.refusal)

    async def _beat(self, request: pb.ReplicaBeats, context: Context) -> pb.Heard:
        try:
            registry = await self._registry_of(request.job)
            self._check_room(registry, len(request.beats))
        except NotLeaderError:
            await services.abort_not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await services.abort_refused(context, error.refusal)
        now_s = monotonic_s()
        for beat in request.beats:
            registry.heard(beat.replica_id, now_s - beat.age_ms / 1000)
        self._decide(registry)
        return pb.Heard()

    def _check(self, request: pb.AskQuorum) -> None:
        message = ""
        hint = ""
        if not request.requester.replica_id or not 0 < len(request.nonce) <= MAX_NONCE_LENGTH:
            message = "a quorum was requested without a replica_id"
            hint = "send a replica_id and a nonce"
        elif (size := request.requester.ByteSize()) > MAX_MEMBER_BYTES:
            message = f"replica {request.requester.replica_id[:100]!r} sent a description of {size} bytes"
            hint = f"use {MAX_MEMBER_BYTES} at most"
        if message:
            raise RefusedRequestError(results.invalid(message, hint))

    def _check_room(self, registry: ReplicaRegistry, more: int) -> None:
        if len(registry.heard_s) + more > 2 * state.MAX_REPLICAS:
            message = f"job {registry.job!r} has {len(registry.heard_s)} live replicas"
            raise RefusedRequestError(results.not_now(message, "start fewer"))

    def _admit(self, registry: ReplicaRegistry, request: Request) -> None:
        self._check_room(registry, 1)
        earlier = registry.ask(request)
        if earlier is not None and not earlier.answer.done():
            message = f"replica {request.member.replica_id[:100]!r} has sent a newer request"
            hint = "wait for the response to its newest request"
            earlier.answer.set_exception(RefusedRequestError(results.fenced(message, hint)))
        self._decide(registry)

    async def _registry_of(self, job: str) -> ReplicaRegistry:
        await self._wait_for_leadership()
        record = self._node.state.lighthouses.get(job)
        if record is None:
            raise RefusedRequestError(state.not_open(job))
        registry = self._registries.get(job)
        if registry is None or registry.opened != record.lighthouse.opened:
            registry = self._registries[job] = ReplicaRegistry.restore(record, monotonic_s())
        return registry

    async def _wait_for_leadership(self) -> None:
        """A new leader decides nothing before all quorums of earlier leaders are applied here."""
        raft = self._node.raft
        while not raft.is_leader or self._term != raft.term:
            term = raft.term
            await self._node.agree()
            if raft.is_leader and raft.term == term != self._term:
                self._end_all()
                self._term = term

    # Decisions.

    def _decide(self, registry: ReplicaRegistry) -> None:
        if registry.timer is not None:
            registry.timer.cancel()
            registry.timer = None
        if registry.is_issuing or not registry.requests or self._registries.get(registry.job) is not registry:
            return
        now_s = monotonic_s()
        decision = registry.next(now_s, self._attention.update(now_s, boottime_s()))
        if isinstance(decision, Issue):
            registry.is_issuing = True
            task = asyncio.create_task(self._issue(registry, decision.replicas))
            self._issuing.add(task)
            task.add_done_callback(self._issuing.discard)
        elif decision.until_s is not None:
            self._decide_later(registry, decision.until_s - now_s)

    def _decide_later(self, registry: ReplicaRegistry, wait_s: float) -> None:
        registry.timer = asyncio.get_running_loop().call_later(max(wait_s, 0.001), self._decide, registry)

    async def _issue(self, registry: ReplicaRegistry, replicas: tuple[str, ...]) -> None:
        try:
            outcome = await self._node.propose(registry.command(replicas))
        except NotLeaderError:
            self._end(registry, NotLeaderError())  # the next leader finds out whether it is in the log
            return
        except TooBusyError:
            registry.is_issuing = False
            self._decide_later(registry, BUSY_S)
            return
        registry.is_issuing = False
        if outcome.HasField("quorum"):
            registry.take(outcome.quorum)
            self._decide(registry)
        elif outcome.refusal.why == pb.FENCED:
            self._end(registry, NotLeaderError())  # another round was first: proxies retry
        else:
            self._end(registry, RefusedRequestError(outcome.refusal))

    def _on_changes(self, changes: list[pb.Change]) -> None:
        raft = self._node.raft
        if self._term and (not raft.is_leader or raft.term != self._term):
            self._end_all()
        for change in changes:
            gone = self._registries.get(change.lighthouse.job) if change.HasField("lighthouse") else None
            if gone is not None and change.lighthouse.is_forgotten:
                self._end(gone, RefusedRequestError(state.not_open(gone.job)))

    def _end_all(self) -> None:
        """Leadership was lost, or the term changed: proxies must call the current leader."""
        self._term = 0
        for registry in list(self._registries.values()):
            self._end(registry, NotLeaderError())

    def _end(self, registry: ReplicaRegistry, error: Exception) -> None:
        if self._registries.get(registry.job) is registry:
            del self._registries[registry.job]
        if registry.timer is not None:
            registry.timer.cancel()
        for request in registry.requests.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        registry.requests = {}

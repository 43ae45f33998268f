"""Lighthouse proxy: answers torchft's managers on loopback, by way of the coordinator's leader.

A manager's quorum request is held open and sent to the current leader, as often as it takes,
always under the same nonce: so it is answered once. A request that a manager abandoned and
repeats byte by byte keeps its nonce too, because its answer may already be in the log.
Heartbeats are collected and forwarded in batches.

`LeaderLink` cancels a call to a node that has stopped leading and sends the same bytes to the
next one; the caller sees only a delay. A call ends with an error only if the caller can act on it.
"""

import asyncio
import itertools
import random
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from paceline.coordinator import methods
from paceline.coordinator.client.aio import refused
from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.server.access_policy import Limits
from paceline.coordinator.server.guard import Context
from paceline.coordinator.server.security import Options, server_options
from paceline.coordinator.torchft.state import MAX_REPLICAS
from paceline.core.clock import monotonic_s
from paceline.core.errors import PortError

Dial = Callable[[str], grpc.aio.Channel]
Metadata = tuple[tuple[str, str], ...]

FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 0.1
SLOWER = 1.5
MAX_ADDRESSES = 100
MAX_HOPS = 2  # at once: during an election two nodes may each name the other
# Another node, or the same one a moment later, may succeed.
TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,  # a node of an older version, while a cluster is upgraded
    }
)


class LeaderLink:
    def __init__(
        self,
        addresses: Sequence[str],
        dial: Dial,
        metadata: Metadata,
        on_leader: Callable[[str], None] = lambda _: None,
    ) -> None:
        assert addresses, "a link needs the address of at least one node"
        self._addresses = list(addresses)
        self._dial = dial
        self._metadata = metadata
        self._on_leader = on_leader
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._next = itertools.count(1)
        self._target = self._addresses[0]  # the address to call
        self._last_leader = ""  # the address that answered last
        self._moved = asyncio.Event()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def call(
        self, method: str, request: bytes, *, until_s: float | None = None, attempt_s: float | None = None
    ) -> bytes:
        """The leader's answer. One attempt may take `attempt_s`; until then a node counts as alive.

        TimeoutError: `until_s` has passed. grpc.aio.AioRpcError: a permanent refusal.
        """
        pause_s = FIRST_PAUSE_S
        hops = 0
        while True:
            address = self._target
            moved = self._moved
            limit_s = _min_limit(None if until_s is None else until_s - monotonic_s(), attempt_s)
            if until_s is not None and monotonic_s() >= until_s:
                raise TimeoutError
            try:
                answer = await self._attempt(address, method, request, limit_s, moved)
            except grpc.aio.AioRpcError as error:
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if is_late and attempt_s is None:
                    raise TimeoutError from error  # the caller's deadline; no evidence about the node
                if not is_late and error.code() not in TRANSIENT:
                    raise
                leader = _leader_in(error)
                self._switch_leader(address, leader)
                hops += 1
                if not leader or leader == address or hops > MAX_HOPS:
                    hops = 0
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(pause_s * SLOWER, MAX_PAUSE_S)
                continue
            if answer is not None:
                self._note_leader(address)
                return answer

    async def _attempt(
        self, address: str, method: str, request: bytes, limit_s: float | None, moved: asyncio.Event
    ) -> bytes | None:
        """None: another call found out meanwhile that this node no longer leads."""
        method_call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(
            method, None, None
        )
        call = method_call(request, metadata=self._metadata, timeout=limit_s)
        moving = asyncio.create_task(moved.wait())
        answering = asyncio.ensure_future(_await_call(call))
        try:
            await asyncio.wait((answering, moving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            moving.cancel()
            if not answering.done():
                call.cancel()
                answering.cancel()

    def _switch_leader(self, failed: str, leader: str) -> None:
        if self._target != failed:
            return  # another call has already switched
        if leader and leader != failed:
            self._move(leader)
        else:
            candidates = [address for address in self._addresses if address != failed] or [failed]
            self._move(candidates[next(self._next) % len(candidates)])

    def _move(self, to: str) -> None:
        if to not in self._addresses and len(self._addresses) < MAX_ADDRESSES:
            self._addresses.append(to)  # a node that was added since the start
        self._target = to
        self._moved.set()
        self._moved = asyncio.Event()

    def _note_leader(self, address: str) -> None:
        if self._last_leader != address:
            self._last_leader = address
            self._on_leader(address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._dial(address)
        return self._channels[address]


async def _await_call(call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> bytes:
    return await call


def _min_limit(*limits_s: float | None) -> float | None:
    return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)


def _leader_in(error: grpc.aio.AioRpcError) -> str:
    trailing = error.trailing_metadata() or ()
    return next((str(value) for name, value in trailing if name == methods.LEADER), "")


SERVICE = "torchft.LighthouseService"
BEAT_S = 0.1  # between messages to the leader; also without heartbeats, to detect its loss
ATTEMPT_S = 0.5  # timeout for a leader to accept heartbeats; then another node is tried


class Proxy:
    """`async with Proxy(…) as proxy: await proxy.ended()`"""

    def __init__(self, job: str, link: LeaderLink, listen: str) -> None:
        self._job = job
        self._link = link
        self._listen = listen
        self.address = listen
        self._heard_s: dict[str, float] = {}  # not forwarded yet
        self._unanswered: dict[str, tuple[bytes, str]] = {}  # request and nonce, by replica
        self._server = grpc.aio.server(options=_options(), maximum_concurrent_rpcs=Limits().calls_at_once)
        self._server.add_generic_rpc_handlers((self._handler(),))

    async def __aenter__(self) -> Self:
        try:
            port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise PortError(
                f"cannot listen on {self._listen}",
                "check that no other lighthouse or proxy uses the port, or use another with --listen",
            ) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        self._forwarder = asyncio.create_task(self._forward_beats())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forwarder.cancel()
        await asyncio.gather(self._forwarder, return_exceptions=True)
        await self._server.stop(grace=None)
        await self._link.close()

    async def ended(self) -> None:
        """Wait until the coordinator refuses to serve this job, and raise its error."""
        await asyncio.shield(self._forwarder)

    def _handler(self) -> grpc.GenericRpcHandler:
        quorum = grpc.unary_unary_rpc_method_handler(
            self._quorum,
            request_deserializer=torchft.LighthouseQuorumRequest.FromString,
            response_serializer=bytes,
        )
        heartbeat = grpc.unary_unary_rpc_method_handler(
            self._heartbeat,
            request_deserializer=torchft.LighthouseHeartbeatRequest.FromString,
            response_serializer=torchft.LighthouseHeartbeatResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Quorum": quorum, "Heartbeat": heartbeat})

    # Calls of managers.

    async def _heartbeat(
        self, request: torchft.LighthouseHeartbeatRequest, context: Context
    ) -> torchft.LighthouseHeartbeatResponse:
        await self._note_heartbeat(request.replica_id, context)
        return torchft.LighthouseHeartbeatResponse()

    async def _quorum(self, request: torchft.LighthouseQuorumRequest, context: Context) -> bytes:
        """The leader's answer, byte by byte."""
        replica = request.requester.replica_id
        await self._note_heartbeat(replica, context)
        ask = pb.AskQuorum(job=self._job, requester=request.requester, nonce=self._nonce(request))
        left_s = context.time_remaining()
        try:
            answer = await self._link.call(
                path("Lighthouses", "Quorum"),
                ask.SerializeToString(),
                until_s=None if left_s is None else monotonic_s() + left_s,
            )
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no quorum before the deadline")
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        self._unanswered.pop(replica, None)
        return answer

    async def _note_heartbeat(self, replica: str, context: Context) -> None:
        if not replica:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request names no replica")
        if replica not in self._heard_s and len(self._heard_s) >= MAX_REPLICAS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too many replicas are connected to this proxy"
            )
        self._heard_s[replica] = monotonic_s()

    def _nonce(self, request: torchft.LighthouseQuorumRequest) -> str:
        replica = request.requester.replica_id
        content = request.SerializeToString()
        earlier = self._unanswered.pop(replica, None)
        nonce = earlier[1] if earlier is not None and earlier[0] == content else secrets.token_hex(8)
        self._unanswered[replica] = (content, nonce)
        if len(self._unanswered) > MAX_REPLICAS:
            del self._unanswered[next(iter(self._unanswered))]
        return nonce

    # Calls to the leader.

    async def _forward_beats(self) -> None:
        while True:
            started_s = monotonic_s()
            await self._send_beats()
            await asyncio.sleep(max(0.0, started_s + BEAT_S - monotonic_s()))

    async def _send_beats(self) -> None:
        """Ages are those of the first attempt: after a late failover they are a little too young."""
        sent = dict(self._heard_s)
        now_s = monotonic_s()
        beats = pb.ReplicaBeats(job=self._job)
        for replica, at_s in sent.items():
            beats.beats.add(replica_id=replica, age_ms=int((now_s - at_s) * 1000))
        try:
            until_s = now_s + 2 * ATTEMPT_S
            args = (path("Lighthouses", "Beat"), beats.SerializeToString())
            await self._link.call(*args, until_s=until_s, attempt_s=ATTEMPT_S)
        except TimeoutError:
            return  # no leader; the next batch has true ages
        except grpc.aio.AioRpcError as error:
            raise refused(error) from error
        for replica, at_s in sent.items():
            if self._heard_s.get(replica) == at_s:
                del self._heard_s[replica]


def _options() -> Options:
    # Managers send keepalive pings at any rate.
    return [*server_options(Limits()), ("grpc.http2.max_ping_strikes", 0)]

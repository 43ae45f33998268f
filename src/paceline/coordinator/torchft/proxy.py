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

# A call that was sent to a node that has stopped leading is taken back, and sent
# to the next one with the same bytes: the caller notices nothing but the time.
# Only what a caller can do something about ends a call with an error.

Dial = Callable[[str], grpc.aio.Channel]
Metadata = tuple[tuple[str, str], ...]

FIRST_PAUSE_S, MAX_PAUSE_S, SLOWER = 0.01, 0.1, 1.5
MAX_ADDRESSES = 100
MAX_HOPS = 2  # at once: during an election two nodes may each name the other
# What another node, or the same one a moment later, may answer better.
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
        self._addresses, self._dial, self._metadata = list(addresses), dial, metadata
        self._on_leader = on_leader
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._next = itertools.count(1)
        self._asked = self._addresses[0]  # whom to ask now
        self._said = ""  # who answered last
        self._moved = asyncio.Event()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def call(
        self, method: str, request: bytes, *, until_s: float | None = None, attempt_s: float | None = None
    ) -> bytes:
        """The leader's answer. One attempt may take `attempt_s`; until then a node counts as alive.

        TimeoutError: it is `until_s`. grpc.aio.AioRpcError: it was refused, and will always be.
        """
        pause_s, hops = FIRST_PAUSE_S, 0
        while True:
            asked, moved = self._asked, self._moved
            limit_s = _sooner(None if until_s is None else until_s - monotonic_s(), attempt_s)
            if until_s is not None and monotonic_s() >= until_s:
                raise TimeoutError
            try:
                answer = await self._attempt(asked, method, request, limit_s, moved)
            except grpc.aio.AioRpcError as error:
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if is_late and attempt_s is None:
                    raise TimeoutError from error  # of the caller's patience; it says nothing of the node
                if not is_late and error.code() not in TRANSIENT:
                    raise
                leader = _leader_in(error)
                self._turn_away(asked, leader)
                hops += 1
                if not leader or leader == asked or hops > MAX_HOPS:
                    hops = 0
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(pause_s * SLOWER, MAX_PAUSE_S)
                continue
            if answer is not None:
                self._heard(asked)
                return answer

    async def _attempt(
        self, address: str, method: str, request: bytes, limit_s: float | None, moved: asyncio.Event
    ) -> bytes | None:
        """None: somebody else found out meanwhile that this node does not lead any more."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(
            method, None, None
        )
        call = ask(request, metadata=self._metadata, timeout=limit_s)
        moving = asyncio.create_task(moved.wait())
        answering = asyncio.ensure_future(_answer(call))
        try:
            await asyncio.wait((answering, moving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            moving.cancel()
            if not answering.done():
                call.cancel()
                answering.cancel()

    def _turn_away(self, asked: str, leader: str) -> None:
        if self._asked != asked:
            return  # another call has found out meanwhile
        if leader and leader != asked:
            self._move(leader)
        else:
            others = [address for address in self._addresses if address != asked] or [asked]
            self._move(others[next(self._next) % len(others)])

    def _move(self, to: str) -> None:
        if to not in self._addresses and len(self._addresses) < MAX_ADDRESSES:
            self._addresses.append(to)  # a node that was added since we were told
        self._asked = to
        self._moved.set()
        self._moved = asyncio.Event()

    def _heard(self, address: str) -> None:
        if self._said != address:
            self._said = address
            self._on_leader(address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._dial(address)
        return self._channels[address]


async def _answer(call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> bytes:
    return await call


def _sooner(*limits_s: float | None) -> float | None:
    return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)


def _leader_in(error: grpc.aio.AioRpcError) -> str:
    trailing = error.trailing_metadata() or ()
    return next((str(value) for name, value in trailing if name == methods.LEADER), "")


SERVICE = "torchft.LighthouseService"
BEAT_S = 0.1  # between two messages to the leader; also without news, since that is how its death is noticed
ATTEMPT_S = 0.5  # for a leader to take a sign of life; then another node is asked who leads


class Proxy:
    """`async with Proxy(…) as proxy: await proxy.ended()`"""

    def __init__(self, job: str, link: LeaderLink, listen: str) -> None:
        self._job, self._link, self._listen = job, link, listen
        self.address = listen
        self._heard_s: dict[str, float] = {}  # not passed on yet
        self._unanswered: dict[str, tuple[bytes, str]] = {}  # by replica: what it asked, under which nonce
        self._server = grpc.aio.server(options=_options(), maximum_concurrent_rpcs=Limits().calls_at_once)
        self._server.add_generic_rpc_handlers((self._handler(),))

    async def __aenter__(self) -> Self:
        try:
            port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise PortError(
                f"cannot listen on {self._listen}",
                "see that no other lighthouse or proxy uses the port, or give another one with --listen",
            ) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        self._beating = asyncio.create_task(self._pass_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        await self._server.stop(grace=None)
        await self._link.close()

    async def ended(self) -> None:
        """Until the coordinators refuse to serve this job any more, with the reason."""
        await asyncio.shield(self._beating)

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

    # What managers say.

    async def _heartbeat(
        self, request: torchft.LighthouseHeartbeatRequest, context: Context
    ) -> torchft.LighthouseHeartbeatResponse:
        await self._take(request.replica_id, context)
        return torchft.LighthouseHeartbeatResponse()

    async def _quorum(self, request: torchft.LighthouseQuorumRequest, context: Context) -> bytes:
        """The leader's answer, byte by byte."""
        replica = request.requester.replica_id
        await self._take(replica, context)
        asked = pb.AskQuorum(job=self._job, requester=request.requester, nonce=self._nonce(request))
        left_s = context.time_remaining()
        try:
            answer = await self._link.call(
                path("Lighthouses", "Quorum"),
                asked.SerializeToString(),
                until_s=None if left_s is None else monotonic_s() + left_s,
            )
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no quorum in the time that was given")
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        self._unanswered.pop(replica, None)
        return answer

    async def _take(self, replica: str, context: Context) -> None:
        if not replica:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request names no replica")
        if replica not in self._heard_s and len(self._heard_s) >= MAX_REPLICAS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many replicas speak to this proxy")
        self._heard_s[replica] = monotonic_s()

    def _nonce(self, request: torchft.LighthouseQuorumRequest) -> str:
        replica, said = request.requester.replica_id, request.SerializeToString()
        known = self._unanswered.pop(replica, None)
        nonce = known[1] if known is not None and known[0] == said else secrets.token_hex(8)
        self._unanswered[replica] = (said, nonce)
        if len(self._unanswered) > MAX_REPLICAS:
            del self._unanswered[next(iter(self._unanswered))]
        return nonce

    # What the leader hears.

    async def _pass_on(self) -> None:
        while True:
            started_s = monotonic_s()
            await self._send_beats()
            await asyncio.sleep(max(0.0, started_s + BEAT_S - monotonic_s()))

    async def _send_beats(self) -> None:
        """Ages are those of the first attempt: a leader that is found late thinks them a little younger."""
        sent, now_s = dict(self._heard_s), monotonic_s()
        beats = pb.ReplicaBeats(job=self._job)
        for replica, at_s in sent.items():
            beats.beats.add(replica_id=replica, age_ms=int((now_s - at_s) * 1000))
        try:
            until_s = now_s + 2 * ATTEMPT_S
            what = (path("Lighthouses", "Beat"), beats.SerializeToString())
            await self._link.call(*what, until_s=until_s, attempt_s=ATTEMPT_S)
        except TimeoutError:
            return  # nobody leads; say it again, with true ages
        except grpc.aio.AioRpcError as error:
            raise refused(error) from error
        for replica, at_s in sent.items():
            if self._heard_s.get(replica) == at_s:
                del self._heard_s[replica]


def _options() -> Options:
    # A manager asks for signs of life of its own, and may do so as often as it likes.
    return [*server_options(Limits()), ("grpc.http2.max_ping_strikes", 0)]

"""What do torchft's managers talk to? A lighthouse on loopback that asks the coordinators for them.

A manager's question is held open here and sent to whoever leads, as often as it
takes, always under the same nonce: so it is answered once. Signs of life are
taken here, and passed on together. A question that a manager gave up and asks
again, word by word, keeps its nonce too: its answer may be in the log already.
"""

import asyncio
import secrets
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from paceline.clock import monotonic_s
from paceline.coordinator.client import refused
from paceline.coordinator.lighthouse.link import Link
from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.shell.guard import Context
from paceline.coordinator.shell.limits import Limits
from paceline.coordinator.shell.security import Options, server_options
from paceline.coordinator.state.lighthouses import MOST_REPLICAS
from paceline.errors import PortError

SERVICE = "torchft.LighthouseService"
BEAT_S = 0.1  # between two messages to the leader; also without news, since that is how its death is noticed
ATTEMPT_S = 0.5  # for a leader to take a sign of life; then another node is asked who leads


class Proxy:
    """`async with Proxy(…) as proxy: await proxy.ended()`"""

    def __init__(self, job: str, link: Link, listen: str) -> None:
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
        if replica not in self._heard_s and len(self._heard_s) >= MOST_REPLICAS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many replicas speak to this proxy")
        self._heard_s[replica] = monotonic_s()

    def _nonce(self, request: torchft.LighthouseQuorumRequest) -> str:
        replica, said = request.requester.replica_id, request.SerializeToString()
        known = self._unanswered.pop(replica, None)
        nonce = known[1] if known is not None and known[0] == said else secrets.token_hex(8)
        self._unanswered[replica] = (said, nonce)
        if len(self._unanswered) > MOST_REPLICAS:
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

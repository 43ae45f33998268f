"""Direct calls to one node, without retries or redirects: protos, or raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token

Reply = TypeVar("Reply", bound=Message)
WITHIN_S = 90.0
PAUSE_S = 0.1  # between frames, so that the node has looked at one when the next comes
UNSAID = Token("a-token-that-was-never-issued")


class Direct:
    """`async with Direct(address, token) as node:`"""

    def __init__(
        self, address: str, access: Token | Certificate = UNSAID, *, with_token: bool = True
    ) -> None:
        self._channel = security.open_channel(address, access)
        self._metadata = security.call_metadata(access) if with_token else ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def ask(self, service: str, name: str, request: Message, reply: type[Reply]) -> Reply:
        call = self._channel.unary_unary(
            path(service, name), type(request).SerializeToString, reply.FromString
        )
        answer: Reply = await call(request, metadata=self._metadata, timeout=WITHIN_S)
        return answer

    async def mark(self, run: str, key: str, note: str) -> pb.AlertMark:
        acknowledge_alert = pb.AcknowledgeAlert(run=run, alert=key, note=note)
        return await self.ask("Actions", "Acknowledge", acknowledge_alert, pb.AlertMark)

    async def marks(self, run: str) -> pb.AlertList:
        return await self.ask("Actions", "Alerts", pb.ListAlerts(run=run), pb.AlertList)

    async def raw(
        self, method: str, data: bytes, *, within_s: float = WITHIN_S
    ) -> tuple[grpc.StatusCode, str]:
        """Bytes as they are; the status and its words. A stream takes them for its only message."""
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method, None, None)
        try:
            await call(data, metadata=self._metadata, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    async def talk(self, frames: Sequence[pb.Frame]) -> tuple[grpc.StatusCode, str]:
        """As a node does: one frame after the other, on a stream that the other side ends."""

        async def stream() -> AsyncIterator[pb.Frame]:
            for frame in frames:
                yield frame
                await asyncio.sleep(PAUSE_S)
            await asyncio.Event().wait()

        call = self._channel.stream_unary(
            path("Raft", "Talk"), pb.Frame.SerializeToString, pb.Heard.FromString
        )(stream(), metadata=self._metadata, timeout=WITHIN_S)
        answer = await call.code(), await call.details() or ""
        call.cancel()  # or the stream would wait for ever
        return answer

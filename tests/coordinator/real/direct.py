"""What does one node answer, without anybody who asks again or elsewhere? Protos, or raw bytes."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import security
from paceline.coordinator.shell.tokens import Token

Reply = TypeVar("Reply", bound=Message)
WITHIN_S = 30.0
UNSAID = Token("nobody-has-given-this-token-to-anybody")


class Direct:
    """`async with Direct(address, token) as node:`"""

    def __init__(self, address: str, token: Token = UNSAID, *, with_token: bool = True) -> None:
        self._channel = security.open_channel(address, token)
        self._metadata = security.call_metadata(token) if with_token else ()

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
        asked = pb.AcknowledgeAlert(run=run, alert=key, note=note)
        return await self.ask("Actions", "Acknowledge", asked, pb.AlertMark)

    async def marks(self, run: str) -> pb.AlertList:
        return await self.ask("Actions", "Alerts", pb.ListAlerts(run=run), pb.AlertList)

    async def raw(
        self, method: str, parts: Sequence[bytes], *, within_s: float = WITHIN_S
    ) -> tuple[grpc.StatusCode, str]:
        """Bytes as they are, as a stream; the status and its words."""

        async def stream() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        call = self._channel.stream_unary(method, None, None)(
            stream(), metadata=self._metadata, timeout=within_s
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

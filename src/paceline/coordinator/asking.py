"""How do many writes of one client reach a node? Over one stream, each by a number, answered in any order.

A stream costs a quarter of what a call for each write would. When it breaks,
whoever waits on it hears so; the client opens another one, to whoever leads.
"""

import asyncio
import itertools
from contextlib import suppress

import grpc
import grpc.aio

from paceline.coordinator import methods
from paceline.coordinator.proto import cluster_pb2 as pb

Metadata = tuple[tuple[str, str], ...]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Asking:
    """One stream of writes to one node. For many tasks of one event loop."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        write = channel.stream_stream(
            methods.path("Sessions", "Write"), pb.Ask.SerializeToString, pb.Answer.FromString
        )
        self.is_over = False
        self._call = write(metadata=metadata)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.Answer]] = {}
        self._sending = asyncio.Lock()  # gRPC takes one message of a stream at a time
        self._listening = asyncio.create_task(self._listen())

    async def ask(self, command: pb.Command, timeout_s: float) -> pb.Outcome:
        """What came of it; AioRpcError as if it had been a call of its own."""
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(pb.Ask(id=number, command=command))
                return _outcome(await waiting)
        except TimeoutError as error:
            what = f"no answer within {timeout_s:g} s"
            raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, what) from error
        finally:
            del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # looked at: the stream may have ended while we were still sending

    async def close(self) -> None:
        self._call.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening

    async def _send(self, ask: pb.Ask) -> None:
        try:
            async with self._sending:
                await self._call.write(ask)
        except asyncio.InvalidStateError as error:  # it ended between two writes
            raise _failure(grpc.StatusCode.UNAVAILABLE, "the stream has ended") from error
        except grpc.aio.AioRpcError as error:
            raise _broken(error) from error

    async def _listen(self) -> None:
        ended: BaseException = _failure(grpc.StatusCode.UNAVAILABLE, "the node ended the stream")
        try:
            while isinstance(answer := await self._call.read(), pb.Answer):
                waiting = self._waiting.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except grpc.aio.AioRpcError as error:
            ended = _broken(error)
        finally:
            self.is_over = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ended)


def _outcome(answer: pb.Answer) -> pb.Outcome:
    if answer.HasField("declined"):
        said = answer.declined
        code = _CODES.get(said.code, grpc.StatusCode.UNKNOWN)
        facts = (((methods.WHY, said.why),) if said.why else ()) + (
            ((methods.LEADER, said.leader),) if said.leader else ()
        )
        raise _failure(code, f"{said.what}\n{said.hint}", facts)
    refusal = answer.outcome.refusal
    if answer.outcome.HasField("refusal"):
        code = methods.CODES.get(refusal.why, grpc.StatusCode.UNKNOWN)
        raise _failure(code, f"{refusal.what}\n{refusal.hint}", ((methods.WHY, pb.Why.Name(refusal.why)),))
    return answer.outcome


def _broken(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """A stream whose connection is cut while something is sent ends with an error of gRPC's own core."""
    if error.code() is grpc.StatusCode.INTERNAL:
        return _failure(grpc.StatusCode.UNAVAILABLE, f"the connection was lost: {error.details()}")
    return error


def _failure(code: grpc.StatusCode, details: str, facts: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*facts), details)

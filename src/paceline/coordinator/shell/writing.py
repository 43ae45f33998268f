"""How do many writes come over one stream? Each is taken as it comes, and answered when it is applied.

What may be written by whom is asked for each of them, as if it were a call of its own.
"""

import asyncio
from collections.abc import AsyncIterable, Callable
from functools import partial

import grpc

from paceline.coordinator.methods import NOT_LEADER, WRITES, path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.guard import Context, Refused, Toll, caller, not_allowed, toll
from paceline.coordinator.shell.identity import Identity, roles_for
from paceline.coordinator.shell.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.shell.services import service
from paceline.coordinator.state.machine import MOST_BYTES_OF_LONG

MOST_OPEN = 1024  # writes of one stream without an answer; then it is not read any more
_PATHS = {write.command: path(write.service, write.name) for write in WRITES}
_ALLOWED = {command: tuple(roles_for(method)) for command, method in _PATHS.items()}
_Code = grpc.StatusCode


class Writing:
    def __init__(self, node: Node, leader_address: Callable[[], str]) -> None:
        self._node, self._leader_address = node, leader_address

    def handler(self) -> grpc.GenericRpcHandler:
        write = grpc.stream_stream_rpc_method_handler(
            self._write,
            request_deserializer=pb.Ask.FromString,
            response_serializer=pb.Answer.SerializeToString,
        )
        return service("Sessions", {"Write": write})

    async def _write(self, asks: AsyncIterable[pb.Ask], context: Context) -> None:
        talk = _Talk(self._node, self._leader_address, caller.get(), toll.get())
        listening = asyncio.create_task(talk.listen(asks))
        listening.add_done_callback(lambda _: talk.wake())
        try:
            await talk.answer(context, listening)
        finally:
            listening.cancel()


class _Talk:
    """One stream, from both sides."""

    def __init__(self, node: Node, leader_address: Callable[[], str], by: Identity, toll: Toll) -> None:
        self._node, self._leader_address, self._by, self._toll = node, leader_address, by, toll
        self._room = asyncio.Semaphore(MOST_OPEN)
        self._open = 0
        self._answers: list[pb.Answer] = []
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def listen(self, asks: AsyncIterable[pb.Ask]) -> None:
        async for ask in asks:
            await self._room.acquire()
            self._take(ask)

    async def answer(self, context: Context, listening: "asyncio.Task[None]") -> None:
        """Until the caller has hung up and knows everything."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            answers, self._answers = self._answers, []
            for answer in answers:
                await context.write(answer)
                self._room.release()
            if listening.done() and not (self._open or self._answers):
                listening.result()
                return

    def _take(self, ask: pb.Ask) -> None:
        command = ask.command
        if (refused := self._why_not(command)) is not None:
            self._say(pb.Answer(id=ask.id, declined=_declined(refused)))
            return
        command.by = self._by.name
        try:
            applying = self._node.submit(command)
        except (NotLeaderError, TooBusyError) as error:
            self._say(pb.Answer(id=ask.id, declined=self._failed(error)))
            return
        self._open += 1
        applying.add_done_callback(partial(self._applied, ask.id))

    def _why_not(self, command: pb.Command) -> Refused | None:
        if (too_many := self._toll()) is not None:
            return too_many
        what = command.WhichOneof("what")
        method = _PATHS.get(what or "")
        if what is None or method is None:
            return Refused(
                _Code.INVALID_ARGUMENT,
                f"{what or 'nothing'} cannot be written by a client",
                "send one of the commands that cluster.proto has a method for",
            )
        if self._by.role not in _ALLOWED[what]:
            return not_allowed(self._by, method)
        if (size := command.ByteSize()) > MOST_BYTES_OF_LONG:
            hint = f"send {MOST_BYTES_OF_LONG} bytes at most"
            return Refused(_Code.INVALID_ARGUMENT, f"this request has {size} bytes", hint)
        return None

    def _applied(self, id: int, applying: "asyncio.Future[pb.Outcome]") -> None:
        self._open -= 1
        error = applying.exception()
        if error is None:
            self._say(pb.Answer(id=id, outcome=applying.result()))
        else:
            self._say(pb.Answer(id=id, declined=self._failed(error)))

    def _failed(self, error: BaseException) -> pb.Declined:
        if isinstance(error, TooBusyError):
            what = "more commands wait for an answer than this node keeps"
            return _declined(Refused(_Code.RESOURCE_EXHAUSTED, what, "send fewer at once"))
        assert isinstance(error, NotLeaderError), f"a command ends in no other way: {error!r}"
        leader = self._leader_address()
        what = f"the leader is {leader}" if leader else "there is no leader right now"
        said = _declined(Refused(_Code.UNAVAILABLE, what, "ask again there, or a moment later"))
        said.why, said.leader = NOT_LEADER, leader
        return said

    def _say(self, answer: pb.Answer) -> None:
        self._answers.append(answer)
        self._wake.set()


def _declined(refused: Refused) -> pb.Declined:
    code: int = refused.code.value[0]
    return pb.Declined(code=code, what=refused.what, hint=refused.hint)

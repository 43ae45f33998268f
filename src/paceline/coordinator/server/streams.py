"""Streaming services: changes to watchers, heartbeats and orders of workers, pipelined writes.

Each command of a write stream is authorized and rate-limited as a call of its own would be.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from functools import partial

import grpc

from paceline.coordinator.methods import NOT_LEADER, WRITES, path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import services
from paceline.coordinator.server.access_policy import Identity, roles_for
from paceline.coordinator.server.change_feed import TooOldError
from paceline.coordinator.server.guard import Context, Refused, Toll, caller, not_allowed, toll
from paceline.coordinator.server.leader_tasks import Holder, Leases
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.server.raft_transport import AddressBook
from paceline.coordinator.server.services import service
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import MAX_LONG_COMMAND_BYTES
from paceline.core.clock import monotonic_s

HEARTBEATS_PER_LEASE = 4  # that a leader gives a worker at least


class Streams:
    def __init__(self, node: Node, book: AddressBook, leases: Leases) -> None:
        self._node, self._book, self._leases = node, book, leases

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        live = grpc.stream_stream_rpc_method_handler(
            self._live,
            request_deserializer=pb.Beat.FromString,
            response_serializer=pb.Order.SerializeToString,
        )
        changes = grpc.unary_stream_rpc_method_handler(
            self._changes,
            request_deserializer=pb.WatchRequest.FromString,
            response_serializer=pb.Change.SerializeToString,
        )
        return [service("Members", {"Live": live}), service("Watch", {"Changes": changes})]

    async def _changes(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Change]:
        try:
            async for changes in self._node.feed.watch(request.after or self._node.applied, request.run):
                for change in changes:
                    yield change
        except TooOldError:
            await services.abort_too_old(context)

    async def _live(self, beats: AsyncIterable[pb.Beat], context: Context) -> AsyncIterator[pb.Order]:
        coming = aiter(beats)
        first = await anext(coming, None)
        if first is None:
            return
        holder = Holder(first.run, first.worker, first.incarnation)
        await self._check_leader(context)
        await self._check_alive(holder, context)
        self._leases.heard(holder, monotonic_s())
        listening = asyncio.create_task(self._listen(coming, holder))
        try:
            yield self._sign()
            async for order in self._orders(first.run, listening, context):
                yield order
            # It hung up, or was given up meanwhile: then it must know.
            await self._check_leader(context)
            await self._check_alive(holder, context)
        except TooOldError:
            await services.abort_too_old(context)
        finally:
            listening.cancel()
            self._leases.closed(holder, monotonic_s())

    async def _orders(
        self, run: str, listening: "asyncio.Task[None]", context: Context
    ) -> AsyncIterator[pb.Order]:
        """Until the worker is not listened to any more. When there is no news, a sign of life of ours.

        A line that is cut is silent: without it the worker could not tell a quiet leader from a lost one.
        """
        feed = self._node.feed.watch(self._node.applied, run, only_orders=True)
        sign_s = self._leases.lease_s / HEARTBEATS_PER_LEASE
        news = asyncio.ensure_future(anext(feed))
        try:
            while not listening.done():
                await asyncio.wait((news, listening), timeout=sign_s, return_when=asyncio.FIRST_COMPLETED)
                if listening.done() and not news.done():
                    return
                await self._check_leader(context)
                if not news.done():
                    yield self._sign()
                    continue
                for change in news.result():
                    yield pb.Order(change=change)
                news = asyncio.ensure_future(anext(feed))
        finally:
            news.cancel()

    def _sign(self) -> pb.Order:
        return pb.Order(lease_ms=int(self._leases.lease_s * 1000))

    async def _listen(self, beats: AsyncIterator[pb.Beat], holder: Holder) -> None:
        """Until it hangs up, or speaks although its lease has run out."""
        async for _ in beats:
            if not self._leases.holds(holder):
                return
            self._leases.heard(holder, monotonic_s())

    async def _check_leader(self, context: Context) -> None:
        if not self._node.raft.is_leader:
            await services.abort_not_leader(context, self._book.leader_address())

    async def _check_alive(self, holder: Holder, context: Context) -> None:
        if not queries.is_living(self._node.state, holder.run, holder.worker, holder.incarnation):
            what = (
                f"worker {holder.worker} of run {holder.run} does not live as {holder.incarnation} any more"
            )
            await services.abort_refused(context, pb.Refusal(why=pb.FENCED, what=what, hint="join again"))


# What may be written by whom is asked for each of them, as if it were a call of its own.

MAX_OPEN_WRITES = 1024  # writes of one stream without an answer; then it is not read any more
_PATHS = {write.command: path(write.service, write.name) for write in WRITES}
_ALLOWED = {command: tuple(roles_for(method)) for command, method in _PATHS.items()}
_Code = grpc.StatusCode


class WriteService:
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
        talk = _WriteStream(self._node, self._leader_address, caller.get(), toll.get())
        listening = asyncio.create_task(talk.listen(asks))
        listening.add_done_callback(lambda _: talk.wake())
        try:
            await talk.answer(context, listening)
        finally:
            listening.cancel()


class _WriteStream:
    """One stream, from both sides."""

    def __init__(self, node: Node, leader_address: Callable[[], str], by: Identity, toll: Toll) -> None:
        self._node, self._leader_address, self._by, self._toll = node, leader_address, by, toll
        self._room = asyncio.Semaphore(MAX_OPEN_WRITES)
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
        if (size := command.ByteSize()) > MAX_LONG_COMMAND_BYTES:
            hint = f"send {MAX_LONG_COMMAND_BYTES} bytes at most"
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

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
from paceline.coordinator.server.guard import Context, RateCheck, Refused, caller, not_allowed, rate_check
from paceline.coordinator.server.leader_tasks import Holder, Leases
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.server.raft_transport import AddressBook
from paceline.coordinator.server.services import service
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import MAX_LONG_COMMAND_BYTES
from paceline.core.clock import monotonic_s

HEARTBEATS_PER_LEASE = 4  # minimum number of heartbeat intervals per lease


class Streams:
    def __init__(self, node: Node, book: AddressBook, leases: Leases) -> None:
        self._node = node
        self._book = book
        self._leases = leases

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
        incoming = aiter(beats)
        first = await anext(incoming, None)
        if first is None:
            return
        holder = Holder(first.run, first.worker, first.incarnation)
        await self._check_leader(context)
        await self._check_alive(holder, context)
        self._leases.heard(holder, monotonic_s())
        receiving = asyncio.create_task(self._receive_beats(incoming, holder))
        try:
            yield self._heartbeat()
            async for order in self._orders(first.run, receiving, context):
                yield order
            # The worker closed the stream, or was declared lost meanwhile: then it gets the error.
            await self._check_leader(context)
            await self._check_alive(holder, context)
        except TooOldError:
            await services.abort_too_old(context)
        finally:
            receiving.cancel()
            self._leases.closed(holder, monotonic_s())

    async def _orders(
        self, run: str, receiving: "asyncio.Task[None]", context: Context
    ) -> AsyncIterator[pb.Order]:
        """Orders until the worker's stream ends; heartbeats of the leader while there are none.

        A partitioned link is silent: without heartbeats an idle leader could not be told from a lost one.
        """
        feed = self._node.feed.watch(self._node.applied, run, only_orders=True)
        heartbeat_s = self._leases.lease_s / HEARTBEATS_PER_LEASE
        next_changes = asyncio.ensure_future(anext(feed))
        try:
            while not receiving.done():
                await asyncio.wait(
                    (next_changes, receiving), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if receiving.done() and not next_changes.done():
                    return
                await self._check_leader(context)
                if not next_changes.done():
                    yield self._heartbeat()
                    continue
                for change in next_changes.result():
                    yield pb.Order(change=change)
                next_changes = asyncio.ensure_future(anext(feed))
        finally:
            next_changes.cancel()

    def _heartbeat(self) -> pb.Order:
        return pb.Order(lease_ms=int(self._leases.lease_s * 1000))

    async def _receive_beats(self, beats: AsyncIterator[pb.Beat], holder: Holder) -> None:
        """Renew the lease until the stream ends, or until a heartbeat arrives after the lease expired."""
        async for _ in beats:
            if not self._leases.holds(holder):
                return
            self._leases.heard(holder, monotonic_s())

    async def _check_leader(self, context: Context) -> None:
        if not self._node.raft.is_leader:
            await services.abort_not_leader(context, self._book.leader_address())

    async def _check_alive(self, holder: Holder, context: Context) -> None:
        if not queries.is_living(self._node.state, holder.run, holder.worker, holder.incarnation):
            message = f"worker {holder.worker} of run {holder.run} is no longer alive as {holder.incarnation}"
            await services.abort_refused(context, pb.Refusal(why=pb.FENCED, what=message, hint="join again"))


MAX_OPEN_WRITES = 1024  # unanswered writes of one stream; at the limit it is not read further
_PATHS = {write.command: path(write.service, write.name) for write in WRITES}
_ALLOWED = {command: tuple(roles_for(method)) for command, method in _PATHS.items()}
_Code = grpc.StatusCode


class WriteService:
    def __init__(self, node: Node, leader_address: Callable[[], str]) -> None:
        self._node = node
        self._leader_address = leader_address

    def handler(self) -> grpc.GenericRpcHandler:
        write = grpc.stream_stream_rpc_method_handler(
            self._write,
            request_deserializer=pb.Ask.FromString,
            response_serializer=pb.Answer.SerializeToString,
        )
        return service("Sessions", {"Write": write})

    async def _write(self, asks: AsyncIterable[pb.Ask], context: Context) -> None:
        stream = _WriteStream(self._node, self._leader_address, caller.get(), rate_check.get())
        receiving = asyncio.create_task(stream.receive(asks))
        receiving.add_done_callback(lambda _: stream.wake())
        try:
            await stream.send_answers(context, receiving)
        finally:
            receiving.cancel()


class _WriteStream:
    """One stream of writes: requests in, answers out in the order in which they are known."""

    def __init__(
        self, node: Node, leader_address: Callable[[], str], caller: Identity, rate_check: RateCheck
    ) -> None:
        self._node = node
        self._leader_address = leader_address
        self._caller = caller
        self._check_rate = rate_check
        self._room = asyncio.Semaphore(MAX_OPEN_WRITES)
        self._in_flight = 0
        self._answers: list[pb.Answer] = []
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def receive(self, asks: AsyncIterable[pb.Ask]) -> None:
        async for ask in asks:
            await self._room.acquire()
            self._submit(ask)

    async def send_answers(self, context: Context, receiving: "asyncio.Task[None]") -> None:
        """Send responses until the caller has closed its side and all are sent."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            answers = self._answers
            self._answers = []
            for answer in answers:
                await context.write(answer)
                self._room.release()
            if receiving.done() and not (self._in_flight or self._answers):
                receiving.result()
                return

    def _submit(self, ask: pb.Ask) -> None:
        command = ask.command
        if (refused := self._why_not(command)) is not None:
            self._respond(pb.Answer(id=ask.id, declined=_declined(refused)))
            return
        command.by = self._caller.name
        try:
            applying = self._node.submit(command)
        except (NotLeaderError, TooBusyError) as error:
            self._respond(pb.Answer(id=ask.id, declined=self._failed(error)))
            return
        self._in_flight += 1
        applying.add_done_callback(partial(self._applied, ask.id))

    def _why_not(self, command: pb.Command) -> Refused | None:
        if (too_many := self._check_rate()) is not None:
            return too_many
        command_name = command.WhichOneof("what")
        method = _PATHS.get(command_name or "")
        if command_name is None or method is None:
            return Refused(
                _Code.INVALID_ARGUMENT,
                f"{command_name or 'nothing'} cannot be written by a client",
                "send one of the commands that cluster.proto has a method for",
            )
        if self._caller.role not in _ALLOWED[command_name]:
            return not_allowed(self._caller, method)
        if (size := command.ByteSize()) > MAX_LONG_COMMAND_BYTES:
            hint = f"send {MAX_LONG_COMMAND_BYTES} bytes at most"
            return Refused(_Code.INVALID_ARGUMENT, f"this request has {size} bytes", hint)
        return None

    def _applied(self, id: int, applying: "asyncio.Future[pb.Outcome]") -> None:
        self._in_flight -= 1
        error = applying.exception()
        if error is None:
            self._respond(pb.Answer(id=id, outcome=applying.result()))
        else:
            self._respond(pb.Answer(id=id, declined=self._failed(error)))

    def _failed(self, error: BaseException) -> pb.Declined:
        if isinstance(error, TooBusyError):
            message = "too many commands are pending on this node"
            return _declined(Refused(_Code.RESOURCE_EXHAUSTED, message, "send fewer at once"))
        assert isinstance(error, NotLeaderError), f"a command ends in no other way: {error!r}"
        leader = self._leader_address()
        message = f"the leader is {leader}" if leader else "there is no leader right now"
        declined = _declined(Refused(_Code.UNAVAILABLE, message, "retry there, or in a moment"))
        declined.why = NOT_LEADER
        declined.leader = leader
        return declined

    def _respond(self, answer: pb.Answer) -> None:
        self._answers.append(answer)
        self._wake.set()


def _declined(refused: Refused) -> pb.Declined:
    code: int = refused.code.value[0]
    return pb.Declined(code=code, what=refused.what, hint=refused.hint)

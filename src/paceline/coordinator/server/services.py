"""gRPC handlers of the method table: writes become log entries, reads are served from the state."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from paceline.coordinator import methods
from paceline.coordinator.methods import READS, WRITES, Read, Write
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.guard import Context, Handler, caller
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import MAX_LONG_COMMAND_BYTES, CoordinatorState


async def abort_refused(context: Context, refusal: pb.Refusal) -> NoReturn:
    code = methods.CODES.get(refusal.why, grpc.StatusCode.UNKNOWN)
    why = pb.Why.Name(refusal.why)
    await _abort(context, code, f"{refusal.what}\n{refusal.hint}", ((methods.WHY, why),))


async def abort_not_leader(context: Context, leader_address: str) -> NoReturn:
    """The request is valid: the client must send it to the leader, or retry."""
    reason = f"the leader is {leader_address}" if leader_address else "there is no leader right now"
    facts = ((methods.WHY, methods.NOT_LEADER), (methods.LEADER, leader_address))
    await _abort(context, grpc.StatusCode.UNAVAILABLE, f"{reason}\nretry there, or in a moment", facts)


async def abort_too_busy(context: Context) -> NoReturn:
    message = "too many commands are pending on this node\nsend fewer at once"
    await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, message, ())


async def abort_too_old(context: Context) -> NoReturn:
    message = "changes since then are no longer available\nread everything again, then start a new watch"
    await _abort(context, grpc.StatusCode.OUT_OF_RANGE, message, ())


async def abort_invalid(context: Context, message: str, hint: str) -> NoReturn:
    await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"{message}\n{hint}", ((methods.WHY, "INVALID"),))


async def _abort(
    context: Context, code: grpc.StatusCode, details: str, facts: Sequence[tuple[str, str]]
) -> NoReturn:
    await context.abort(code, details, tuple(facts))
    raise AssertionError("abort does not return")


LeaderAddress = Callable[[], str]
Handle = Callable[[Any, Context], Awaitable[Message]]  # Any: each method has its own request


def client_services(node: Node, leader_address: LeaderAddress) -> list[grpc.GenericRpcHandler]:
    """Every service whose methods are in the table."""
    handlers: dict[str, dict[str, Handler]] = {}
    for write in WRITES:
        handlers.setdefault(write.service, {})[write.name] = unary(
            _writer(node, write, leader_address), write.request, write.reply
        )
    for read in READS:
        handlers.setdefault(read.service, {})[read.name] = unary(
            _reader(node, read, leader_address), read.request, read.reply
        )
    return [service(name, by_method) for name, by_method in handlers.items()]


def unary(handle: Handle, request: type[Message], reply: type[Message]) -> Handler:
    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
    )


def service(name: str, handlers: dict[str, Handler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(f"{methods.PACKAGE}.{name}", handlers)


def _writer(node: Node, write: Write, leader_address: LeaderAddress) -> Handle:
    async def handle(request: Any, context: Context) -> Message:
        command = pb.Command(by=caller.get().name)
        if not _set_session(command, context.invocation_metadata() or ()):
            await abort_invalid(
                context, "the session's numbers are not numbers", "send whole numbers, or none"
            )
        getattr(command, write.command).CopyFrom(request)
        if (size := command.ByteSize()) > MAX_LONG_COMMAND_BYTES:  # it would not fit into a frame either
            message = f"this request has {size} bytes"
            await abort_invalid(context, message, f"send {MAX_LONG_COMMAND_BYTES} bytes at most")
        try:
            outcome = await node.propose(command)
        except NotLeaderError:
            await abort_not_leader(context, leader_address())
        except TooBusyError:
            await abort_too_busy(context)
        if outcome.HasField("refusal"):
            await abort_refused(context, outcome.refusal)
        result: Message = getattr(outcome, write.result)
        return result

    return handle


def _set_session(command: pb.Command, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    for key, value in metadata:
        if key in _FIELDS:
            try:
                setattr(command, _FIELDS[key], int(value))
            except ValueError:
                return False
    return True


_FIELDS = {methods.SESSION: "session", methods.SEQUENCE: "sequence", methods.FIRST_OPEN: "first_open"}


def _reader(node: Node, read: Read, leader_address: LeaderAddress) -> Handle:
    query = _QUERIES[read.request]

    async def handle(request: Any, context: Context) -> Message:
        try:
            await node.agree()
        except NotLeaderError:
            await abort_not_leader(context, leader_address())
        result = query(node.state, request)
        if isinstance(result, pb.Refusal):
            await abort_refused(context, result)
        return result

    return handle


# Any: each method has its own request.
_QUERIES: dict[type[Message], Callable[[CoordinatorState, Any], Message]] = {
    pb.GetRun: lambda state, request: queries.run(state, request.run),
    pb.ListRuns: lambda state, request: queries.runs(state, request.with_ended),
    pb.ListOffers: lambda state, _: queries.offers(state),
    pb.ListWorkers: lambda state, request: queries.workers(state, request.run, request.with_ended),
    pb.ListCheckpoints: lambda state, request: queries.checkpoints(state, request.run, request.with_open),
    pb.ListActions: lambda state, request: queries.actions(state, request.run),
    pb.ListAlerts: lambda state, request: queries.alerts(state, request.run),
    pb.ListLighthouses: lambda state, _: queries.lighthouses(state),
}

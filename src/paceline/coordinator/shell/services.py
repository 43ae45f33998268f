"""How does a request become an entry of the log, and what came of it a reply? By one table of methods."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import Message

from paceline.coordinator import methods
from paceline.coordinator.methods import READS, WRITES, Read, Write
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import replies
from paceline.coordinator.shell.guard import Context, Handler, caller
from paceline.coordinator.shell.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.state import view
from paceline.coordinator.state.machine import MOST_BYTES_OF_LONG, ClusterState

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
    return [service(name, found) for name, found in handlers.items()]


def unary(handle: Handle, request: type[Message], reply: type[Message]) -> Handler:
    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
    )


def service(name: str, handlers: dict[str, Handler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(f"{methods.PACKAGE}.{name}", handlers)


def _writer(node: Node, write: Write, leader_address: LeaderAddress) -> Handle:
    async def handle(request: Any, context: Context) -> Message:
        command = pb.Command(by=caller.get().name)
        if not _take_session(command, context.invocation_metadata() or ()):
            await replies.bad(context, "the session's numbers are no numbers", "send whole numbers, or none")
        getattr(command, write.command).CopyFrom(request)
        if (size := command.ByteSize()) > MOST_BYTES_OF_LONG:  # it would not fit into a frame either
            what = f"this request has {size} bytes"
            await replies.bad(context, what, f"send {MOST_BYTES_OF_LONG} bytes at most")
        try:
            outcome = await node.propose(command)
        except NotLeaderError:
            await replies.not_leader(context, leader_address())
        except TooBusyError:
            await replies.too_busy(context)
        if outcome.HasField("refusal"):
            await replies.refuse(context, outcome.refusal)
        found: Message = getattr(outcome, write.result)
        return found

    return handle


def _take_session(command: pb.Command, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    for key, value in metadata:
        if key in _FIELDS:
            try:
                setattr(command, _FIELDS[key], int(value))
            except ValueError:
                return False
    return True


_FIELDS = {methods.SESSION: "session", methods.SEQUENCE: "sequence", methods.FIRST_OPEN: "first_open"}


def _reader(node: Node, read: Read, leader_address: LeaderAddress) -> Handle:
    answer = _ANSWERS[read.request]

    async def handle(request: Any, context: Context) -> Message:
        try:
            await node.agree()
        except NotLeaderError:
            await replies.not_leader(context, leader_address())
        found = answer(node.state, request)
        if isinstance(found, pb.Refusal):
            await replies.refuse(context, found)
        return found

    return handle


# Any: each method has its own request.
_ANSWERS: dict[type[Message], Callable[[ClusterState, Any], Message]] = {
    pb.GetRun: lambda state, asked: view.run(state, asked.run),
    pb.ListRuns: lambda state, asked: view.runs(state, asked.with_ended),
    pb.ListWorkers: lambda state, asked: view.workers(state, asked.run, asked.with_ended),
    pb.ListCheckpoints: lambda state, asked: view.checkpoints(state, asked.run, asked.with_open),
    pb.ListActions: lambda state, asked: view.actions(state, asked.run),
    pb.ListAlerts: lambda state, asked: view.alerts(state, asked.run),
    pb.ListLighthouses: lambda state, _: view.lighthouses(state),
}

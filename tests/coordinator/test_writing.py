"""Many writes share one stream; each is authorized by itself, and a bad one harms no other."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.real.history import create, mark, notes
from tests.coordinator.real.in_process import Nodes, nodes_in_process
from tests.fixtures.wording import Wording

from paceline.coordinator.client.aio import RefusedError, WriteStream
from paceline.coordinator.methods import LEADER, path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Limits, Rate, Role
from paceline.coordinator.server.streams import WriteService

PATIENCE_S = 20.0
MARK = pb.Command(acknowledge_alert=pb.AcknowledgeAlert(run="run", alert="a", note="n"))


def ask_as(nodes: Nodes, role: Role, node: int = 1) -> tuple[grpc.aio.Channel, WriteStream]:
    access = security.client_access(token_file=nodes.folder / "tokens.json", role=role)
    channel = security.open_channel(nodes.addresses[node], access)
    return channel, WriteStream(channel, security.call_metadata(access))


async def status_of(nodes: Nodes, role: Role, command: pb.Command, node: int = 1) -> grpc.aio.AioRpcError:
    channel, asking = ask_as(nodes, role, node)
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking.ask(command, PATIENCE_S)
        await asking.close()
        return caught.value


def test_many_writes_at_once_are_all_answered_and_all_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3) as nodes, nodes.client() as client:
            await create(client, "run")
            await asyncio.gather(*(mark(client, "run", f"key-{n}", str(n)) for n in range(900)))
            assert await notes(client, "run") == {f"key-{n}": str(n) for n in range(900)}

    asyncio.run(story())


def test_each_command_needs_the_role_of_its_method(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes:
            viewer = await status_of(nodes, Role.VIEWER, MARK)
            assert viewer.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "Sessions/Write" in str(viewer.details())
            worker = await status_of(nodes, Role.WORKER, MARK)
            assert worker.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "Actions/Acknowledge" in str(worker.details())
            assert not nodes.running[1].node.state.runs

    asyncio.run(story())


def test_what_only_nodes_decide_cannot_be_written(tmp_path: Path, wording: Wording) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes:
            for command in (
                pb.Command(),
                pb.Command(name_node=pb.NodeAddress(node=1, address="elsewhere:1")),
                pb.Command(lose_worker=pb.LoseWorker(run="run", worker="w")),
            ):
                refused = await status_of(nodes, Role.ADMIN, command)
                assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
                wording(str(refused.details()))

    asyncio.run(story())


def test_a_follower_names_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            other = next(node for node in nodes.running if node != leader)
            async with nodes.client() as client:
                await create(client, "run")  # so that all have heard of the leader by now
                refused = await status_of(nodes, Role.ADMIN, MARK, other)
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            facts = dict(refused.trailing_metadata() or ())
            assert facts[LEADER] in (nodes.addresses[leader], "")

    asyncio.run(story())


def test_one_refusal_does_not_end_the_stream(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "run")
            with pytest.raises(RefusedError) as refused:
                await create(client, "run")
            assert refused.value.why == "EXISTS"
            with pytest.raises(RefusedError, match="bytes"):
                await mark(client, "run", "a", "x" * (5 << 20))
            await mark(client, "run", "a", "still here")
            assert await notes(client, "run") == {"a": "still here"}

    asyncio.run(story())


def test_a_stream_pays_for_each_of_its_writes(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes:
            strict = security.new_server(nodes.tokens, Limits(per_caller=Rate(per_s=0.001, burst=5)))
            strict.add_generic_rpc_handlers((WriteService(nodes.running[1].node, str).handler(),))
            nodes.addresses[2] = f"127.0.0.1:{security.listen(strict, '127.0.0.1:0', nodes.tokens)}"
            await strict.start()
            channel, asking = ask_as(nodes, Role.ADMIN, 2)
            async with channel:
                codes = [await code_of(asking, MARK) for _ in range(7)]
                await asking.close()
            await strict.stop(grace=None)
        # Opening the stream was a call too. There is no such run, which was looked at four times.
        assert codes == [grpc.StatusCode.NOT_FOUND] * 4 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3

    asyncio.run(story())


async def code_of(asking: WriteStream, command: pb.Command) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asking.ask(command, PATIENCE_S)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_garbage_on_the_stream_is_refused_and_the_node_unharmed(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            access = security.client_access(token_file=nodes.folder / "tokens.json")
            async with security.open_channel(nodes.addresses[1], access) as channel:
                write: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
                    path("Sessions", "Write")
                )
                call = write(metadata=security.call_metadata(access))
                await call.write(b"\xff\xff\xff no message")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await create(client, "run")

    asyncio.run(story())

"""Injected partitions: a partitioned node neither receives nor sends until the deadline, then recovers."""

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.real.cluster import PATIENCE_S
from tests.coordinator.real.history import create
from tests.coordinator.real.in_process import CALM, Nodes, nodes_in_process

from paceline.coordinator.client.aio import Client, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.server.partitions import Partitions

LIST, LOOK = "/paceline.cluster.v1.Runs/List", "/paceline.cluster.v1.Nodes/Status"
OURS, THEIRS = "ipv4:127.0.0.1:5001", "ipv4:127.0.0.1:5002"


async def is_heard(cuts: Partitions, peer: str, method: str = LIST) -> bool:
    asking = asyncio.create_task(cuts.wait_until_healed(peer, method))
    await asyncio.sleep(0)  # it starts; a peer that is not cut off does not wait
    was_heard = asking.done()
    asking.cancel()
    return was_heard


def test_named_processes_wait_or_all_but_them() -> None:
    async def story() -> None:
        cuts = Partitions(ports=lambda pids: {5001} if 7 in pids else set())
        cuts.partition(300, pids=[7], others=False)
        assert [await is_heard(cuts, peer) for peer in (OURS, THEIRS)] == [False, True]
        cuts.partition(300, pids=[7], others=True)
        assert [await is_heard(cuts, peer) for peer in (OURS, THEIRS)] == [True, False]
        assert await is_heard(cuts, THEIRS, LOOK)  # one can always look
        cuts.partition(300, nodes=[NodeId(2)], others=False)
        assert await is_heard(cuts, OURS)
        assert [cuts.drops(NodeId(node)) for node in (1, 2)] == [False, True]
        cuts.heal()
        assert cuts.remaining_s() == 0
        assert not cuts.drops(NodeId(2))

    asyncio.run(story())


def test_a_partition_heals_without_further_requests() -> None:
    async def story() -> None:
        cuts = Partitions()
        cuts.partition(0.05, others=True)
        await asyncio.wait_for(cuts.wait_until_healed(OURS, LIST), PATIENCE_S)
        assert not cuts.is_active

    asyncio.run(story())


async def cut(client: Client, cluster: Nodes, node: int, **options: object) -> pb.NodeStatus:
    request = pb.CutRequest(cluster="paceline", **options)  # type: ignore[arg-type]  # as the caller wrote it
    return await client.of_node(cluster.addresses[node], "Cut", request)


def test_a_call_of_a_process_that_is_cut_off_waits_and_is_answered_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "before")
            node_status = await cut(client, nodes, 1, pids=[os.getpid()], for_ms=300_000)
            assert 0 < node_status.cut_ms <= 300_000
            task = asyncio.create_task(create(client, "meanwhile"))
            await asyncio.wait((task,), timeout=0.2)
            assert not task.done()
            assert "meanwhile" not in nodes.running[1].node.state.runs
            assert (await cut(client, nodes, 1, for_ms=0)).cut_ms == 0
            await task

    asyncio.run(story())


@pytest.mark.soak  # on a run at work the same is in tests/faults/test_partition.py
def test_a_leader_that_is_cut_off_is_replaced_and_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3, pace=CALM) as nodes, nodes.client() as client:
            await create(client, "before")
            alone = next(n for n, item in nodes.running.items() if item.node.raft.is_leader)
            others = [node for node in nodes.running if node != alone]
            await cut(client, nodes, alone, nodes=others, others=True, for_ms=300_000)
            rest = [nodes.addresses[node] for node in others]
            async with nodes.client(addresses=rest) as outside:
                await create(outside, "without-it")
            async with nodes.client(addresses=[nodes.addresses[alone]], patience_s=0.3) as beside:
                with pytest.raises(UnreachableError):
                    await create(beside, "never")
            assert "without-it" not in nodes.running[alone].node.state.runs
            await cut(client, nodes, alone, for_ms=0)
            async with asyncio.timeout(PATIENCE_S):
                while "without-it" not in nodes.running[alone].node.state.runs:
                    await asyncio.sleep(0.01)

    asyncio.run(story())


def test_a_cut_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            for cluster, for_ms in (("another", 1000), ("paceline", 300_001), ("paceline", -1)):
                request = pb.CutRequest(cluster=cluster, for_ms=for_ms, others=True)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await client.of_node(nodes.addresses[1], "Cut", request)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert not nodes.running[1]._partitions.is_active

    asyncio.run(story())

"""Real coordinator processes keep what they acknowledged, whichever node is killed or frozen."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.direct import Direct
from tests.coordinator.real.failover import failovers
from tests.coordinator.real.history import History, create, mark, notes

from paceline.coordinator.client.aio import Client, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb

SHORT_S = 3.0  # of patience, where patience cannot help


def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path) -> None:
    _check_failovers(tmp_path, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_over_a_hundred_kills(tmp_path: Path) -> None:
    _check_failovers(tmp_path, kills=100)


def _check_failovers(folder: Path, kills: int) -> None:
    async def story() -> None:
        async with Cluster(folder) as cluster:
            result = await failovers(cluster, kills)
            assert len(result.kills) == kills
            assert result.acknowledged > 20 * kills
            assert result.lost == []
            assert result.is_linearizable
            cluster.check_disks()

    asyncio.run(story())


def test_five_nodes_survive_any_two_and_refuse_without_three(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=5) as cluster, cluster.client() as client:
            history = History("five")
            await create(client, "five")
            leader = await cluster.leader()
            follower = leader % 5 + 1
            await _survive(cluster, client, history, [leader, follower])
            others = [node for node in cluster.addresses if node != await cluster.leader()]
            await _survive(cluster, client, history, others[:2])
            await _refuse(cluster, history, others[1:])
            assert await history.lost(client) == []
            assert history.is_linearizable()

    asyncio.run(story())


async def _survive(cluster: Cluster, client: Client, history: History, victims: list[int]) -> None:
    for node in victims:
        cluster.kill(node)
    for _ in range(5):
        await history.write(client, "a")
        await history.mark(client)
        await history.read(client)
    assert history.answers >= 15
    for node in victims:
        cluster.start(node)
    await cluster.whole()


async def _refuse(cluster: Cluster, history: History, victims: list[int]) -> None:
    """With three of five nodes dead none may answer; when they are back, all data is there."""
    for node in victims:
        cluster.kill(node)
    async with cluster.client(cluster.living(), patience_s=SHORT_S) as client:
        requests = (notes(client, history.run), mark(client, history.run, "refused"))
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(answer, UnreachableError), f"two of five answered: {answer}"
            assert f"{SHORT_S:g} s" in answer.what
    for node in victims:
        cluster.start(node)
    await cluster.whole()


def test_a_frozen_leader_is_replaced_and_answers_nothing_when_it_wakes(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, cluster.client() as client:
            await create(client, "run")
            await mark(client, "run", "register", "old")
            frozen = await cluster.leader()
            others = [node for node in cluster.addresses if node != frozen]
            async with Direct(cluster.addresses[frozen], cluster.token()) as stuck:
                await stuck.marks("run")  # it is connected, and led
                cluster.freeze(frozen)
                requests = (
                    asyncio.create_task(stuck.mark("run", "register", "stale")),
                    asyncio.create_task(stuck.marks("run")),
                )
                await cluster.leader(others)
                async with cluster.client(others) as majority:
                    await mark(majority, "run", "register", "new")
                await asyncio.sleep(2.0)
                cluster.thaw(frozen)
                answers = await asyncio.gather(*requests, return_exceptions=True)
            for answer in answers:
                assert isinstance(answer, grpc.aio.AioRpcError), f"the old leader answered: {answer}"
                assert answer.code() is grpc.StatusCode.UNAVAILABLE
            (status,) = [s for s in await cluster.whole() if s.node == frozen]
            assert status.role == "follower"
            assert await notes(client, "run") == {"register": "new"}

    asyncio.run(story())


def test_a_frozen_follower_disturbs_no_other_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, cluster.client() as client:
            await create(client, "run")
            leader = await cluster.leader()
            frozen = leader % 3 + 1
            others = [node for node in cluster.addresses if node != frozen]
            cluster.freeze(frozen)
            await asyncio.sleep(1.0)
            history = History("run")
            for _ in range(5):
                await history.mark(client)
            assert len(history.marked) == 5
            await cluster.whole(others)
            cluster.thaw(frozen)
            await cluster.whole()
            assert await history.lost(client) == []

    asyncio.run(story())


def test_a_node_that_was_away_catches_up_by_log_and_by_snapshot(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, cluster.client() as client:
            history = History("run")
            await create(client, "run")
            away = await cluster.leader() % 3 + 1
            for with_snapshot in (False, True):
                cluster.kill(away)
                for _ in range(20):
                    await history.mark(client)
                if with_snapshot:
                    for node in cluster.living():
                        await client.of_node(cluster.addresses[node], "Snapshot", pb.SnapshotRequest())
                cluster.start(away)
                (status,) = [s for s in await cluster.whole() if s.node == away]
                assert (status.snapshot_index > 0) == with_snapshot
            for node in cluster.living():
                if node != away:
                    cluster.kill(node)
                    cluster.start(node)
            assert await history.lost(client) == []

    asyncio.run(story())

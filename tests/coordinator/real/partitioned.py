"""What a cluster must do while it is partitioned, and afterwards; for every kind of network."""

import asyncio

from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.history import History, create, mark, notes
from tests.coordinator.real.hosts import HostCluster
from tests.coordinator.real.proxy import ProxiedCluster

from paceline.coordinator.client.aio import UnreachableError

SHORT_S = 3.0


async def check_minority_refuses(cluster: Cluster, node: int, run: str) -> None:
    """Neither writes nor reads, whether it still believes that it leads or not."""
    async with cluster.client([node], patience_s=SHORT_S) as client:
        requests = (notes(client, run), mark(client, run, "said-to-the-minority"))
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(answer, UnreachableError), f"the minority answered: {answer}"
            assert f"{SHORT_S:g} s" in answer.what


async def check_one_lineage(cluster: Cluster, history: History) -> None:
    """All follow one leader, have the same log, and have lost nothing."""
    await cluster.whole()
    async with cluster.client() as client:
        assert "said-to-the-minority" not in await notes(client, history.run)
        assert await history.lost(client) == []
        await history.read(client)
    await cluster.whole()
    assert history.is_linearizable()
    cluster.check_disks()


async def ask_some(history: History, cluster: Cluster, nodes: list[int]) -> None:
    before = history.answers
    async with cluster.client(nodes) as client:
        for _ in range(4):
            await history.write(client, "a")
            await history.mark(client)
            await history.read(client)
    assert history.answers == before + 12


async def cut_the_leader_off(cluster: ProxiedCluster | HostCluster) -> None:
    history = History("run")
    async with cluster.client() as client:
        await create(client, "run")
    await ask_some(history, cluster, list(cluster.addresses))
    alone = await cluster.leader()
    others = [node for node in cluster.addresses if node != alone]
    cluster.silence([alone], others)
    cluster.silence(others, [alone])
    minority = asyncio.create_task(check_minority_refuses(cluster, alone, "run"))
    await ask_some(history, cluster, others)
    await minority
    cluster.heal()
    await check_one_lineage(cluster, history)


async def replace_a_leader_that_is_deaf_or_mute(
    cluster: ProxiedCluster | HostCluster, *, is_deaf: bool
) -> None:
    history = History("run")
    async with cluster.client() as client:
        await create(client, "run")
    hurt = await cluster.leader()
    others = [node for node in cluster.addresses if node != hurt]
    if is_deaf:
        cluster.silence(others, [hurt])
    else:
        cluster.silence([hurt], others)
    await cluster.leader(others)
    await ask_some(history, cluster, others)
    cluster.heal()
    await check_one_lineage(cluster, history)

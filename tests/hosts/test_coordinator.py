"""Coordinator nodes with certificates on three hosts: elections, lost hosts, cuts both ways or one way."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.coordinator.real.history import History, create
from tests.coordinator.real.hosts import HostCluster
from tests.coordinator.real.partitioned import (
    ask_some,
    check_one_lineage,
    cut_the_leader_off,
    replace_a_leader_that_is_deaf_or_mute,
)


def test_a_leader_whose_host_is_lost_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with HostCluster(tmp_path) as cluster:
            history = History("run")
            async with cluster.client() as client:
                await create(client, "run")
            await ask_some(history, cluster, list(cluster.addresses))
            lost = await cluster.leader()
            others = [node for node in cluster.addresses if node != lost]
            cluster.lose_host(lost)
            assert await cluster.leader(others) in others
            await ask_some(history, cluster, others)
            cluster.restart_host(lost)
            await check_one_lineage(cluster, history)

    asyncio.run(story())


def test_a_leader_that_is_cut_off_commits_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with HostCluster(tmp_path) as cluster:
            await cut_the_leader_off(cluster)

    asyncio.run(story())


@pytest.mark.parametrize("is_deaf", [True, False], ids=["deaf", "mute"])
def test_a_leader_whose_link_works_in_one_direction_is_replaced(tmp_path: Path, is_deaf: bool) -> None:
    async def story() -> None:
        async with HostCluster(tmp_path) as cluster:
            await replace_a_leader_that_is_deaf_or_mute(cluster, is_deaf=is_deaf)

    asyncio.run(story())


def test_a_node_beyond_loopback_needs_certificates_and_a_client_without_one_gets_no_answer(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with HostCluster(tmp_path, nodes=1) as cluster:
            host = cluster.network.host(1)
            paceline = [sys.executable, "-m", "paceline", "coordinator"]
            start = ["start", "--id", "1", "--peers", f"1={host.address}:7500", "--data-dir", "other"]
            assert host.run([*paceline, *start]).returncode == 4
            status = ["status", "--at", cluster.addresses[1], "--timeout-s", "2"]
            assert host.run([*paceline, *status, "--tls-dir", "pki", "--tls-name", "node-1"]).returncode == 0
            (host.folder / "token").write_text("x" * 40)
            assert host.run([*paceline, *status, "--token-file", "token"]).returncode != 0

    asyncio.run(story())

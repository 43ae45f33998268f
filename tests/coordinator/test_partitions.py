"""A minority partition refuses to serve, and rejoins without harm. On hosts: hosts/test_coordinator.py."""

import asyncio
from pathlib import Path

import pytest
from tests.coordinator.real.partitioned import cut_the_leader_off, replace_a_leader_that_is_deaf_or_mute
from tests.coordinator.real.proxy import ProxiedCluster


def test_a_leader_that_is_cut_off_answers_nothing_and_follows_when_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with ProxiedCluster(tmp_path) as cluster:
            await cut_the_leader_off(cluster)

    asyncio.run(story())


@pytest.mark.parametrize("is_deaf", [True, False], ids=["deaf", "mute"])
def test_a_leader_that_is_deaf_or_mute_is_replaced(tmp_path: Path, is_deaf: bool) -> None:
    async def story() -> None:
        async with ProxiedCluster(tmp_path) as cluster:
            await replace_a_leader_that_is_deaf_or_mute(cluster, is_deaf=is_deaf)

    asyncio.run(story())

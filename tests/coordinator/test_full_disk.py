"""A node stops cleanly when its disk is full or damaged, and loses nothing it acknowledged."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.history import History, create, mark
from tests.fixtures.processes.command import paceline

from paceline.coordinator.client.aio import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.storage import StorageError
from paceline.core.errors import ExitCode

SMALL, LARGE = "512k", "64m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of half a megabyte."""
    if os.geteuid() != 0:
        pytest.skip("a full disk was NOT tried: mounting a small tmpfs needs root")
    folder = tmp_path / "cluster" / "node-1"
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "paceline-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a full disk was NOT tried: this machine cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def used_bytes(disk: Path) -> int:
    result = os.statvfs(disk)
    return (result.f_blocks - result.f_bfree) * result.f_frsize


async def fill_until_it_ends(cluster: Cluster, client: Client, history: History, node: int) -> None:
    for number in range(10_000):
        await mark(client, history.run, f"long-{number % 10}", "x" * 8000)
        await history.mark(client)
        if node not in cluster.living():
            break
    assert await cluster.ended(node) == ExitCode.NOT_READY
    printed = cluster.output(node)
    assert f"error[{StorageError.code}]" in printed
    assert os.strerror(errno.ENOSPC) in printed
    assert "Traceback" not in printed


def test_a_node_whose_disk_is_full_stops_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path / "cluster") as cluster, cluster.client() as client:
            history = History("run")
            await create(client, "run")
            if await cluster.leader() != 1:
                await client.manage("StepDown", pb.StepDownRequest(to=1))
            await fill_until_it_ends(cluster, client, history, 1)
            verified = paceline("coordinator", "verify", str(small_disk))
            assert verified.code == ExitCode.OK, verified.err
            for _ in range(5):
                await history.mark(client)  # the others go on
            resize(small_disk, LARGE)
            cluster.start(1)
            await cluster.whole()
            assert await cluster.leader() != 1
            resize(small_disk, str(used_bytes(small_disk) + 40_000))  # and the same for a follower
            await fill_until_it_ends(cluster, client, history, 1)
            resize(small_disk, LARGE)
            cluster.start(1)
            await cluster.whole()
            assert await history.lost(client) == []
            cluster.check_disks()

    asyncio.run(story())


def test_a_torn_end_is_made_up_for_and_a_changed_byte_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, cluster.client() as client:
            history = History("run")
            await create(client, "run")
            for _ in range(20):
                await history.mark(client)
            torn = await cluster.leader() % 3 + 1
            await cluster.whole()
            cluster.kill(torn)
            log = newest_log(cluster.data_dir(torn))
            os.truncate(log, log.stat().st_size - 3)
            cluster.start(torn)
            await cluster.whole()
            assert "torn_bytes" in cluster.output(torn)
            await flip_a_byte(cluster, torn)
            for _ in range(5):
                await history.mark(client)
            assert await history.lost(client) == []

    asyncio.run(story())


async def flip_a_byte(cluster: Cluster, node: int) -> None:
    cluster.kill(node)
    log = newest_log(cluster.data_dir(node))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x10
    log.write_bytes(data)
    cluster.start(node)
    assert await cluster.ended(node) == ExitCode.NOT_READY
    printed = cluster.output(node)
    assert f"error[{StorageError.code}]" in printed
    assert str(log) in printed
    with pytest.raises(StorageError) as refused:
        cluster.on_disk(node)
    assert str(log) in refused.value.what
    assert f" {len(data)}" in refused.value.what  # how much of it can be read, of so many bytes
    assert paceline("coordinator", "verify", str(cluster.data_dir(node))).code != ExitCode.OK


def newest_log(folder: Path) -> Path:
    return max(folder.glob("wal-*.log"))

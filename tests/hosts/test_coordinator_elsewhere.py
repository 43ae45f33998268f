"""An elastic run on a host whose coordinator nodes are on three other hosts, with nothing shared."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.coordinator.real.hosts import HostCluster
from tests.fixtures.processes.command import paceline
from tests.fixtures.waiting import until

from paceline.events.follow import LogFollower
from paceline.faults.hosts.host import Host, HostProcess

HOST = 4  # after the three nodes
PACELINE = (sys.executable, "-m", "paceline")
SHAPE = ["--num-workers", "2", "--shards", "4", "--max-workers", "3"]
ENDLESS = ["--steps", "1000000", "--pace", "20ms"]


@pytest.mark.soak
def test_a_run_trains_on_another_host_than_its_coordinator_and_survives_the_leader(tmp_path: Path) -> None:
    verified = paceline("verify", str(asyncio.run(_train_elsewhere(tmp_path))))
    assert verified.code == 0, verified.out


async def _train_elsewhere(folder: Path) -> Path:
    async with HostCluster(folder, more_hosts=1) as cluster:
        host = cluster.network.host(HOST)
        shutil.copytree(folder / "pki", host.folder / "pki")
        named = ["--coordinator", ",".join(cluster.addresses.values()), "--tls-dir", "pki"]
        command = [*PACELINE, "train", "--elastic", *SHAPE, *ENDLESS, "--run-dir", "run", *named]
        training = host.start(command)
        log = LogFollower(host.folder / "run" / "events.jsonl", rows=64)
        _until_steps(training, log, more_than=20)
        lost = await cluster.leader()
        cluster.lose_host(lost)
        await cluster.whole(cluster.living())
        _until_steps(training, log, more_than=_newest(log) + 40)
        added = _on_host(host, "workers", "add", "run", "1", "--json")
        assert len(json.loads(added)["data"]["workers"]) == 3
        _on_host(host, "stop", "run")
        said = training.process.communicate(timeout=120)[0]
        assert training.process.returncode in (0, 130), said
        return host.folder / "run"


def _until_steps(training: HostProcess, log: LogFollower, *, more_than: int) -> None:
    def has_trained() -> bool:
        assert not training.has_ended(), training.process.communicate()[0]
        return _newest(log) > more_than

    until(has_trained, f"step {more_than}")


def _newest(log: LogFollower) -> int:
    return max((row.position for rows in log.read().steps.values() for row in rows), default=-1)


def _on_host(host: Host, *words: str) -> str:
    result = host.run([*PACELINE, *words], timeout_s=240)
    assert result.returncode == 0, result.stderr
    return result.stdout

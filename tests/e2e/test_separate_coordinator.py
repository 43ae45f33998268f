"""An elastic run whose coordinator nodes are on other hosts: network namespaces on one bridge."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.coordinator.real.namespaces import CannotError, SeparateCluster
from tests.fixtures.processes.command import ROOT, paceline, processes_of
from tests.fixtures.waiting import kill_all, until

from paceline.events.follow import LogFollower

HOST = 4  # after the three nodes
SHAPE = ["--num-workers", "2", "--shards", "4", "--max-workers", "3"]
ENDLESS = ["--steps", "1000000", "--pace", "20ms"]


@pytest.mark.soak
def test_a_run_trains_on_another_host_than_its_coordinator_and_survives_the_leader(tmp_path: Path) -> None:
    try:
        asyncio.run(_train_apart(tmp_path))
    except CannotError as error:
        pytest.skip(f"NO NETWORK NAMESPACES HERE: {error}")
    verified = paceline("verify", str(tmp_path / "run"))
    assert verified.code == 0, verified.out


async def _train_apart(folder: Path) -> None:
    async with SeparateCluster(folder / "cluster", more_hosts=1) as cluster:
        run_dir = folder / "run"
        on_host = [*cluster.command(HOST), sys.executable, "-m", "paceline"]
        pki = folder / "cluster" / "pki"
        named = ["--coordinator", ",".join(cluster.addresses.values()), "--tls-dir", str(pki)]
        command = [*on_host, "train", "--elastic", *SHAPE, *ENDLESS, "--run-dir", str(run_dir), *named]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            log = LogFollower(run_dir / "events.jsonl", rows=64)
            try:
                _until_steps(process, log, more_than=20)
                cluster.kill(await cluster.leader())
                await cluster.whole(cluster.living())
                _until_steps(process, log, more_than=_newest(log) + 40)
                added = _on_host(on_host, "workers", "add", str(run_dir), "1", "--json")
                assert len(json.loads(added)["data"]["workers"]) == 3
                _on_host(on_host, "stop", str(run_dir))
                _, err = process.communicate(timeout=120)
                assert process.returncode in (0, 130), err
            finally:
                kill_all(processes_of(process) if process.poll() is None else [])


def _until_steps(process: "subprocess.Popen[str]", log: LogFollower, *, more_than: int) -> None:
    def has_trained() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return _newest(log) > more_than

    until(has_trained, f"step {more_than}")


def _newest(log: LogFollower) -> int:
    return max((row.position for rows in log.read().steps.values() for row in rows), default=-1)


def _on_host(on_host: list[str], *words: str) -> str:
    result = subprocess.run(
        [*on_host, *words], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout

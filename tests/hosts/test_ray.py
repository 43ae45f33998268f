"""Elastic runs on the nodes of a Ray cluster, on hosts with nothing shared: nodes join, drain and vanish."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.elastic_runs import steps_made
from tests.fixtures.runs.host_runs import are_apart, host_of, servers, starts, until_guarded
from tests.fixtures.runs.ray_hosts import HEAD, RayOnHosts, ray_on_hosts

from paceline.faults.scenarios.host_fleet import HostRun
from paceline.faults.scenarios.training import events_of

XOR = ("--task", "xor", "--steps", "1000000", "--pace", "20ms")
pytestmark = pytest.mark.timeout(600)


def test_a_node_joins_and_gets_a_worker_another_vanishes_and_the_bits_are_those_of_one_machine(
    tmp_path: Path,
) -> None:
    with ray_on_hosts(tmp_path, nodes=2, more_hosts=1) as cluster:
        run = cluster.start_training("--mode", "ssgd", "--num-workers", "2", "--shards", "3", *XOR)
        generation = run.until_in(2, after=0)
        assert {host_of(run, f"worker-{n}") for n in range(2)} == {1, 2}
        cluster.start_node(3)
        generation = run.until_in(3, after=generation)
        assert host_of(run, "worker-2") == 3
        (lost,) = (f"worker-{n}" for n in range(3) if host_of(run, f"worker-{n}") == 2)
        cluster.network.lose(2)
        run.until_in(2, after=generation)
        survivors = {f"worker-{n}" for n in range(3)} - {lost}
        pids = {who: _pids(run, who) for who in survivors}
        assert all(len(of_worker) == 1 for of_worker in pids.values()), "none was restarted"
        run.stop()
        assert _shows_no_secret(cluster)
    assert run.command.process.returncode == 130, run.output()
    assert_nothing_was_lost(cluster.run_dir)
    result = json.loads((cluster.run_dir / "result.json").read_text())
    steps = str(result["steps"])
    alone = ["train", "--mode", "ssgd", "--task", "xor", "--num-workers", "3", "--steps", steps]
    done = paceline(*alone, "--run-dir", str(tmp_path / "alone"))
    assert done.code == 0, done.err
    assert _state_of(tmp_path / "alone") == _state_of(cluster.run_dir)


@pytest.mark.soak
def test_a_node_that_will_be_preempted_is_left_after_a_committed_step(tmp_path: Path) -> None:
    with ray_on_hosts(tmp_path, nodes=2, more_hosts=1) as cluster:
        run = cluster.start_training("--mode", "ssgd", "--num-workers", "2", *XOR)
        generation = run.until_in(2, after=0)
        (leaving,) = (f"worker-{n}" for n in range(2) if host_of(run, f"worker-{n}") == 2)
        cluster.start_node(3)
        cluster.drain(2)  # nothing else ends there
        run.until_in(2, after=generation)
        run.until(lambda _: host_of(run, leaving) == 3, "its worker is on the other node")
        run.stop()
    assert run.command.process.returncode == 130, run.output()
    assert_nothing_was_lost(cluster.run_dir)


@pytest.mark.soak
def test_a_node_with_a_parameter_server_vanishes_and_no_update_is_lost(tmp_path: Path) -> None:
    with ray_on_hosts(tmp_path, nodes=3, more_hosts=1) as cluster:
        run = cluster.start_training("--mode", "asgd", "--num-workers", "1", *XOR)
        run.until(lambda _: are_apart(run), "two servers are on two nodes")
        leading, following = servers(run)
        (lost, *_) = [server for server in (leading, following) if host_of(run, server) != HEAD]
        before = starts(run, lost)
        cluster.network.lose(host_of(run, lost))
        cluster.start_node(4)
        run.until(lambda _: starts(run, lost) > before, "it is replaced")
        until_guarded(run)
        run.stop()
    assert run.command.process.returncode == 130, run.output()
    assert_nothing_was_lost(cluster.run_dir)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_node_with_a_worker_of_a_torch_mode_vanishes_and_no_step_is_lost(mode: str, tmp_path: Path) -> None:
    with ray_on_hosts(tmp_path, nodes=2, more_hosts=1) as cluster:
        run = cluster.start_training("--mode", mode, "--num-workers", "2", "--checkpoint-every", "20", *XOR)
        generation = run.until_in(2, after=0)
        cluster.start_node(3)
        cluster.network.lose(2)
        run.until_in(2, after=generation)
        assert {host_of(run, f"worker-{n}") for n in range(2)} == {1, 3}
        run.stop()
    assert steps_made(cluster.run_dir) > 0


def _state_of(run_dir: Path) -> set[str]:
    return set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())


def _pids(run: HostRun, who: str) -> list[int]:
    started = events_of(run.log.read(), "worker_started")
    return [int(str(event.fields["pid"])) for event in started if event.who == who]


def _shows_no_secret(cluster: RayOnHosts) -> bool:
    """Neither logs nor files of Ray contain the key of a worker, with which the coordinator is called."""
    key = (cluster.run_dir / "coordinator" / "pki" / "worker.key").read_text().splitlines()[1].encode()
    files = (cluster.network.host(HEAD).folder / "ray").rglob("*")
    return not any(key in file.read_bytes() for file in files if file.is_file() and not file.is_symlink())

"""Elastic runs on hosts with nothing shared: workers, agents, hosts and the coordinator's leader are lost."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.elastic_runs import until_all_are_in
from tests.fixtures.runs.host_runs import host_fleet


def state_of(run_dir: Path) -> set[str]:
    return set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())


@pytest.mark.parametrize("mode", ["ssgd", pytest.param("localsgd", marks=pytest.mark.soak)])
def test_a_run_on_three_hosts_has_the_bits_of_one_machine(tmp_path: Path, mode: str) -> None:
    shape = ["--mode", mode, "--task", "xor", "--steps", "40", "--num-workers", "3"]
    with host_fleet(tmp_path / "hosts") as fleet:
        done = fleet.train(*shape)
        assert done.code == 0, done.err + fleet.log("agent-1").read_text()
        run_dir = fleet.run_dir
        for number in (1, 2, 3):
            assert not (fleet.nodes.network.host(number).folder / "run").exists()
    assert_nothing_was_lost(run_dir)
    alone = paceline("train", "--elastic", *shape, "--run-dir", str(tmp_path / "alone"))
    assert alone.code == 0, alone.err
    assert state_of(run_dir) == state_of(tmp_path / "alone")


@pytest.mark.soak
def test_a_worker_an_agent_a_host_and_the_leader_are_lost_and_a_host_joins(tmp_path: Path) -> None:
    with host_fleet(tmp_path / "hosts", more_hosts=1) as fleet:
        network = fleet.nodes.network
        with fleet.training("--mode", "ssgd", "--num-workers", "3", participants=3) as run:
            generation = until_all_are_in(run, after=0)
            run.kill_worker("worker-1")
            generation = until_all_are_in(run, after=generation)
            fleet.agents[1].kill()
            fleet.start_agent(1)
            generation = until_all_are_in(run, after=generation)
            lost = fleet.nodes.leader()
            network.lose(lost)
            fleet.start_agent(5)
            generation = until_all_are_in(run, after=generation)
            assert {run.host_of(f"worker-{n}") for n in range(3)} == {1, 2, 3, 5} - {lost}
            run.stop()
    assert_nothing_was_lost(fleet.run_dir)


@pytest.mark.soak
@pytest.mark.parametrize("is_mute", [True, False], ids=["mute", "deaf"])
def test_a_host_cut_off_in_one_direction_is_left_out_and_comes_back(tmp_path: Path, is_mute: bool) -> None:
    with host_fleet(tmp_path / "hosts") as fleet:
        network = fleet.nodes.network
        with fleet.training("--mode", "localsgd", "--num-workers", "3", participants=3) as run:
            generation = until_all_are_in(run, after=0)
            struck = next(n for n in (1, 2, 3) if n != fleet.nodes.leader())
            if is_mute:
                network.mute(struck)
            else:
                network.deafen(struck)
            generation = until_all_are_in(run, after=generation, workers=2)
            network.heal()
            until_all_are_in(run, after=generation)
            run.stop()
    assert_nothing_was_lost(fleet.run_dir)

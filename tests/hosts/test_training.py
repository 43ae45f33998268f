"""Elastic runs on hosts with nothing shared: workers, agents, hosts and the coordinator's leader are lost."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.host_runs import ENDLESS, fleet_on_hosts, host_of, kill_participant

from paceline.events.read import read_history
from paceline.faults.scenarios.training import commits_ns


def state_of(run_dir: Path) -> set[str]:
    return set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())


@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_a_run_on_three_hosts_has_the_bits_of_one_machine(tmp_path: Path, mode: str) -> None:
    shape = ["--mode", mode, "--task", "xor", "--steps", "40", "--num-workers", "3"]
    with fleet_on_hosts(tmp_path / "hosts") as fleet:
        run = fleet.start_training(*shape)
        assert run.command.wait(240) == 0, run.output()
        for number in (1, 2, 3):
            assert not (fleet.nodes.network.host(number).folder / "run").exists()
    assert_nothing_was_lost(fleet.run_dir)
    alone = paceline("train", "--elastic", *shape, "--run-dir", str(tmp_path / "alone"))
    assert alone.code == 0, alone.err
    assert state_of(fleet.run_dir) == state_of(tmp_path / "alone")
    history = read_history(fleet.run_dir / "events.jsonl")
    commits = [at for rank in history.steps for at in commits_ns(history, rank)]
    assert max(commits) - min(commits) < 1000e9, "the hosts' own clocks differ by more"


def test_a_worker_an_agent_a_link_and_the_leaders_host_are_lost_and_a_host_joins(tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts", more_hosts=1) as fleet:
        network = fleet.nodes.network
        run = fleet.start_training("--mode", "ssgd", *ENDLESS)
        generation = run.until_in(3, after=0)
        kill_participant(run, "worker-1")
        generation = run.until_in(3, after=generation)
        fleet.agents[1].kill()
        fleet.start_agent(1)
        generation = run.until_in(3, after=generation)
        lost = fleet.nodes.leader()
        network.mute(lost)  # the others do not receive what it sends
        generation = run.until_in(2, after=generation)
        network.heal()
        generation = run.until_in(3, after=generation)
        lost = fleet.nodes.leader()
        fleet.nodes.lose(lost)
        fleet.start_agent(5)
        run.until_in(3, after=generation)
        assert {host_of(run, f"worker-{n}") for n in range(3)} == {1, 2, 3, 5} - {lost}
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)


@pytest.mark.soak
def test_a_host_that_receives_nothing_is_left_out_and_comes_back(tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts") as fleet:
        network = fleet.nodes.network
        run = fleet.start_training("--mode", "localsgd", *ENDLESS)
        generation = run.until_in(3, after=0)
        struck = next(number for number in (1, 2, 3) if number != fleet.nodes.leader())
        network.deafen(struck)
        generation = run.until_in(2, after=generation)
        network.heal()
        run.until_in(3, after=generation)
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)

"""Elastic ddp and fsdp on hosts with nothing shared: torch's collectives over the connections of the run."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.elastic_runs import steps_made
from tests.fixtures.runs.host_runs import ENDLESS, fleet_on_hosts, host_of, kill_participant
from tests.fixtures.servers.listening import listening_on

from paceline.checkpoints.catalog import newest_complete, newest_shared

SAVING = ("--checkpoint-every", "20")


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_killed_worker_is_replaced_and_no_step_is_lost(mode: str, tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts") as fleet:
        run = fleet.start_training("--mode", mode, *ENDLESS, *SAVING)
        generation = run.until_in(3, after=0)
        checkpoints = fleet.run_dir / "checkpoints"
        newest = newest_shared if mode == "ddp" else newest_complete
        run.until(lambda _: newest(checkpoints, 3) is not None, "a checkpoint is whole")
        kill_participant(run, "worker-1")
        run.until_in(3, after=generation)
        found = [each for host in fleet.nodes.network for each in listening_on(host)]
        workers = [each for each in found if each.is_beyond_loopback and "zygote" in each.command]
        assert len(workers) == 3, "torch opens no sockets of its own"
        run.stop()
    assert_model_is_that_of_three_who_live(fleet.run_dir, tmp_path / "alone")


def assert_model_is_that_of_three_who_live(run_dir: Path, other: Path) -> None:
    steps = str(steps_made(run_dir))  # each with all of its samples exactly once
    plain = ["--mode", "ssgd", "--task", "xor", "--num-workers", "3", "--steps", steps]
    alone = paceline("train", *plain, "--run-dir", str(other))
    assert alone.code == 0, alone.err
    metrics, expected = (json.loads((at / "result.json").read_text())["metrics"] for at in (run_dir, other))
    assert metrics["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-3)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_host_is_lost_and_another_joins(mode: str, tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts", more_hosts=1) as fleet:
        run = fleet.start_training("--mode", mode, *ENDLESS, *SAVING)
        generation = run.until_in(3, after=0)
        run.until(lambda history: all(history.steps.get(n) for n in range(3)), "all of them train")
        lost = fleet.nodes.leader()
        fleet.nodes.lose(lost)
        generation = run.until_in(2, after=generation)
        fleet.start_agent(5)
        run.until_in(3, after=generation)
        assert {host_of(run, f"worker-{n}") for n in range(3)} == {1, 2, 3, 5} - {lost}
        run.stop()
    assert_model_is_that_of_three_who_live(fleet.run_dir, tmp_path / "alone")

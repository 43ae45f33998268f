"""Runs that are stopped while most nodes of their coordinator are dead."""

import signal
from pathlib import Path

import pytest
from tests.fixtures.coordinator.node_processes import three_nodes
from tests.fixtures.processes.command import Running, training
from tests.fixtures.runs.elastic_runs import events, stop
from tests.fixtures.waiting import until, until_gone

from paceline.checkpoints.catalog import folders

SHAPE = ["--num-workers", "2", "--elastic", "--pace", "20ms", "--checkpoint-every", "10"]


def printed_lines(run: Running) -> list[str]:
    decisions = [str(event.fields["decision"]) for event in events(run, "supervision")]
    return [text for text in decisions if "coordinator" in text]


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "participants"), [("ssgd", 2), ("asgd", 4)])
def test_ctrl_c_without_a_majority_is_reported_and_leaves_a_complete_run(
    tmp_path: Path, mode: str, participants: int
) -> None:
    run_dir = tmp_path / "run"
    with three_nodes(tmp_path) as nodes:
        env = {**nodes.env, "PACELINE_COORDINATOR": nodes.at}
        with training(run_dir, "--mode", mode, *SHAPE, participants=participants, env=env) as run:
            run.until(lambda: bool(folders(run_dir / "checkpoints")), "a checkpoint")
            for node in (1, 2):
                nodes.running[node].stop(signal.SIGKILL)
            stop(run)
            (text,) = printed_lines(run)
    assert "1 of 3 nodes" in text
    assert (run_dir / "result.json").exists()
    assert not (run_dir / "elastic.json").exists()


@pytest.mark.soak
def test_a_second_ctrl_c_waits_for_no_coordinator(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with three_nodes(tmp_path) as nodes:
        env = {**nodes.env, "PACELINE_COORDINATOR": nodes.at}
        with training(run_dir, "--mode", "ssgd", *SHAPE, env=env) as run:
            run.until(lambda: bool(folders(run_dir / "checkpoints")), "a checkpoint")
            processes = run.processes()
            for node in (1, 2, 3):
                nodes.running[node].process.send_signal(signal.SIGSTOP)
            run.send(signal.SIGINT)
            until(lambda: bool(events(run, "stop_requested")), "the first was received")
            run.send(signal.SIGINT)
            assert run.end().code == 130
            until_gone(processes)
            for node in (1, 2, 3):
                nodes.running[node].process.send_signal(signal.SIGCONT)

"""Runs over torch's process group continue when workers are killed, frozen or removed."""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline, resuming, training
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.elastic_runs import (
    events,
    number_of,
    pid_of,
    steps_made,
    stop,
    strike,
    until_all_are_in,
    until_left_out,
)
from tests.fixtures.waiting import kill
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import newest_complete
from paceline.launchers.local import LocalLauncher

WORK = ["--task", "digits", "--batch-size", "8", "--checkpoint-every", "20"]
ELASTIC = [*WORK, "--num-workers", "3", "--shards", "4", "--pace", "10ms"]
BOTH = pytest.mark.parametrize("mode", ["ddp", "fsdp"])


def assert_all_is_there(run_dir: Path, launcher: LocalLauncher) -> None:
    """Every step once by the log, and the model that four workers who all live would have."""
    plain = ["--mode", "ssgd", "--num-workers", "4", "--steps", str(steps_made(run_dir))]
    into = ["--run-dir", f"{run_dir}-plain", "--json"]
    undisturbed = warm_paceline(launcher, "train", *WORK, *plain, *into, folder=run_dir.parent)
    expected = undisturbed.data()["result"]["metrics"]
    metrics = json.loads((run_dir / "result.json").read_text())["metrics"]
    assert metrics["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-3)


@BOTH
def test_killed_workers_are_replaced_and_no_sample_is_lost(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", mode, *ELASTIC, participants=3) as run:
        first = until_all_are_in(run, 0)
        survivor = pid_of(run, "worker-2")
        run.until_it_trains()  # a survivor that has committed nothing has nothing to send
        strike(run, "worker-0")
        second = until_all_are_in(run, first)
        strike(run, "worker-0")
        strike(run, "worker-1")
        until_all_are_in(run, second)
        stop(run)
        assert pid_of(run, "worker-2") == survivor  # it trained on, in the same process
        healed_from = {e.fields["healed_from"] for e in events(run, "generation_entered")}
        assert ("worker-2" in healed_from) == (mode == "ddp")  # parts that are lost come from a checkpoint
    assert_all_is_there(run_dir, launcher)


@BOTH
def test_batch_statistics_are_averaged_over_all_workers_whichever_survive(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    task = ["--task", "paceline.laws.tasks:TinyTask", "--task-option", "batch_norm=yes"]
    crew = ["--num-workers", "3", "--shards", "4", "--pace", "10ms", "--checkpoint-every", "20"]
    with training(run_dir, "--mode", mode, *task, *crew, participants=3) as run:
        first = until_all_are_in(run, 0)
        strike(run, "worker-0")
        until_all_are_in(run, first)
        stop(run)
    assert steps_made(run_dir) > 0


@BOTH
def test_a_frozen_worker_delays_the_others_only_briefly_and_comes_back(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    # gloo does not always notice in a process that wakes that its connections are cut: then it waits so long.
    crew = [*ELASTIC, "--timeout", "20"]
    with training(run_dir, "--mode", mode, *crew, participants=3) as run:
        first = until_all_are_in(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until_left_out(run, "worker-1", first)
        kill(victim, signal.SIGCONT)
        until_all_are_in(run, first)
        assert pid_of(run, "worker-1") == victim
        stop(run)
    assert_all_is_there(run_dir, launcher)


@BOTH
def test_a_worker_that_is_sent_away_takes_no_step_with_it(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", mode, *ELASTIC, participants=3) as run:
        first = until_all_are_in(run, 0)
        removed = paceline("workers", "remove", str(run_dir), "worker-1")
        assert removed.code == 0, removed.err
        smaller = until_all_are_in(run, first, workers=2)
        stop(run)
        lost = [e for e in events(run, "generation_lost") if number_of(e) == first]
        made = {e.fields["committed"] for e in lost} if mode == "ddp" else {None}
        begun = {e.fields["committed"] for e in events(run, "generation_entered") if number_of(e) == smaller}
        assert mode == "fsdp" or begun == made
        assert all(int(str(step)) % 16 == 0 for step in begun)  # when they last asked each other
    assert_all_is_there(run_dir, launcher)


def test_parts_of_an_elastic_run_are_resumed_after_kill_9_of_everything(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", "fsdp", *ELASTIC, participants=3) as run:
        root = run_dir / "checkpoints"
        run.until(lambda: newest_complete(root, 4) is not None, "a checkpoint with all parts")
        run.kill_processes()
    left = run_dir / "generations" / "left-behind.store"
    left.touch()  # as of a generation without members in the resumed run
    with resuming(run_dir, participants=3) as run:
        run.until_it_trains()
        assert not left.exists()
        stop(run)
    assert_all_is_there(run_dir, launcher)


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "ddp", "--on-slow", "rebalance"],
        ["--mode", "fsdp", "--on-give-up", "pause"],
        ["--mode", "fsdp", "--checkpoint-every", "0"],
        ["--mode", "ddp", "--transport", "shm"],
    ],
)
def test_what_torch_cannot_do_is_refused_with_the_reason(
    args: list[str], tmp_path: Path, wording: Wording
) -> None:
    result = paceline("train", "--elastic", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert result.code == 3
    problems = json.loads(result.out)["error"]["problems"]
    wording("\n".join(problem["what"] for problem in problems))

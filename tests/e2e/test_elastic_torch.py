"""Do runs over torch's process group go on when workers are killed, frozen or sent away?"""

import json
import signal
from pathlib import Path

import pytest
from tests.e2e.test_elastic import entered, events, pid_of, until_all_are_in
from tests.fixtures.command import Running, paceline, training
from tests.fixtures.waiting import kill, until, until_gone

from paceline.checkpoints.catalog import newest_complete

WORK = ["--task", "digits", "--batch-size", "8", "--checkpoint-every", "20"]
ELASTIC = [*WORK, "--num-workers", "3", "--shards", "4", "--pace", "10ms"]
BOTH = pytest.mark.parametrize("mode", ["ddp", "fsdp"])


def assert_all_is_there(run_dir: Path, steps: int) -> None:
    """Every step once by the log, and the model that four workers who all live would have."""
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.code == 0, verified.out
    plain = ["--mode", "ssgd", "--num-workers", "4", "--steps", str(steps)]
    undisturbed = paceline("train", *WORK, *plain, "--run-dir", f"{run_dir}-plain", "--json")
    expected = undisturbed.data()["result"]["metrics"]
    found = json.loads((run_dir / "result.json").read_text())["metrics"]
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-3)


def generations_with(run: Running, count: int, after: int) -> list[int]:
    return [number for _, number, who in entered(run) if number > after and len(who.split(",")) == count]


@BOTH
def test_killed_workers_are_replaced_and_no_sample_is_lost(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", mode, *ELASTIC, "--steps", "200", participants=3) as run:
        first = until_all_are_in(run, 0)
        survivor = pid_of(run, "worker-2")
        kill(pid_of(run, "worker-0"))
        second = until_all_are_in(run, first)
        kill(pid_of(run, "worker-0"))
        kill(pid_of(run, "worker-1"))
        until_all_are_in(run, second)
        everybody = run.everybody()
        done = run.end(within_s=120)
        assert done.code == 0, done.err
        until_gone(everybody)
        assert pid_of(run, "worker-2") == survivor  # it trained on, in the same process
        healed_from = {e.fields["healed_from"] for e in events(run, "generation_entered")}
        assert ("worker-2" in healed_from) == (mode == "ddp")  # parts that are lost come from a checkpoint
    assert_all_is_there(run_dir, 200)


@BOTH
def test_batch_statistics_are_everybodys_whoever_lives(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    task = ["--task", "paceline.laws.tasks:TinyTask", "--task-option", "batch_norm=yes"]
    crew = ["--num-workers", "3", "--shards", "4", "--pace", "10ms", "--checkpoint-every", "20"]
    with training(run_dir, "--mode", mode, *task, *crew, "--steps", "120", participants=3) as run:
        first = until_all_are_in(run, 0)
        kill(pid_of(run, "worker-0"))
        until_all_are_in(run, first)
        done = run.end(within_s=120)
        assert done.code == 0, done.err
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.code == 0, verified.out


@BOTH
def test_a_frozen_worker_holds_nobody_up_for_long_and_comes_back(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # gloo does not always notice in a process that wakes that its connections are cut: then it waits so long.
    crew = [*ELASTIC, "--timeout", "20"]
    with training(run_dir, "--mode", mode, *crew, "--steps", "400", participants=3) as run:
        first = until_all_are_in(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until(lambda: bool(generations_with(run, 2, first)), "the others train without it")
        kill(victim, signal.SIGCONT)
        until_all_are_in(run, first)
        assert pid_of(run, "worker-1") == victim
        done = run.end(within_s=120)
        assert done.code == 0, done.err
    assert_all_is_there(run_dir, 400)


@BOTH
def test_a_worker_that_is_sent_away_takes_no_step_with_it(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", mode, *ELASTIC, "--steps", "300", participants=3) as run:
        first = until_all_are_in(run, 0)
        removed = paceline("workers", "remove", str(run_dir), "worker-1")
        assert removed.code == 0, removed.err
        done = run.end(within_s=120)
        assert done.code == 0, done.err
        smaller = min(generations_with(run, 2, first))
        lost = [e for e in events(run, "generation_lost") if e.fields["number"] == first]
        made = {e.fields["committed"] for e in lost} if mode == "ddp" else {None}
        begun = {
            e.fields["committed"] for e in events(run, "generation_entered") if e.fields["number"] == smaller
        }
        assert mode == "fsdp" or begun == made
        assert all(int(str(step)) % 16 == 0 for step in begun)  # when they last asked each other
    assert_all_is_there(run_dir, 300)


def test_parts_of_an_elastic_run_are_resumed_after_kill_9_of_everything(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", "fsdp", *ELASTIC, "--steps", "120", participants=3) as run:
        until(lambda: newest_complete(run_dir / "checkpoints", 4) is not None, "a checkpoint with all parts")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    assert_all_is_there(run_dir, 120)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--mode", "ddp", "--on-slow", "rebalance"], "torch hides in backward who waits for whom"),
        (["--mode", "fsdp", "--on-give-up", "pause"], "nothing in memory that is not lost with a worker"),
        (["--mode", "fsdp", "--checkpoint-every", "0"], "takes its part of the model with it"),
        (["--mode", "ddp", "--transport", "shm"], "transport shm does not work for mode ddp"),
    ],
)
def test_what_torch_cannot_do_is_refused_with_the_reason(args: list[str], what: str, tmp_path: Path) -> None:
    done = paceline("train", "--elastic", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 3
    problems = json.loads(done.out)["error"]["problems"]
    assert any(what in problem["what"] for problem in problems), problems

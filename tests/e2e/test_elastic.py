"""Elastic runs continue when workers are killed or frozen, with the bits of an undisturbed run."""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline, resuming, training
from tests.fixtures.runs.elastic_runs import (
    events,
    number_of,
    pid_of,
    stop,
    strike,
    until_all_are_in,
    until_left_out,
    until_saved,
)
from tests.fixtures.waiting import kill, until_gone
from tests.fixtures.wording import Wording

ELASTIC = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--shards", "4", "--pace", "10ms"]
SOAK = pytest.mark.soak


def test_killed_workers_are_replaced_and_the_result_has_the_same_bits(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ELASTIC, participants=3) as run:
        first = until_all_are_in(run, 0)
        survivor = pid_of(run, "worker-2")
        strike(run, "worker-0")
        second = until_all_are_in(run, first)
        strike(run, "worker-0")
        strike(run, "worker-1")
        until_all_are_in(run, second)
        stop(run)
        assert pid_of(run, "worker-2") == survivor  # it trained on, in the same process
        # From memory: there is no checkpoint before the end. Of the last two, the first to return could
        # only read from worker-2; the other may have read from either.
        assert "worker-2" in [e.fields["healed_from"] for e in events(run, "generation_entered")]
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_worker_is_left_out_and_comes_back_when_it_wakes(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ELASTIC, participants=3) as run:
        first = until_all_are_in(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until_left_out(run, "worker-1", first)
        kill(victim, signal.SIGCONT)
        until_all_are_in(run, first)
        assert pid_of(run, "worker-1") == victim
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_worker_that_never_wakes_is_replaced_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ELASTIC, "--timeout", "2s", participants=3) as run:
        first = until_all_are_in(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until_gone([victim])
        run.until(lambda: pid_of(run, "worker-1") != victim, "it is replaced")
        second = until_all_are_in(run, first)
        kill(pid_of(run, "worker-2"), signal.SIGSTOP)
        until_left_out(run, "worker-2", second)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_after_kill_9_of_everything_it_is_resumed_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--checkpoint-every", "20", participants=3) as run:
        until_saved(run)
        run.kill_processes()
    with resuming(run_dir, participants=3) as run:
        run.until_it_trains()
        stop(run)
        (resumed,) = events(run, "run_resumed")
        assert int(str(resumed.fields["version"])) >= 20
    assert_nothing_was_lost(run_dir)


def test_when_all_workers_die_at_once_their_replacements_resume_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--checkpoint-every", "60", participants=3) as run:
        first = until_all_are_in(run, 0)
        until_saved(run)
        run.until_it_trains()  # so that there are steps after the checkpoint, which are lost with all workers
        for who in ("worker-0", "worker-1", "worker-2"):
            strike(run, who)
        until_all_are_in(run, first)
        stop(run)
        again = [e for e in events(run, "generation_entered") if number_of(e) > first]
        assert all(int(str(e.fields["committed"])) >= 60 for e in again)
    assert_nothing_was_lost(run_dir)


@pytest.mark.parametrize(
    "args",
    [
        ["--compress", "topk:0.1"],
        pytest.param(
            ["--mode", "localsgd", "--sync-every", "5", "--compress", "int8"], marks=pytest.mark.soak
        ),
        pytest.param(["--mode", "diloco", "--sync-every", "5", "--compress", "sign"], marks=SOAK),
        pytest.param(
            ["--aggregate", "median", "--byzantine", "worker=3,attack=garbage"], marks=pytest.mark.soak
        ),
    ],
    ids=" ".join,
)
def test_compressed_and_robust_runs_keep_their_bits_when_workers_die(args: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, *args, "--checkpoint-every", "20", participants=3) as run:
        first = until_all_are_in(run, 0)
        strike(run, "worker-1")
        second = until_all_are_in(run, first)
        until_saved(run)
        for who in ("worker-0", "worker-1", "worker-2"):
            strike(run, who)
        until_all_are_in(run, second)
        stop(run)
    assert_nothing_was_lost(run_dir)


def test_over_tcp_a_loss_resets_the_error_memories_and_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    args = ["--transport", "tcp", "--compress", "topk:0.1"]
    with training(run_dir, *ELASTIC, *args, participants=3) as run:
        first = until_all_are_in(run, 0)
        run.until_it_trains()
        strike(run, "worker-1")
        until_all_are_in(run, first)
        stop(run)
        resets = events(run, "error_memory_reset")
    assert {event.who for event in resets} == {"worker-0", "worker-1", "worker-2"}
    assert paceline("verify", str(run_dir)).code == 0
    assert "E305" in paceline("replay", str(run_dir)).err
    moved = json.loads((run_dir / "result.json").read_text())["compression"]
    assert moved["ratio"] > 2


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "ssgd", "--compress", "int8"],
        pytest.param(["--mode", "ssgd", "--compress", "powersgd:1"], marks=SOAK),
        pytest.param(["--mode", "fedavg", "--clients-per-round", "0.5", "--compress", "sign"], marks=SOAK),
        pytest.param(["--mode", "diloco", "--sync-every", "3", "--compress", "topk:0.1"], marks=SOAK),
        pytest.param(["--aggregate", "krum", "--byzantine-tolerance", "0"], marks=SOAK),
    ],
    ids=" ".join,
)
def test_means_over_tcp_have_the_bits_of_one_worker_for_each_shard(args: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    short = ["--steps", "12", "--transport", "tcp", "--run-dir", str(run_dir)]
    assert paceline("train", *ELASTIC, *args, *short).code == 0
    assert_nothing_was_lost(run_dir)


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "easgd", "--elastic"],
        ["--shards", "2", "--num-workers", "3"],
        ["--min-workers", "4", "--num-workers", "3"],
        ["--mode", "gossip", "--elastic"],
        ["--mode", "diloco", "--fragments", "2", "--elastic", "--compress", "int8"],
        ["--no-elastic", "--shards", "4"],
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], tmp_path: Path, wording: Wording
) -> None:
    result = paceline("train", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert result.code == 3
    problems = json.loads(result.out)["error"]["problems"]
    wording("\n".join(problem["what"] for problem in problems))

"""Runs in rounds continue when workers are killed inside one, with the plain mode's bits."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline, resuming, training
from tests.fixtures.runs.elastic_runs import stop, strike, until_all_are_in, until_saved
from tests.fixtures.wording import Wording

ELASTIC = ["--task", "digits", "--batch-size", "8", "--optimizer", "momentum", "--sync-every", "6"]
ELASTIC += ["--num-workers", "3", "--shards", "4", "--pace", "10ms"]


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        # tests/worker covers every worker and every moment for all modes; real processes cover the hardest.
        pytest.param("localsgd", [], marks=pytest.mark.soak),
        pytest.param("diloco", [], marks=pytest.mark.soak),
        ("diloco", ["--fragments", "3", "--sync-delay", "2", "--mixing", "0.5"]),
        ("fedavg", ["--clients-per-round", "0.5", "--checkpoint-every", "20"]),
    ],
    ids=["localsgd", "diloco", "streaming", "fedavg"],
)
def test_workers_killed_inside_a_round_are_replaced_and_the_bits_are_those_of_the_plain_mode(
    mode: str, more: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--mode", mode, *more, participants=3) as run:
        first = until_all_are_in(run, 0)
        strike(run, "worker-0")
        second = until_all_are_in(run, first)
        strike(run, "worker-1")
        strike(run, "worker-2")
        until_all_are_in(run, second)
        stop(run)
    assert_nothing_was_lost(run_dir)


@pytest.mark.parametrize("mode", [pytest.param("diloco", marks=pytest.mark.soak), "fedavg"])
def test_after_kill_9_of_everything_a_run_in_rounds_is_resumed_from_the_checkpoint(
    mode: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--mode", mode, "--checkpoint-every", "10", participants=3) as run:
        until_saved(run)
        run.kill_processes()
    with resuming(run_dir, participants=3) as run:
        run.until_it_trains()
        stop(run)
    assert_nothing_was_lost(run_dir)


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "adaptive", "--on-slow", "rebalance"],
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], tmp_path: Path, wording: Wording
) -> None:
    result = paceline("train", "--elastic", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert result.code == 3
    problems = json.loads(result.out)["error"]["problems"]
    wording("\n".join(problem["what"] for problem in problems))

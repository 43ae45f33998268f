"""Elastic runs over TCP continue when workers are killed or frozen, with the bits of shared memory."""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline, training
from tests.fixtures.runs.elastic_runs import (
    events,
    pid_of,
    stop,
    strike,
    until_all_are_in,
    until_left_out,
)
from tests.fixtures.waiting import kill

ELASTIC = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--shards", "4", "--pace", "10ms"]
ELASTIC += ["--transport", "tcp"]
SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        # tests/worker covers every worker and every moment for all modes; real processes cover the hardest.
        pytest.param("ssgd", [], marks=SOAK),
        pytest.param("localsgd", ["--sync-every", "4"], marks=SOAK),
        pytest.param("adaptive", ["--sync-every", "4", "--straggler", "worker=1,factor=4"], marks=SOAK),
        ("fedavg", ["--sync-every", "4", "--clients-per-round", "0.5", "--optimizer", "momentum"]),
    ],
)
def test_killed_workers_are_replaced_and_the_result_has_the_same_bits(
    mode: str, more: list[str], tmp_path: Path
) -> None:
    with training(tmp_path / "run", *ELASTIC, "--mode", mode, *more, participants=3) as run:
        first = until_all_are_in(run, 0)
        survivor = pid_of(run, "worker-2")
        strike(run, "worker-0")
        second = until_all_are_in(run, first)
        strike(run, "worker-0")
        strike(run, "worker-1")
        until_all_are_in(run, second)
        stop(run)
        assert pid_of(run, "worker-2") == survivor  # it trained on, in the same process
        assert "worker-2" in [e.fields["healed_from"] for e in events(run, "generation_entered")]
        assert not (run.run_dir / "generations").exists()  # the folder by which memory is found
    assert_nothing_was_lost(tmp_path / "run")


@SOAK
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


def test_both_transports_end_with_the_same_bits(tmp_path: Path) -> None:
    args = ["--elastic", "--task", "xor", "--num-workers", "2", "--shards", "3", "--steps", "20"]
    hashes = []
    for transport in ("shm", "tcp"):
        run_dir = tmp_path / transport
        outcome = paceline("train", *args, "--transport", transport, "--run-dir", str(run_dir))
        assert outcome.code == 0, outcome.err
        hashes.append(set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values()))
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 1

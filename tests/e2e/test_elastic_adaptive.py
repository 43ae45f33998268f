"""Elastic adaptive runs continue when workers are killed or frozen, and their decisions are verified."""

import signal
from pathlib import Path

from tests.fixtures.processes.command import assert_nothing_was_lost, resuming, training
from tests.fixtures.runs.elastic_runs import (
    events,
    stop,
    strike,
    until_all_are_in,
    until_left_out,
    until_saved,
)

ADAPTIVE = ["--task", "digits", "--batch-size", "8", "--optimizer", "momentum", "--mode", "adaptive"]
SHARED = [*ADAPTIVE, "--sync-every", "4", "--num-workers", "3", "--shards", "9", "--pace", "4ms"]
DELAYS = ["--straggler", "p=0.3,factor=8"]


def test_killed_and_frozen_workers_leave_the_way_and_the_bits_as_they_were_decided(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *SHARED, *DELAYS, participants=3) as run:
        first = until_all_are_in(run, 0)
        run.until(lambda: bool(events(run, "adapted")), "a decision")
        strike(run, "worker-0")
        second = until_all_are_in(run, first)
        strike(run, "worker-1", signal.SIGSTOP)
        until_left_out(run, "worker-1", second)
        strike(run, "worker-1", signal.SIGCONT)
        until_all_are_in(run, second)
        stop(run)
    assert_nothing_was_lost(run_dir)
    ways = {(e.fields["number"], e.fields["way"]) for e in events(run, "generation_entered")}
    assert len(ways) == len({number for number, _ in ways}), "all begin a generation in the same way"


def test_resumed_after_kill_9_of_everything_it_remembers_what_was_decided(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    args = [*SHARED, "--adaptive", "local-steps", "--checkpoint-every", "10"]
    with training(run_dir, *args, participants=3) as run:
        until_saved(run)
        run.kill_processes()
    with resuming(run_dir, participants=3) as run:
        run.until_it_trains()
        stop(run)
    assert_nothing_was_lost(run_dir)

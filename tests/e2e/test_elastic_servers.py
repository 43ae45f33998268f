"""Runs behind parameter servers continue when a worker or server dies, with nothing lost."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
from tests.fixtures.processes.command import Running, assert_nothing_was_lost, paceline, resuming, training
from tests.fixtures.runs.elastic_runs import events, pid_of, stop
from tests.fixtures.runs.run_servers import (
    strike_backup,
    strike_primary,
    strike_worker,
    until_guarded,
    until_it_goes_on,
)
from tests.fixtures.waiting import is_running, kill, kill_all
from tests.fixtures.wording import Wording

SERVED = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--elastic", "--pace", "10ms"]
PARTICIPANTS = 5  # three workers, a primary and its backup
LEASE_S = 3  # of a run with its own coordinator
CHANGES = ("server_started", "server_promoted", "server_restored", "worker_started", "push_refused")


def test_any_worker_and_any_server_may_be_killed(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "asgd", participants=PARTICIPANTS) as run:
        survivors = [pid_of(run, "worker-0"), pid_of(run, "worker-2")]
        until_guarded(run)
        strike_worker(run, "worker-1")
        until_guarded(run)
        strike_primary(run)
        strike_backup(run)  # the killed one, which came back as the backup of the other
        victim = pid_of(run, "worker-1")
        kill(victim)
        strike_primary(run)
        run.until(lambda: pid_of(run, "worker-1") != victim, "worker-1 is replaced")
        until_it_goes_on(run)
        assert [pid_of(run, "worker-0"), pid_of(run, "worker-2")] == survivors
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_primary_is_succeeded_and_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "asgd", participants=PARTICIPANTS) as run:
        until_guarded(run)
        frozen = strike_primary(run, number=signal.SIGSTOP)
        until_it_goes_on(run)
        kill(pid_of(run, frozen), signal.SIGCONT)
        until_guarded(run)  # it ended, and another process is the backup under its name
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_standstill_of_the_whole_run_changes_nothing(tmp_path: Path) -> None:
    """Ctrl-Z, `docker pause`, a suspended machine: no process of the run runs for a lease."""
    with training(tmp_path / "run", *SERVED, "--mode", "asgd", participants=PARTICIPANTS) as run:
        until_guarded(run)
        until_it_goes_on(run)
        before = [(e.kind, e.who) for e in run.live().plain]
        processes = run.processes()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in processes:
                kill(pid, number)
            if number is signal.SIGSTOP:
                time.sleep(LEASE_S + 1)  # the standstill itself
        until_it_goes_on(run, by=100)
        after = [(e.kind, e.who) for e in run.live().plain][len(before) :]
        assert not [kind for kind, _ in after if kind in CHANGES], after
        assert sorted(run.processes()) == sorted(processes)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_worker_is_given_up_and_what_it_had_computed_does_not_count(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "ssp", participants=PARTICIPANTS) as run:
        until_guarded(run)
        until_it_goes_on(run)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until_it_goes_on(run, by=60)  # far beyond the bound: the frozen worker holds no other back
        kill(victim, signal.SIGCONT)
        run.until(lambda: bool(events(run, "push_refused")) or _works_again(run), "it is back")
        until_it_goes_on(run)
        assert pid_of(run, "worker-1") == victim
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def _works_again(run: Running) -> bool:
    """Its share was given to another, and later it was given a new one."""
    rows = [row for row in run.live().server if row.rank == 1]
    lost = [row.at_ns for row in rows if row.op == "lost"]
    return bool(lost) and any(row.op == "apply" and row.at_ns > lost[-1] for row in rows)


SOAKED = [pytest.param(mode, marks=pytest.mark.soak) for mode in ("ssp", "dssp")]


@pytest.mark.parametrize("mode", ["ps", "backup", *SOAKED])
def test_the_other_modes_with_a_server_survive_too(mode: str, tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", mode, participants=PARTICIPANTS) as run:
        until_guarded(run)
        until_it_goes_on(run, by=10)
        victim = pid_of(run, "worker-0")
        kill(victim)
        strike_primary(run)
        run.until(lambda: pid_of(run, "worker-0") != victim, "worker-0 is replaced")
        until_it_goes_on(run, by=10)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_an_error_memory_that_is_lost_with_its_worker_is_recorded(tmp_path: Path) -> None:
    args = ["--mode", "asgd", "--compress", "topk:0.1"]
    with training(tmp_path / "run", *SERVED, *args, participants=PARTICIPANTS) as run:
        until_guarded(run)
        until_it_goes_on(run)
        strike_worker(run, "worker-1")
        run.until(lambda: bool(events(run, "error_memory_reset")), "it is recorded")
        strike_primary(run)
        until_it_goes_on(run)
        stop(run)
        assert {event.who for event in events(run, "error_memory_reset")} == {"worker-1"}
    assert paceline("verify", str(tmp_path / "run")).code == 0
    replayed = paceline("replay", str(tmp_path / "run"))
    assert "E305" in replayed.err


def test_backup_workers_continue_without_the_late_and_without_the_frozen(tmp_path: Path) -> None:
    late = ["--mode", "backup", "--backup-workers", "1", "--straggler", "worker=2,factor=5"]
    with training(tmp_path / "run", *SERVED, *late, participants=PARTICIPANTS) as run:
        until_guarded(run)
        run.until(lambda: any(row.op == "abandon" for row in run.live().server), "a late one is told so")
        run.until(lambda: bool(run.live().abandoned), "and stops")
        victim = pid_of(run, "worker-2")
        kill(victim, signal.SIGSTOP)
        until_it_goes_on(run)  # it is only late: the others are as many as an update needs
        kill(victim, signal.SIGCONT)
        until_guarded(run)
        strike_primary(run)
        until_it_goes_on(run)
        assert pid_of(run, "worker-2") == victim
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_when_both_servers_die_the_run_resumes_from_the_newest_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "asgd", "--checkpoint-every", "20"]
    with training(run_dir, *SERVED, *often, participants=PARTICIPANTS) as run:
        until_guarded(run)
        run.until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        kill_all([pid_of(run, "server-0-a"), pid_of(run, "server-0-b")])
        run.until(lambda: bool(events(run, "server_restored")), "a server went back to the checkpoint")
        assert int(str(events(run, "server_restored")[0].fields["version"])) >= 60
        until_guarded(run)
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(run_dir)


def test_after_kill_9_of_everything_it_is_resumed_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "ssp", "--checkpoint-every", "20"]
    with training(run_dir, *SERVED, *often, participants=PARTICIPANTS) as run:
        run.until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        run.kill_processes()
    with resuming(run_dir, participants=PARTICIPANTS) as run:
        run.until_it_trains()
        stop(run)
    assert_nothing_was_lost(run_dir)


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "seed"), [("asgd", 1), ("ssp", 2), ("dssp", 3), ("ps", 4), ("backup", 5)])
def test_whichever_process_is_killed_repeatedly_nothing_is_lost(mode: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    with training(tmp_path / "run", *SERVED, "--mode", mode, participants=PARTICIPANTS) as run:
        until_guarded(run)
        for _ in range(12):
            until_it_goes_on(run, by=rng.randrange(5, 40))
            newest = {event.who: int(str(event.fields["pid"])) for event in events(run, "worker_started")}
            victim = newest[rng.choice(sorted(newest))]
            if is_running(victim):  # else it waits to be replaced
                kill(victim)
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "easgd", "--elastic"],
        ["--mode", "asgd", "--elastic", "--transport", "shm"],
        ["--mode", "ps", "--elastic", "--num-workers", "3", "--aggregate", "median"],
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], tmp_path: Path, wording: Wording
) -> None:
    result = paceline("train", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert result.code == 3
    problems = json.loads(result.out)["error"]["problems"]
    wording("\n".join(problem["what"] for problem in problems))

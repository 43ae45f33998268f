"""Does a run behind parameter servers go on when any of its workers or servers dies, with nothing lost?"""

import random
import signal
from pathlib import Path

import pytest
from tests.fixtures.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.waiting import is_running, kill, until, until_gone

from paceline.events.read import History, PlainEvent, read_history

SERVED = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--elastic", "--pace", "10ms"]
EVERYBODY = 5  # three workers, a primary and its backup


def history(run: Running) -> History:
    return read_history(run.run_dir / "events.jsonl")


def events(run: Running, kind: str) -> list[PlainEvent]:
    return [event for event in history(run).plain if event.kind == kind]


def pid_of(run: Running, who: str) -> int:
    return [int(str(e.fields["pid"])) for e in events(run, "worker_started") if e.who == who][-1]


def primary(run: Running) -> str:
    """Whoever became it last."""
    return [e.who for e in history(run).plain if e.kind in ("server_started", "server_promoted")][-1]


def until_guarded(run: Running, times: int) -> str:
    """Until a backup was placed so many times; the newest one."""
    until(lambda: len(events(run, "backup_placed")) >= times, f"a backup was placed {times} times")
    return str(events(run, "backup_placed")[-1].fields["backup"])


def until_promoted(run: Running, times: int) -> None:
    until(lambda: len(events(run, "server_promoted")) >= times, f"{times} promotions")


def until_replaced(run: Running, who: str, times: int) -> None:
    def started() -> int:
        return sum(event.who == who for event in events(run, "worker_started"))

    until(lambda: started() > times, f"{who} was replaced {times} times")


def until_it_goes_on(run: Running, by: int = 30) -> None:
    """Until so many more updates were applied."""

    def version() -> int:
        return max((row.version for row in history(run).server), default=0)

    begun = version()
    until(lambda: version() >= begun + by, f"{by} more updates after {begun}")


def stop(run: Running) -> None:
    everybody = run.everybody()
    run.send(signal.SIGINT)
    done = run.end(within_s=60)
    assert done.code == 130, done.err
    until_gone(everybody)


def test_any_worker_and_any_server_may_be_killed(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "asgd", participants=EVERYBODY) as run:
        survivors = [pid_of(run, "worker-0"), pid_of(run, "worker-2")]
        until_guarded(run, 1)
        kill(pid_of(run, "worker-1"))
        until_replaced(run, "worker-1", 1)
        kill(pid_of(run, primary(run)))
        until_promoted(run, 1)
        backup = until_guarded(run, 2)  # the killed one came back, as the backup of the other
        assert backup != primary(run)
        kill(pid_of(run, backup))
        until_guarded(run, 3)
        kill(pid_of(run, primary(run)))
        kill(pid_of(run, "worker-1"))
        until_promoted(run, 2)
        until_replaced(run, "worker-1", 2)
        until_it_goes_on(run)
        assert [pid_of(run, "worker-0"), pid_of(run, "worker-2")] == survivors
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_primary_is_succeeded_and_can_say_nothing_when_it_wakes(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "asgd", participants=EVERYBODY) as run:
        until_guarded(run, 1)
        frozen = primary(run)
        kill(pid_of(run, frozen), signal.SIGSTOP)
        until_promoted(run, 1)
        until_it_goes_on(run)
        kill(pid_of(run, frozen), signal.SIGCONT)
        until_guarded(run, 2)  # it ended, and another process is the backup under its name
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_worker_is_given_up_and_what_it_had_computed_does_not_count(tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", "ssp", participants=EVERYBODY) as run:
        until_guarded(run, 1)
        until_it_goes_on(run)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until_it_goes_on(run, by=60)  # far beyond the bound: the frozen one holds nobody back
        kill(victim, signal.SIGCONT)
        until(lambda: bool(events(run, "push_refused")) or _works_again(run), "it is back")
        until_it_goes_on(run)
        assert pid_of(run, "worker-1") == victim
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def _works_again(run: Running) -> bool:
    """Its share was given to another, and later it was given a new one."""
    rows = [row for row in history(run).server if row.rank == 1]
    lost = [row.at_ns for row in rows if row.op == "lost"]
    return bool(lost) and any(row.op == "apply" and row.at_ns > lost[-1] for row in rows)


@pytest.mark.parametrize("mode", ["ssp", "dssp", "ps", "backup"])
def test_the_other_modes_with_a_server_survive_too(mode: str, tmp_path: Path) -> None:
    with training(tmp_path / "run", *SERVED, "--mode", mode, participants=EVERYBODY) as run:
        until_guarded(run, 1)
        until_it_goes_on(run, by=10)
        kill(pid_of(run, primary(run)))
        kill(pid_of(run, "worker-0"))
        until_promoted(run, 1)
        until_replaced(run, "worker-0", 1)
        until_it_goes_on(run, by=10)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_backup_workers_go_on_without_the_late_and_without_the_frozen(tmp_path: Path) -> None:
    late = ["--mode", "backup", "--backup-workers", "1", "--straggler", "worker=2,factor=5"]
    with training(tmp_path / "run", *SERVED, *late, participants=EVERYBODY) as run:
        until_guarded(run, 1)
        until(lambda: any(row.op == "abandon" for row in history(run).server), "a late one is told so")
        until(lambda: bool(history(run).abandoned), "and stops")
        victim = pid_of(run, "worker-2")
        kill(victim, signal.SIGSTOP)
        until_it_goes_on(run)  # it is only late: the others are as many as an update needs
        kill(victim, signal.SIGCONT)
        kill(pid_of(run, primary(run)))
        until_promoted(run, 1)
        until_it_goes_on(run)
        assert pid_of(run, "worker-2") == victim
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


def test_when_both_servers_die_the_run_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "asgd", "--checkpoint-every", "20"]
    with training(run_dir, *SERVED, *often, participants=EVERYBODY) as run:
        until_guarded(run, 1)
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        for who in ("server-0-a", "server-0-b"):
            kill(pid_of(run, who))
        until(lambda: bool(events(run, "server_restored")), "a server went back to the checkpoint")
        assert int(str(events(run, "server_restored")[0].fields["version"])) >= 60
        until_guarded(run, 2)
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(run_dir)


def test_after_kill_9_of_everything_it_is_resumed_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "ssp", "--checkpoint-every", "20", "--steps", "120"]
    with training(run_dir, *SERVED, *often, participants=EVERYBODY) as run:
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    assert done.data()["result"]["stopped_early"] is False
    assert_nothing_was_lost(run_dir)


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "seed"), [("asgd", 1), ("ssp", 2), ("dssp", 3), ("ps", 4), ("backup", 5)])
def test_whoever_is_killed_again_and_again_nothing_is_lost(mode: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with training(tmp_path / "run", *SERVED, "--mode", mode, participants=EVERYBODY) as run:
        until_guarded(run, 1)
        for _ in range(12):
            until_it_goes_on(run, by=dice.randrange(5, 40))
            newest = {event.who: int(str(event.fields["pid"])) for event in events(run, "worker_started")}
            victim = newest[dice.choice(sorted(newest))]
            if is_running(victim):  # else it waits to be replaced
                kill(victim)
        until_it_goes_on(run)
        stop(run)
    assert_nothing_was_lost(tmp_path / "run")


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--mode", "easgd", "--elastic"], "mode easgd cannot go on with other workers"),
        (["--mode", "asgd", "--elastic", "--transport", "shm"], "are reached by tcp"),
        (["--mode", "asgd", "--elastic", "--compress", "int8"], "compress has a memory for each worker"),
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], what: str, tmp_path: Path
) -> None:
    done = paceline("train", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 3
    assert what in done.out

"""Do parameter servers in several parts go on when any of them dies, with each share once in each part?"""

import random
import signal
from pathlib import Path

import pytest
from tests.fixtures.command import Running, paceline, resuming, training
from tests.fixtures.elastic_runs import events, pid_of, stop
from tests.fixtures.served_runs import backup, strike_backup, strike_primary, until_guarded, until_it_goes_on
from tests.fixtures.waiting import is_running, kill, kill_all, until_gone

PARTS = 2
PARTED = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--servers", str(PARTS)]
PARTED += ["--pace", "10ms"]
EVERYBODY = 3 + 2 * PARTS


def until_all_are_guarded(run: Running) -> None:
    run.until(lambda: all(backup(run, part) for part in range(PARTS)), "all parts have backups")


def assert_each_share_once_in_each_part(run_dir: Path) -> None:
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.code == 0, verified.out
    found = verified.data()
    assert found["holds"] is True
    assert sum("part 1 applied each share" in finding["what"] for finding in found["findings"]) == 1


def test_a_primary_of_any_part_and_any_worker_may_be_killed(tmp_path: Path) -> None:
    with training(tmp_path / "run", *PARTED, "--mode", "asgd", participants=EVERYBODY) as run:
        until_all_are_guarded(run)
        strike_primary(run, 1)
        until_it_goes_on(run)
        until_guarded(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim)
        strike_primary(run, 0)
        run.until(lambda: pid_of(run, "worker-1") != victim, "worker-1 is replaced")
        until_it_goes_on(run)
        strike_backup(run, 1)  # which the killed one became
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


def test_a_frozen_primary_of_a_part_is_succeeded(tmp_path: Path) -> None:
    with training(tmp_path / "run", *PARTED, "--mode", "ssp", participants=EVERYBODY) as run:
        until_all_are_guarded(run)
        frozen = strike_primary(run, 1, signal.SIGSTOP)
        until_it_goes_on(run)
        kill(pid_of(run, frozen), signal.SIGCONT)
        until_guarded(run, 1)
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


def test_when_a_part_is_lost_the_run_ends_and_all_parts_are_resumed_from_one_checkpoint(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "dssp", "--checkpoint-every", "20", "--optimizer", "momentum"]
    with training(run_dir, *PARTED, *often, participants=EVERYBODY) as run:
        until_guarded(run, 1)
        run.until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        everybody = run.everybody()
        kill_all([pid_of(run, "server-1-a"), pid_of(run, "server-1-b")])
        done = run.end()
        assert done.code == 5
        assert "both servers of part 1 were lost" in done.err
        until_gone(everybody)
    with resuming(run_dir, participants=EVERYBODY) as run:
        run.until_it_trains()
        stop(run)
    assert_each_share_once_in_each_part(run_dir)


def test_a_run_in_parts_is_not_replayed_and_says_why(tmp_path: Path) -> None:
    done = paceline(
        "train", *PARTED, "--mode", "ssp", "--steps", "5", "--run-dir", str(tmp_path / "run"), "--json"
    )
    assert done.code == 0, done.err
    assert_each_share_once_in_each_part(tmp_path / "run")
    replayed = paceline("replay", str(tmp_path / "run"))
    assert replayed.code == 5
    assert "each with an order of its own" in replayed.err


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "seed"), [("asgd", 1), ("ssp", 2), ("dssp", 3)])
def test_whoever_is_killed_again_and_again_nothing_is_lost(mode: str, seed: int, tmp_path: Path) -> None:
    """One at a time, as a part that loses both of its servers ends the run."""
    dice = random.Random(seed)
    with training(tmp_path / "run", *PARTED, "--mode", mode, participants=EVERYBODY) as run:
        for _ in range(10):
            until_all_are_guarded(run)
            until_it_goes_on(run, by=dice.randrange(5, 40))
            newest = {event.who: int(str(event.fields["pid"])) for event in events(run, "worker_started")}
            victim = newest[dice.choice(sorted(newest))]
            if is_running(victim):  # else it waits to be replaced
                kill(victim)
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--mode", "ps"], "is decided by one server"),
        (["--mode", "ssgd"], "mode ssgd has no elastic servers in parts"),
        (["--mode", "asgd", "--asgd", "dc", "--dc-lambda", "0.1"], "each of 2 parts has its own"),
        (["--mode", "asgd", "--clip-norm", "1"], "needs the norm of the whole gradient"),
        (["--mode", "asgd", "--no-elastic"], "elastic is no"),
        (["--mode", "asgd", "--task", "paceline.laws.tasks:TinyTask"], "can be applied in parts"),
    ],
)
def test_what_cannot_be_in_parts_is_refused_with_the_reason(
    args: list[str], what: str, tmp_path: Path
) -> None:
    done = paceline("train", *args, "--servers", "2", "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 3
    assert what in done.out


def test_a_model_that_is_too_small_for_so_many_parts_is_refused_at_once(tmp_path: Path) -> None:
    done = paceline(
        "train", "--mode", "asgd", "--task", "xor", "--servers", "12", "--run-dir", str(tmp_path / "run")
    )
    assert done.code == 5
    assert "too few for 12 parts" in done.err

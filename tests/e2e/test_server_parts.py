"""Do parameter servers in several parts go on when any of them dies, with each share once in each part?"""

import random
import signal
from pathlib import Path

import pytest
from tests.e2e.test_elastic_servers import events, history, pid_of, stop, until_it_goes_on, until_replaced
from tests.fixtures.command import Running, paceline, training
from tests.fixtures.waiting import is_running, kill, until, until_gone

PARTS = 2
PARTED = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--servers", str(PARTS)]
PARTED += ["--pace", "10ms"]
EVERYBODY = 3 + 2 * PARTS


def of_part(run: Running, kind: str, part: int) -> list[str]:
    """Who said so, or was named, in order."""
    found = [event for event in events(run, kind) if event.fields["part"] == part]
    return [str(event.fields.get("backup", event.who)) for event in found]


def primary(run: Running, part: int) -> str:
    return [*of_part(run, "server_started", part), *of_part(run, "server_promoted", part)][-1]


def until_guarded(run: Running, part: int, times: int) -> str:
    until(lambda: len(of_part(run, "backup_placed", part)) >= times, f"part {part} has a backup")
    return of_part(run, "backup_placed", part)[-1]


def until_promoted(run: Running, part: int, times: int) -> None:
    until(lambda: len(of_part(run, "server_promoted", part)) >= times, f"part {part} was taken over")


def assert_each_share_once_in_each_part(run_dir: Path) -> None:
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.code == 0, verified.out
    found = verified.data()
    assert found["holds"] is True
    assert sum("part 1 applied each share" in finding["what"] for finding in found["findings"]) == 1


def test_a_primary_of_any_part_and_any_worker_may_be_killed(tmp_path: Path) -> None:
    with training(tmp_path / "run", *PARTED, "--mode", "asgd", participants=EVERYBODY) as run:
        for part in range(PARTS):
            until_guarded(run, part, 1)
        kill(pid_of(run, primary(run, 1)))
        until_promoted(run, 1, 1)
        until_it_goes_on(run)
        kill(pid_of(run, "worker-1"))
        kill(pid_of(run, primary(run, 0)))
        until_promoted(run, 0, 1)
        until_replaced(run, "worker-1", 1)
        until_it_goes_on(run)
        kill(pid_of(run, until_guarded(run, 1, 2)))  # the backup of part 1, which the killed one became
        until_guarded(run, 1, 3)
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


def test_a_frozen_primary_of_a_part_is_succeeded(tmp_path: Path) -> None:
    with training(tmp_path / "run", *PARTED, "--mode", "ssp", participants=EVERYBODY) as run:
        for part in range(PARTS):
            until_guarded(run, part, 1)
        frozen = primary(run, 1)
        kill(pid_of(run, frozen), signal.SIGSTOP)
        until_promoted(run, 1, 1)
        until_it_goes_on(run)
        kill(pid_of(run, frozen), signal.SIGCONT)
        until_guarded(run, 1, 2)
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


def test_when_a_part_is_lost_the_run_ends_and_all_parts_are_resumed_from_one_checkpoint(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    often = ["--mode", "dssp", "--checkpoint-every", "20", "--steps", "120", "--optimizer", "momentum"]
    with training(run_dir, *PARTED, *often, participants=EVERYBODY) as run:
        until_guarded(run, 1, 1)
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/server-0.json"))), "a checkpoint")
        everybody = run.everybody()
        for who in ("server-1-a", "server-1-b"):
            kill(pid_of(run, who))
        done = run.end()
        assert done.code == 5
        assert "both servers of part 1 were lost" in done.err
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    assert done.data()["result"]["stopped_early"] is False
    assert done.data()["result"]["metrics"]["test_accuracy"] > 0.5
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
            until(lambda: all(_is_guarded(run, part) for part in range(PARTS)), "all parts have backups")
            until_it_goes_on(run, by=dice.randrange(5, 40))
            newest = {event.who: int(str(event.fields["pid"])) for event in events(run, "worker_started")}
            victim = newest[dice.choice(sorted(newest))]
            if is_running(victim):  # else it waits to be replaced
                kill(victim)
        until_it_goes_on(run)
        stop(run)
    assert_each_share_once_in_each_part(tmp_path / "run")


def _is_guarded(run: Running, part: int) -> bool:
    """Do the newest processes of both servers of this part belong together?"""
    plain = history(run).plain
    pair = [f"server-{part}-{letter}" for letter in "ab"]
    started = max(e.at_ns for e in plain if e.kind == "worker_started" and e.who in pair)
    placed = [e.at_ns for e in plain if e.kind == "backup_placed" and e.fields["part"] == part]
    are_there = all(is_running(pid_of(run, who)) for who in pair)
    return are_there and bool(placed) and placed[-1] > started


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

"""Does a run in rounds go on when its workers are killed inside one, and end with the plain mode's bits?"""

import json
from pathlib import Path

import pytest
from tests.fixtures.command import Running, paceline, training
from tests.fixtures.waiting import kill, until, until_gone

from paceline.app.lab.training import newest_full
from paceline.events.read import read_history

PLAIN = ["--task", "digits", "--batch-size", "8", "--optimizer", "momentum", "--sync-every", "6"]
ELASTIC = [*PLAIN, "--num-workers", "3", "--shards", "4", "--pace", "10ms"]


def until_three_are_in(run: Running, after: int) -> int:
    """Until three workers train in a generation behind `after`; its number."""

    def newest() -> int:
        return newest_full(read_history(run.run_dir / "events.jsonl"), 3)

    until(lambda: newest() > after, f"three workers train in a generation behind {after}", within_s=60)
    return newest()


def kill_worker(run: Running, who: str) -> None:
    started = [e for e in read_history(run.run_dir / "events.jsonl").plain if e.kind == "worker_started"]
    kill([int(str(e.fields["pid"])) for e in started if e.who == who][-1])


def undisturbed(folder: Path, mode: str, steps: str, *more: str) -> set[str]:
    """What the plain mode ends with, with one worker for each shard."""
    args = [*PLAIN, "--mode", mode, "--num-workers", "4", "--steps", steps, "--run-dir", str(folder), *more]
    return set(paceline("train", *args, "--json").data()["result"]["state_sha256"].values())


def hashes(run_dir: Path) -> set[str]:
    return set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("localsgd", []),
        ("diloco", []),
        ("diloco", ["--fragments", "3", "--sync-delay", "2", "--mixing", "0.5"]),
        ("fedavg", ["--clients-per-round", "0.5", "--checkpoint-every", "20"]),
    ],
    ids=["localsgd", "diloco", "streaming", "fedavg"],
)
def test_workers_killed_inside_a_round_are_replaced_and_the_bits_are_those_of_the_plain_mode(
    mode: str, more: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--mode", mode, "--steps", "120", *more, participants=3) as run:
        first = until_three_are_in(run, 0)
        kill_worker(run, "worker-0")
        second = until_three_are_in(run, first)
        kill_worker(run, "worker-1")
        kill_worker(run, "worker-2")
        until_three_are_in(run, second)
        everybody = run.everybody()
        done = run.end(within_s=120)
        assert done.code == 0, done.err
        until_gone(everybody)
    positions = [
        row.position for rows in read_history(run_dir / "events.jsonl").steps.values() for row in rows
    ]
    assert len(positions) > len(set(positions))  # rounds were begun, thrown away, and made again
    assert hashes(run_dir) == undisturbed(tmp_path / "plain", mode, "120", *more)
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.data()["holds"] is True, verified.out
    replayed = paceline("replay", str(run_dir), "--json")
    assert replayed.data()["is_equal"] is True, replayed.out


@pytest.mark.parametrize("mode", ["diloco", "fedavg"])
def test_after_kill_9_of_everything_a_run_in_rounds_is_resumed_from_the_checkpoint(
    mode: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    args = [*ELASTIC, "--mode", mode, "--steps", "60", "--checkpoint-every", "10"]
    with training(run_dir, *args, participants=3) as run:
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/worker-0.json"))), "a checkpoint")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    assert hashes(run_dir) == undisturbed(tmp_path / "plain", mode, "60")
    verified = paceline("verify", str(run_dir), "--json")
    assert verified.data()["holds"] is True, verified.out


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--mode", "backup", "--servers", "2"], "decided by one server"),
        (["--mode", "adaptive", "--on-slow", "rebalance"], "deals out shards by speed anyway"),
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], what: str, tmp_path: Path
) -> None:
    done = paceline("train", "--elastic", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 3
    problems = json.loads(done.out)["error"]["problems"]
    assert any(what in problem["what"] for problem in problems), problems

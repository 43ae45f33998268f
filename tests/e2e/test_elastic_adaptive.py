"""Does an adaptive run go on when its workers are killed or frozen, and prove what it decided?"""

import json
import signal
from pathlib import Path

from tests.fixtures.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.waiting import kill, until, until_gone

from paceline.app.lab.training import newest_full
from paceline.events.read import PlainEvent, read_history

ADAPTIVE = ["--task", "digits", "--batch-size", "8", "--optimizer", "momentum", "--mode", "adaptive"]
SHARED = [*ADAPTIVE, "--sync-every", "4", "--num-workers", "3", "--shards", "9", "--pace", "4ms"]
DELAYS = ["--straggler", "p=0.3,factor=8"]


def events(run: Running, kind: str) -> list[PlainEvent]:
    return [e for e in read_history(run.run_dir / "events.jsonl").plain if e.kind == kind]


def until_all_are_in(run: Running, after: int) -> int:
    """Until three workers train in a generation behind `after`; its number."""

    def newest() -> int:
        return newest_full(read_history(run.run_dir / "events.jsonl"), 3)

    until(lambda: newest() > after, f"three workers train in a generation behind {after}", within_s=60)
    return newest()


def newest_generation(run: Running) -> int:
    return max(int(str(e.fields["number"])) for e in events(run, "generation_entered"))


def signal_worker(run: Running, who: str, number: signal.Signals = signal.SIGKILL) -> None:
    kill([int(str(e.fields["pid"])) for e in events(run, "worker_started") if e.who == who][-1], number)


def test_killed_and_frozen_workers_leave_the_way_and_the_bits_as_they_were_decided(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *SHARED, *DELAYS, participants=3) as run:
        first = until_all_are_in(run, 0)
        until(lambda: bool(events(run, "adapted")), "a decision", within_s=60)
        signal_worker(run, "worker-0")
        second = until_all_are_in(run, first)
        signal_worker(run, "worker-1", signal.SIGSTOP)
        until(lambda: newest_generation(run) > second, "it is left out", within_s=60)
        signal_worker(run, "worker-1", signal.SIGCONT)
        until_all_are_in(run, second)
        everybody = run.everybody()
        run.send(signal.SIGINT)
        done = run.end(within_s=60)
        assert done.code == 130, done.err
        until_gone(everybody)
    assert_nothing_was_lost(run_dir)
    ways = {(e.fields["number"], e.fields["way"]) for e in events(run, "generation_entered")}
    assert len(ways) == len({number for number, _ in ways}), "all begin a generation in the same way"


def test_resumed_after_kill_9_of_everything_it_remembers_what_was_decided(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    args = [*SHARED, "--adaptive", "local-steps", "--steps", "60", "--checkpoint-every", "10"]
    with training(run_dir, *args, participants=3) as run:
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/worker-0.json"))), "a checkpoint")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    assert_nothing_was_lost(run_dir)
    plain = [*ADAPTIVE[:-1], "localsgd", "--sync-every", "4", "--num-workers", "9", "--steps", "60"]
    undisturbed = paceline("train", *plain, "--run-dir", str(tmp_path / "plain"), "--json").data()
    hashes = set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())
    assert hashes == set(undisturbed["result"]["state_sha256"].values())

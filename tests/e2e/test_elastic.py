"""Does a run go on when its workers are killed or frozen, and end with the bits of an undisturbed one?"""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.waiting import kill, until, until_gone

from paceline.events.read import PlainEvent, read_history

ELASTIC = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--shards", "4", "--pace", "10ms"]


def events(run: Running, kind: str) -> list[PlainEvent]:
    return [event for event in read_history(run.run_dir / "events.jsonl").plain if event.kind == kind]


def entered(run: Running) -> list[tuple[str, int, str]]:
    """(worker, generation, who is in it), in the order in which it was said."""
    found = events(run, "generation_entered")
    return [(e.who, int(str(e.fields["number"])), str(e.fields["workers"])) for e in found]


def pid_of(run: Running, who: str) -> int:
    return [int(str(e.fields["pid"])) for e in events(run, "worker_started") if e.who == who][-1]


def until_all_are_in(run: Running, after: int) -> int:
    """Until three workers are in a generation behind `after`; its number."""

    def newest() -> int:
        numbers = [number for _, number, who in entered(run) if len(who.split(",")) == 3 and number > after]
        return max((n for n in numbers if numbers.count(n) == 3), default=0)

    until(lambda: newest() > 0, f"three workers train in a generation behind {after}", within_s=60)
    return newest()


def test_killed_workers_are_replaced_and_the_result_has_the_same_bits(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ELASTIC, "--steps", "400", participants=3) as run:
        first = until_all_are_in(run, 0)
        survivor = pid_of(run, "worker-2")
        kill(pid_of(run, "worker-0"))
        second = until_all_are_in(run, first)
        kill(pid_of(run, "worker-0"))
        kill(pid_of(run, "worker-1"))
        until_all_are_in(run, second)
        everybody = run.everybody()
        done = run.end(within_s=120)
        assert done.code == 0, done.err
        until_gone(everybody)
        assert pid_of(run, "worker-2") == survivor  # it trained on, in the same process
        # From memory: there is no checkpoint before the end. Of the last two the first one back had nobody
        # else to ask; the other may have asked either.
        assert "worker-2" in [e.fields["healed_from"] for e in events(run, "generation_entered")]
    assert_nothing_was_lost(tmp_path / "run")


def test_a_frozen_worker_is_left_out_and_comes_back_when_it_wakes(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ELASTIC, "--steps", "1200", participants=3) as run:
        first = until_all_are_in(run, 0)
        victim = pid_of(run, "worker-1")
        kill(victim, signal.SIGSTOP)
        until(
            lambda: any("worker-1" not in who for _, number, who in entered(run) if number > first),
            "the others train without it",
        )
        kill(victim, signal.SIGCONT)
        until_all_are_in(run, first)
        assert pid_of(run, "worker-1") == victim
        done = run.end(within_s=120)
        assert done.code == 0, done.err
    assert_nothing_was_lost(tmp_path / "run")


def test_after_kill_9_of_everything_it_is_resumed_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--steps", "300", "--checkpoint-every", "20", participants=3) as run:
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/worker-0.json"))), "a checkpoint")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.err
    hashes = set(done.data()["result"]["state_sha256"].values())
    plain = ["--task", "digits", "--batch-size", "8", "--num-workers", "4", "--steps", "300"]
    undisturbed = paceline("train", *plain, "--run-dir", str(tmp_path / "plain"), "--json")
    assert hashes == set(undisturbed.data()["result"]["state_sha256"].values())


def test_when_all_workers_die_at_once_their_replacements_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, *ELASTIC, "--steps", "300", "--checkpoint-every", "20", participants=3) as run:
        first = until_all_are_in(run, 0)
        until(lambda: bool(list((run_dir / "checkpoints").glob("at-*/worker-0.json"))), "a checkpoint")
        for who in ("worker-0", "worker-1", "worker-2"):
            kill(pid_of(run, who))
        until_all_are_in(run, first)
        done = run.end(within_s=120)
        assert done.code == 0, done.err
        again = [e for e in events(run, "generation_entered") if int(str(e.fields["number"])) > first]
        assert all(int(str(e.fields["committed"])) >= 20 for e in again)
    replayed = paceline("replay", str(run_dir), "--json")
    assert replayed.data()["is_equal"] is True


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--mode", "easgd", "--elastic"], "mode easgd cannot go on with other workers"),
        (["--shards", "2", "--num-workers", "3"], "3 workers would share 2 shards"),
        (["--min-workers", "4", "--num-workers", "3"], "min_workers is 4"),
        (["--elastic", "--compress", "int8"], "compress has a memory for each worker"),
        (["--no-elastic", "--shards", "4"], "elastic is no, but shards"),
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_reason(
    args: list[str], what: str, tmp_path: Path
) -> None:
    done = paceline("train", *args, "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 3
    problems = json.loads(done.out)["error"]["problems"]
    assert any(what in problem["what"] for problem in problems), problems

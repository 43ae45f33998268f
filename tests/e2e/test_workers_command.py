"""Operators add and remove workers of a live run, and impossible requests are refused."""

import json
import os
import signal
import stat
from pathlib import Path

import pytest
from tests.fixtures.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.elastic_runs import events, stop

from paceline.coordinator.run_endpoint import FILE_NAME

RUN = ["--task", "digits", "--batch-size", "8", "--shards", "12", "--pace", "3ms"]


def workers(*args: str) -> list[str]:
    done = paceline("workers", *args, "--json")
    assert done.code == 0, done.err + done.out
    found = done.data()["workers"]
    return sorted(row if isinstance(row, str) else row["worker"] for row in found)


def stop_and_prove(run: Running) -> None:
    stop(run)
    assert_nothing_was_lost(run.run_dir)


@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_a_run_grows_and_shrinks_on_command_and_nothing_is_lost(mode: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    size = ["--mode", mode, "--num-workers", "2", "--max-workers", "4"]
    with training(tmp_path / "run", *RUN, *size, participants=2) as run:
        run.until(lambda: len(workers("list", folder)) == 2, "two workers are in")
        assert workers("add", folder, "2") == ["worker-0", "worker-1", "worker-2", "worker-3"]
        assert workers("remove", folder, "worker-1") == ["worker-0", "worker-2", "worker-3"]
        assert workers("list", folder) == ["worker-0", "worker-2", "worker-3"]
        run.until(lambda: bool(events(run, "worker_finished")), "the removed worker has ended")
        (left,) = events(run, "worker_finished")
        assert (left.who, left.fields["reason"]) == ("worker-1", "left")
        assert [e.who for e in events(run, "worker_started") if e.who == "worker-1"] == ["worker-1"]
        said = [str(event.fields["decision"]) for event in events(run, "supervision")]
        assert "worker-2, worker-3 added: 4 workers are wanted" in said
        assert "worker-1 removed: 3 workers are wanted" in said
        assert stat.S_IMODE((tmp_path / "run" / FILE_NAME).stat().st_mode) == 0o600
        assert "token_file" in json.loads((tmp_path / "run" / FILE_NAME).read_text())
        stop_and_prove(run)
    assert not (tmp_path / "run" / FILE_NAME).exists()


def test_too_many_too_few_and_strangers_are_refused_with_the_reason(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    bounds = ["--num-workers", "2", "--min-workers", "2", "--max-workers", "3"]
    with training(tmp_path / "run", *RUN, *bounds, participants=2) as run:
        run.until(lambda: len(workers("list", folder)) == 2, "two workers are in")
        for args, code, why in (
            (["add", folder, "2"], 6, "takes 3 at most: as --max-workers says"),
            (["add", folder, "2", "--no-wait"], 6, "takes 3 at most"),
            (["remove", folder], 6, "needs 2, as --min-workers says"),
            (["remove", folder, "worker-7"], 3, "'worker-7' of run"),
            (["remove", folder, "0"], 3, "0 workers cannot be removed"),
        ):
            done = paceline("workers", *args)
            assert (done.code, why in done.err) == (code, True), done.err
            assert ("error[E324]: " in done.err) == (code == 6), done.err
        assert workers("list", folder) == ["worker-0", "worker-1"]
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
    done = paceline("workers", "list", folder)
    assert done.code == 7
    assert "does not answer" in done.err


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["--num-workers", "2"], 3, "is not elastic"),
        (["--num-workers", "2", "--elastic"], 7, "is not at work"),
    ],
)
def test_runs_that_cannot_be_resized_say_why(args: list[str], code: int, what: str, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    assert paceline("train", "--task", "xor", "--steps", "3", *args, "--run-dir", run_dir).code == 0
    done = paceline("workers", "add", run_dir)
    assert (done.code, what in done.err) == (code, True), done.err


def test_a_run_without_room_says_at_once_why_it_cannot_grow() -> None:
    done = paceline("plan", "--num-workers", "3", "--elastic", "--on-slow", "rebalance")
    assert "the run cannot grow beyond its 3 workers: 3 shards" in done.out
    assert "with as many shards as workers (3)" in done.out


@pytest.mark.parametrize("flag", ["--on-slow=replace", "--on-give-up=pause"])
def test_policies_are_for_elastic_runs_of_shards_only(flag: str) -> None:
    done = paceline("plan", flag)
    assert done.code == 3
    assert "but the run is not elastic" in done.err
    served = paceline("plan", flag, "--elastic", "--mode", "asgd")
    assert served.code == 3
    assert "mode asgd" in served.err

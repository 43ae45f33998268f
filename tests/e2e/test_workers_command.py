"""Operators add and remove workers of a live run, and impossible requests are refused."""

import json
import os
import signal
import stat
from pathlib import Path

import pytest
from tests.fixtures.processes.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.runs.elastic_runs import events, stop

from paceline.coordinator.run_endpoint import FILE_NAME

RUN = ["--task", "digits", "--batch-size", "8", "--shards", "12", "--pace", "3ms"]


def workers(*args: str) -> list[str]:
    result = paceline("workers", *args, "--json")
    assert result.code == 0, result.err + result.out
    outcome = result.data()["workers"]
    return sorted(row if isinstance(row, str) else row["worker"] for row in outcome)


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
        messages = [str(event.fields["decision"]) for event in events(run, "supervision")]
        assert any(text.startswith("worker-2, worker-3 ") and " 4 " in text for text in messages)
        assert any(text.startswith("worker-1 ") and " 3 " in text for text in messages)
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
            (["add", folder, "2"], 6, "--max-workers"),
            (["add", folder, "2", "--no-wait"], 6, "--max-workers"),
            (["remove", folder], 6, "--min-workers"),
            (["remove", folder, "worker-7"], 3, "'worker-7'"),
            (["remove", folder, "0"], 3, "0 workers"),
        ):
            result = paceline("workers", *args)
            assert (result.code, why in result.err) == (code, True), result.err
            assert ("error[E324]: " in result.err) == (code == 6), result.err
        assert workers("list", folder) == ["worker-0", "worker-1"]
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
    result = paceline("workers", "list", folder)
    assert result.code == 7
    assert "error[E" in result.err


@pytest.mark.parametrize(
    ("args", "code", "description"),
    [
        (["--num-workers", "2"], 3, "is not elastic"),
        (["--num-workers", "2", "--elastic"], 7, "is not running"),
    ],
)
def test_runs_that_cannot_be_resized_report_why(
    args: list[str], code: int, description: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    assert paceline("train", "--task", "xor", "--steps", "3", *args, "--run-dir", run_dir).code == 0
    result = paceline("workers", "add", run_dir)
    assert (result.code, description in result.err) == (code, True), result.err


def test_a_run_without_room_reports_at_once_why_it_cannot_grow() -> None:
    result = paceline("train", "--dry-run", "--num-workers", "3", "--elastic", "--on-slow", "rebalance")
    assert "3 workers (3 shards)" in result.out
    assert "workers (3)" in result.out


@pytest.mark.parametrize("flag", ["--on-slow=replace", "--on-give-up=pause"])
def test_policies_are_for_elastic_runs_of_shards_only(flag: str) -> None:
    result = paceline("train", "--dry-run", flag)
    assert result.code == 3
    assert " elastic" in result.err
    served = paceline("train", "--dry-run", flag, "--elastic", "--mode", "asgd")
    assert served.code == 3
    assert "mode asgd" in served.err

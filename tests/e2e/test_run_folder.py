"""A run folder under hard use: second commands, hang-ups, full disks, damaged files. Real processes."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.processes.command import CommandResult, assert_nothing_was_lost, paceline, training
from tests.fixtures.processes.full_disk import small_disk
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.processes.warm_helpers import warm_helpers
from tests.fixtures.waiting import until

from paceline.core.errors import DamagedRecordError
from paceline.events.follow import LogFollower
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import COPY, dumps, read

SHORT = ("train", "--task", "xor", "--steps", "60", "--num-workers", "2", "--json")


def _together(folder: Path, *args: str) -> list[CommandResult]:
    started = [
        subprocess.Popen(
            [*warm_helpers().as_module, *SHORT, *args],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    return [
        CommandResult(p.returncode, out, err) for p in started for out, err in [p.communicate(timeout=240)]
    ]


def code_of(result: CommandResult) -> str:
    """The code of the error that a command with --json answered."""
    return str(json.loads(result.out)["error"]["problems"][0]["code"])


def test_of_two_runs_in_one_folder_one_trains_and_the_other_is_refused(tmp_path: Path) -> None:
    results = sorted(_together(tmp_path, "--run-dir", "mine"), key=lambda item: item.code)
    assert results[0].code == 0, results
    # In use, or, if the first one had ended by then, taken.
    assert (results[1].code, code_of(results[1])) in [(4, "E209"), (3, "E106")], results
    assert_nothing_was_lost(tmp_path / "mine")


def test_two_runs_of_one_name_get_a_folder_each(tmp_path: Path) -> None:
    results = _together(tmp_path)
    folders = {tmp_path / result.data()["run_dir"] for result in results}
    assert len(folders) == 2, results
    for folder in folders:
        assert_nothing_was_lost(folder)


def test_a_run_at_work_cannot_be_resumed_and_ends_unharmed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--num-workers", "2", "--checkpoint-every", "20") as run:
        run.until_it_trains()
        again = paceline("train", "--resume", str(run_dir), "--json")
        assert (again.code, code_of(again)) == (4, "E209"), again
        assert str(run.process.pid) in again.out
        run.send(signal.SIGINT)
        assert run.end().code == 130
    assert_nothing_was_lost(run_dir)


def test_a_hang_up_stops_a_run_in_good_order_with_a_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--num-workers", "2", "--checkpoint-every", "100000") as run:
        run.until_it_trains()
        run.send(signal.SIGHUP)
        assert run.end().code == 143
    _assert_stopped_by_hang_up(run_dir)


def test_a_closed_terminal_stops_its_run_in_good_order_with_a_checkpoint(tmp_path: Path) -> None:
    run_dir, log = tmp_path / "run", LogFollower(tmp_path / "run" / "events.jsonl", rows=1)
    ours, theirs = os.openpty()
    command = ["train", "--task", "xor", "--steps", "1000000", "--pace", "5ms", "--num-workers", "2"]
    with subprocess.Popen(
        [*warm_helpers().as_module, *command, "--checkpoint-every", "100000", "--run-dir", str(run_dir)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as run:
        os.close(theirs)
        try:
            until(lambda: any(log.read().steps.values()) or run.poll() is not None, "it trains")
            os.close(ours)  # the kernel sends SIGHUP, and every write to the terminal fails from here on
            assert run.wait(timeout=120) == 143
        finally:
            run.kill()
    _assert_stopped_by_hang_up(run_dir)


def test_a_disk_that_is_full_for_a_moment_costs_a_run_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run_dir = disk.folder / "run"
        with training(run_dir, "--num-workers", "2", "--mode", "asgd", participants=3) as run:
            run.until_it_trains()
            log = run_dir / "events.jsonl"
            disk.fill()
            # The last page of the log takes what fits: a line is cut short at its end.
            until(lambda: log.stat().st_size % resource.getpagesize() == 0, "the log's last page is full")
            disk.give_room()
            run.until_it_trains()
            run.send(signal.SIGINT)
            assert run.end().code == 130
        result = json.loads((run_dir / "result.json").read_text())
        assert result["record"]["interruptions"] > 0
        assert result["record"]["missing_lines"] == 0
        assert_nothing_was_lost(run_dir)


def test_a_plan_with_one_flipped_bit_is_refused_and_its_copy_brings_it_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert paceline(*SHORT, "--run-dir", str(run_dir), "--checkpoint-every", "20").code == 0
    path, whole = run_dir / "plan.json", (run_dir / "plan.json").read_bytes()
    hints: set[str] = set()
    for at in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        try:
            assert dumps(read(path)).encode() == whole, at  # a flip in white space changes nothing
        except DamagedRecordError as error:
            hints.add(error.hint)
    assert len(hints) == 1
    assert str(run_dir / COPY) in hints.pop()
    path.write_bytes(whole.replace(b'"seed": 0', b'"seed": 1'))
    refused = paceline("train", "--resume", str(run_dir), "--json")
    assert (refused.code, code_of(refused)) == (5, "E303"), refused
    shutil.copy(run_dir / COPY, path)
    assert paceline("train", "--resume", str(run_dir), "--json").code == 0


def test_another_runs_plan_is_not_resumed_with(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert paceline(*SHORT, "--run-dir", str(run_dir), "--checkpoint-every", "20").code == 0
    other = replace(read(run_dir / "plan.json"), seed=7)
    for name in ("plan.json", COPY):
        (run_dir / name).write_text(dumps(other))
    refused = paceline("train", "--resume", str(run_dir), "--json")
    assert (refused.code, code_of(refused)) == (5, "E303"), refused


@pytest.mark.parametrize("name", ["plan.json", "events.jsonl", "result.json"])
def test_non_text_bytes_are_not_an_internal_error_in_any_file(
    name: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    result = warm_paceline(launcher, *SHORT, "--run-dir", str(run_dir), folder=tmp_path)
    assert result.code == 0, result
    with (run_dir / name).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for at in (size // 3, size // 2):
            file.seek(at)
            file.write(b"\xff\xfe")
    commands = (
        ["status", str(run_dir)],
        ["verify", str(run_dir)],
        ["events", str(run_dir)],
        ["report", str(run_dir), "--out", str(tmp_path / "report")],
        ["checkpoint", "list", str(run_dir)],
        ["train", "--resume", str(run_dir)],
    )
    for command in commands:
        reported = warm_paceline(launcher, *command, "--json", folder=tmp_path)
        assert '"E001"' not in reported.out, (command, reported)
        assert "E001" not in reported.err, (command, reported)


def _assert_stopped_by_hang_up(run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["stopped_early"], result["stopped_by"]) == (True, "SIGHUP")
    assert list((run_dir / "checkpoints").glob("at-*/worker-0.json"))
    assert_nothing_was_lost(run_dir)

"""A run folder under hard use: second commands, hang-ups, full disks, damaged files. Real processes."""

import fcntl
import json
import os
import signal
import subprocess
import termios
from pathlib import Path

from tests.fixtures.command import Done, assert_nothing_was_lost, paceline, training
from tests.fixtures.waiting import until
from tests.fixtures.warm_helpers import warm_helpers

from paceline.events.follow import Following

SHORT = ("train", "--task", "xor", "--steps", "60", "--num-workers", "2", "--json")


def _together(folder: Path, *args: str) -> list[Done]:
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
    return [Done(p.returncode, out, err) for p in started for out, err in [p.communicate(timeout=240)]]


def code_of(done: Done) -> str:
    """The code of the error that a command with --json answered."""
    return str(json.loads(done.out)["error"]["problems"][0]["code"])


def test_of_two_runs_in_one_folder_one_trains_and_the_other_is_refused(tmp_path: Path) -> None:
    done = sorted(_together(tmp_path, "--run-dir", "mine"), key=lambda one: one.code)
    assert done[0].code == 0, done
    # In use, or, if the first one had ended by then, taken.
    assert (done[1].code, code_of(done[1])) in [(4, "E209"), (3, "E106")], done
    assert_nothing_was_lost(tmp_path / "mine")


def test_two_runs_of_one_name_get_a_folder_each(tmp_path: Path) -> None:
    done = _together(tmp_path)
    folders = {tmp_path / one.data()["run_dir"] for one in done}
    assert len(folders) == 2, done
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
    run_dir, log = tmp_path / "run", Following(tmp_path / "run" / "events.jsonl", rows=1)
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
        until(lambda: any(log.read().steps.values()) or run.poll() is not None, "it trains")
        os.close(ours)  # the kernel sends SIGHUP, and every write to the terminal fails from here on
        assert run.wait(timeout=240) == 143
    _assert_stopped_by_hang_up(run_dir)


def _assert_stopped_by_hang_up(run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["stopped_early"], result["stopped_by"]) == (True, "SIGHUP")
    assert list((run_dir / "checkpoints").glob("at-*/worker-0.json"))
    assert_nothing_was_lost(run_dir)

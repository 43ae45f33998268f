"""A folder belongs to one command at a time, for as long as that command lives."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures.processes.full_disk import files_of_at_most
from tests.fixtures.waiting import until

from paceline.cli.main import run
from paceline.core.disk import LOCK_NAME, exclusive, holder_of, remove_drafts, write_durably
from paceline.core.errors import FolderInUseError
from paceline.training.request import choose_run_dir, claim_run_dir, claimed_run_dir, existing_runs
from paceline.training.session import Session

HOLD = (
    "import sys, pathlib; from paceline.core.disk import exclusive\n"
    "with exclusive(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


def _holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_with_the_holder_of_the_folder(tmp_path: Path) -> None:
    with _holder(tmp_path) as other:
        with pytest.raises(FolderInUseError) as refused, exclusive(tmp_path):
            pass
        assert refused.value.problems[0].code == "E209"
        assert str(other.pid) in refused.value.what
        other.communicate()
    with exclusive(tmp_path):
        lock_holder = holder_of(tmp_path)
        assert lock_holder is not None
        assert lock_holder.pid == os.getpid()
    assert not (tmp_path / LOCK_NAME).exists()


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    with _holder(tmp_path) as other:
        other.kill()
        other.wait()
        with exclusive(tmp_path):
            assert (tmp_path / LOCK_NAME).exists()


def test_a_lock_file_that_is_removed_while_it_is_being_locked_is_not_taken_for_the_lock(
    tmp_path: Path,
) -> None:
    """The last holder releases the folder between the open and the lock of the next one."""
    hold = (
        "import pathlib, sys; from paceline.core.disk import LOCK_NAME, exclusive\n"
        "folder, released = pathlib.Path(sys.argv[1]), []\n"
        "def release(event, args):\n"
        "    if event == 'fcntl.flock' and not released:\n"
        "        released.append(folder); (folder / LOCK_NAME).unlink()\n"
        "sys.addaudithook(release)\n"
        "with exclusive(folder):\n"
        "    print('held', len(released), flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held 1\n"
        with pytest.raises(FolderInUseError), exclusive(tmp_path):
            pass
        other.communicate()


def test_a_run_in_use_is_refused_before_anything_of_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _holder(tmp_path) as other:
        # Without the lock, the missing plan.json would be the error.
        assert run(["train", "--resume", str(tmp_path), "--json"], Session(folder=tmp_path)) == 4
        assert json.loads(capsys.readouterr().out)["error"]["problems"][0]["code"] == "E209"
        other.communicate()


def test_the_thread_that_holds_a_folder_may_enter_again_and_another_thread_may_not(tmp_path: Path) -> None:
    refused: list[FolderInUseError] = []

    def enter() -> None:
        try:
            with exclusive(tmp_path):
                pass
        except FolderInUseError as error:
            refused.append(error)

    with exclusive(tmp_path), exclusive(tmp_path / "."):
        other = threading.Thread(target=enter)
        other.start()
        other.join()
    assert len(refused) == 1
    enter()
    assert len(refused) == 1


def test_a_forked_child_neither_keeps_nor_releases_its_parents_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    with ExitStack() as held:
        held.enter_context(exclusive(tmp_path))
        child = os.fork()
        if child == 0:
            os.close(write)
            try:
                with exclusive(tmp_path):
                    os._exit(1)
            except FolderInUseError:
                os.read(read, 1)  # lives on until the parent has released the folder and looked
                os._exit(0)
        with _refused(tmp_path):
            pass
        held.close()
        with exclusive(tmp_path):  # the child is alive, and has no copy of the lock
            os.close(write)
            assert os.waitpid(child, 0)[1] == 0
    os.close(read)


def _refused(folder: Path) -> subprocess.Popen[bytes]:
    """Another process that tries to hold the folder, and is refused."""
    tried = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, reported = tried.communicate()
    assert b"FolderInUseError" in reported
    return tried


def test_of_many_processes_that_claim_one_name_each_gets_its_own_folder(tmp_path: Path) -> None:
    claim = (
        "import sys, pathlib; from paceline.training.request import claim_run_dir; sys.stdin.read()\n"
        "print(claim_run_dir(pathlib.Path(sys.argv[1]), is_named=False).name)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", claim, str(tmp_path / "runs" / "xor")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    names = [process.communicate()[0].strip() for process in started]
    assert sorted(names) == ["xor", "xor-2", "xor-3", "xor-4"]


def test_a_name_that_another_process_takes_at_the_last_moment_is_left_to_it(tmp_path: Path) -> None:
    """The folder appears just before the kernel is asked to create it: too late for any look before."""
    claim = (
        "import pathlib, sys; from paceline.training.request import claim_run_dir\n"
        "first, taken = pathlib.Path(sys.argv[1]), []\n"
        "def take(event, args):\n"
        "    if event == 'os.mkdir' and str(args[0]) == str(first) and not taken:\n"
        "        taken.append(first); first.mkdir()\n"
        "sys.addaudithook(take)\n"
        "print(claim_run_dir(first, is_named=False).name, len(taken))\n"
    )
    command = [sys.executable, "-c", claim, str(tmp_path / "xor")]
    claimed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert claimed.stdout.split() == ["xor-2", "1"]


def test_a_name_whose_run_never_began_is_free_again(tmp_path: Path) -> None:
    first = tmp_path / "runs" / "xor"
    with pytest.raises(ValueError, match="no"), claimed_run_dir(first, is_named=False):
        raise ValueError("no")
    assert choose_run_dir(first) == first
    with claimed_run_dir(first, is_named=False) as folder:
        (folder / "plan.json").write_text("{}")
    assert claim_run_dir(first, is_named=False).name == "xor-2"  # holds nothing, and is still taken
    assert existing_runs(first) == [first]
    assert choose_run_dir(first).name == "xor-3"


def test_a_full_disk_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_durably(path, [b"old"])
    with files_of_at_most(8), pytest.raises(OSError, match="large"):
        write_durably(path, [b"new and longer"])
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_two_writers_of_one_file_never_share_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"

    def parts() -> Iterator[bytes]:
        yield b"fi"
        write_durably(path, [b"second"])  # while the first is in the middle of its own
        yield b"rst"

    write_durably(path, parts())
    assert path.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_drafts_of_killed_writers_go_and_a_users_files_stay(tmp_path: Path) -> None:
    (tmp_path / "plan.json.4711-0123abcd.part").write_bytes(b"half")
    (tmp_path / "mine.part").write_bytes(b"whole")
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.part"]


def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    with _holder(tmp_path) as other:
        other.send_signal(signal.SIGSTOP)
        until(lambda: _state(other.pid) == "T", "it stands still")
        with pytest.raises(FolderInUseError), exclusive(tmp_path):
            pass
        other.send_signal(signal.SIGCONT)
        other.communicate()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_lock_file_with_invalid_content_still_refuses(tmp_path: Path) -> None:
    with _holder(tmp_path) as other:
        (tmp_path / LOCK_NAME).write_bytes(b"\xff\xfe")
        with pytest.raises(FolderInUseError), exclusive(tmp_path):
            pass
        (tmp_path / LOCK_NAME).write_text(json.dumps({"pid": "x"}))
        with pytest.raises(FolderInUseError), exclusive(tmp_path):
            pass
        other.communicate()

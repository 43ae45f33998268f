"""An event log on a disk that is full for a while, cut in the middle of a line, or damaged."""

import errno
import json
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.processes.command import ROOT
from tests.fixtures.processes.full_disk import files_of_at_most

from paceline.core.clock import SystemClock
from paceline.events.follow import LogFollower, NewLines
from paceline.events.log import WAITING_BYTES, EventLog, write_header
from paceline.events.read import History, decode_lines, read_history
from paceline.events.segments import size_of_whole_lines


class Disk:
    """A file in memory that takes as many bytes as there is room for, and then refuses."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.room: int | None = None  # None: no limit

    def write(self, data: bytes) -> int:
        if self.room is None:
            self.data += data
            return len(data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.room]
        self.data += taken
        self.room -= len(taken)
        return len(taken)

    def close(self) -> None: ...


def _begin(path: Path) -> None:
    write_header(path, run="run", plan="0" * 16, t0_ns=0, started_unix_s=0.0)


def _read(tmp_path: Path, disk: Disk) -> History:
    path = tmp_path / "events.jsonl"
    _begin(path)
    with path.open("ab") as file:
        file.write(disk.data)
    return read_history(path)


def _ids(history: History) -> list[int]:
    return [int(str(event.fields["id"])) for event in history.plain if event.kind == "action"]


def test_lines_that_a_full_disk_refuses_are_written_when_there_is_room(tmp_path: Path) -> None:
    disk, reported = Disk(), list[str]()
    log = EventLog(None, who="worker-0", clock=SystemClock(), notify=reported.append, file=disk)
    log.write("action", id=1)
    disk.room = 30  # the next line is cut short, and all behind it refused
    for number in (2, 3, 4):
        log.write("action", id=number)
    disk.room = None
    log.write("action", id=5)
    log.close()
    history = _read(tmp_path, disk)
    assert _ids(history) == [1, 2, 3, 4, 5]
    assert (history.torn.count, history.torn.first) == (1, [3])
    (interrupted,) = (event for event in history.plain if event.kind == "record_interrupted")
    assert (interrupted.fields["fragments"], interrupted.fields["dropped"]) == (1, 0)
    assert len(reported) == 1


@given(rooms=st.lists(st.integers(0, 90), max_size=12))
def test_however_often_the_disk_fills_up_every_line_is_read_once(rooms: list[int]) -> None:
    disk = Disk()
    log = EventLog(None, who="worker-0", clock=SystemClock(), notify=lambda _: None, file=disk)
    for number, room in enumerate(rooms):
        disk.room = room
        log.write("action", id=number)
    disk.room = None
    log.close()
    read = [decode_lines(raw) for raw in bytes(disk.data).split(b"\n")[:-1]]
    results = [json.loads(line) for lines, _ in read for line in lines]
    assert [event["id"] for event in results if event["kind"] == "action"] == list(range(len(rooms)))
    fragments = sum(event["fragments"] for event in results if event["kind"] == "record_interrupted")
    assert sum(is_torn for _, is_torn in read) == fragments


def test_another_writers_line_behind_a_fragment_is_found(tmp_path: Path) -> None:
    disk = Disk()
    log = EventLog(None, who="worker-0", clock=SystemClock(), notify=lambda _: None, file=disk)
    other = EventLog(None, who="worker-1", clock=SystemClock(), notify=lambda _: None, file=disk)
    disk.room = 25
    log.write("action", id=1)
    disk.room = None
    other.write("action", id=2)  # glued to the fragment
    log.write("action", id=3)
    history = _read(tmp_path, disk)
    assert sorted(_ids(history)) == [1, 2, 3]
    assert history.torn.count == 1


def test_a_disk_that_stays_full_costs_bounded_memory_and_what_is_missing_is_reported() -> None:
    disk, reported = Disk(), list[str]()
    disk.room = 0
    log = EventLog(None, who="worker-0", clock=SystemClock(), notify=reported.append, file=disk)
    for number in range(8):
        log.write("action", id=number, target="x" * (WAITING_BYTES // 4))
    disk.room = None
    log.close()
    results = [json.loads(line) for line in bytes(disk.data).split(b"\n")[:-1]]
    kept = [event["id"] for event in results if event["kind"] == "action"]
    (interrupted,) = (event for event in results if event["kind"] == "record_interrupted")
    assert kept == list(range(8 - len(kept), 8))
    assert interrupted["dropped"] == 8 - len(kept) > 0


def test_the_kernels_own_short_write_is_undone_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _begin(path)
    log = EventLog(path, who="worker-0", clock=SystemClock(), notify=lambda _: None)
    with files_of_at_most(path.stat().st_size + 20):
        log.write("action", id=1)
        log.write("action", id=2)
    log.write("action", id=3)
    log.close()
    history = read_history(path)
    assert _ids(history) == [1, 2, 3]
    assert history.torn.count == 1


def test_a_warning_that_the_disk_refuses_too_does_not_end_the_training(tmp_path: Path) -> None:
    """A worker's stderr is a file of the same run folder."""
    path = tmp_path / "events.jsonl"
    _begin(path)
    write = (
        "import sys; from pathlib import Path\n"
        "from tests.fixtures.processes.full_disk import files_of_at_most\n"
        "from paceline.core.clock import SystemClock; from paceline.events.log import EventLog\n"
        "path = Path(sys.argv[1])\n"
        "log = EventLog(path, who='worker-0', clock=SystemClock())\n"
        "with files_of_at_most(path.stat().st_size):\n"
        "    log.write('action', id=1)\n"
        "log.write('action', id=2)\n"
        "log.close()\n"
    )
    with Path("/dev/full").open("wb") as full:
        subprocess.run([sys.executable, "-c", write, str(path)], cwd=ROOT, stderr=full, check=False)
    assert _ids(read_history(path)) == [1, 2]


def test_every_reader_skips_lines_that_are_no_text_or_no_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _begin(path)
    log = EventLog(path, who="worker-0", clock=SystemClock())
    following = LogFollower(path, rows=4)
    damage = [
        b'{"kind":"action","who":"\xff\xfe","at_ns":1}\n',
        b"\x00\x00\x00\n",
        b"[1, 2]\n",
        b'{"kind":"steps","who":"worker-0","rows":2,"columns":{"step":[1]}}\n',
        b'{"kind":"steps","who":"worker-x","rows":1,"columns":{"step":1}}\n',
        b'{"kind":"action"}\n',
        b'{"kind":"action","who":}\n',
    ]
    for number, raw in enumerate(damage):
        log.write("action", id=number)
        with path.open("ab") as file:
            file.write(raw)
    log.write("action", id=len(damage))
    history = read_history(path)
    assert _ids(history) == list(range(len(damage) + 1))
    assert history.torn.first == [3, 5, 7, 9, 11, 13, 15]
    assert _ids(following.read()) == _ids(history)
    lines = NewLines(path)
    assert all("action" in line or "steps" in line or "schema" in line for line in lines.read())
    assert lines.torn.count == 3


def test_the_end_of_a_long_log_is_found_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"a\n" + b"b" * 200_000)
    assert size_of_whole_lines(path) == 2
    path.write_bytes(b"b" * 200_000)
    assert size_of_whole_lines(path) == 0
    assert size_of_whole_lines(tmp_path / "none") == 0

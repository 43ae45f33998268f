"""A log that rotates: nothing is lost or read twice, whatever is interrupted, and readers see one log."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.disk import write_durably
from paceline.core.errors import DamagedRecordError, PacelineError
from paceline.events.follow import LogFollower, NewLines
from paceline.events.log import EventLog, write_header
from paceline.events.log_summary import summarise_log
from paceline.events.read import read_history
from paceline.events.schema import StepRow
from paceline.events.segments import (
    SegmentWriter,
    begin_segment,
    chunks,
    closed_path,
    compress_closed,
    compressed_path,
    end_of_lines,
    head_of,
    newest_session,
    recorded_plans,
)

SMALL = 600


def started_log(folder: Path) -> Path:
    path = folder / "events.jsonl"
    write_header(path, run="r", plan="p", t0_ns=0, started_unix_s=0.0)
    return path


def pen(path: Path, segment_bytes: int = SMALL, who: str = "worker-0") -> EventLog:
    return EventLog(path, who=who, clock=SystemClock(), file=SegmentWriter(path, segment_bytes))


def write(path: Path, numbers: range, segment_bytes: int = SMALL) -> None:
    log = pen(path, segment_bytes)
    for number in numbers:
        log.write("action", id=number)
    log.close()


def ids(path: Path) -> list[int]:
    return [int(str(event.fields["id"])) for event in read_history(path).plain]


def a_step(number: int) -> StepRow:
    return StepRow(number, number, number * 10, 1, 2, 3, 0, 0, 0, 1, 0, 0.5, 4, 10, 10, number, True)


Act = tuple[str, int]
ACTS = st.lists(
    st.tuples(st.sampled_from(["event", "steps", "fragment", "raw", "compress", "read"]), st.integers(0, 60)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(acts=ACTS, size=st.integers(300, 1500))
@example(acts=[("event", 0)] * 8 + [("fragment", 1)], size=302)  # a cut line fills the segment
def test_readers_of_a_rotated_log_see_what_they_see_in_one_file(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Act], size: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    (folder / "whole").mkdir()
    (folder / "parts").mkdir()
    whole, parts = started_log(folder / "whole"), started_log(folder / "parts")
    writers = [SegmentWriter(whole, 1 << 30), SegmentWriter(parts, size)]
    following = [NewLines(whole), NewLines(parts)]
    for act, number in acts:
        if act == "compress":
            compress_closed(parts)
        elif act == "read":
            assert following[0].read() == following[1].read()
            assert following[0].offset == following[1].offset
        else:
            for writer in writers:
                writer.write(_bytes_of(act, number))
    assert b"".join(chunks(whole)) == b"".join(chunks(parts))
    assert end_of_lines(whole) == end_of_lines(parts)
    assert read_history(whole) == read_history(parts)
    assert summarise_log(whole) == summarise_log(parts)
    assert following[0].read() == following[1].read()
    assert following[0].torn == following[1].torn
    for start in range(0, end_of_lines(whole), 97):
        assert b"".join(chunks(whole, start, size=100)) == b"".join(chunks(parts, start, size=100))


def _bytes_of(act: str, number: int) -> bytes:
    event: dict[str, object] = {"kind": "action", "who": "worker-0", "at_ns": number, "id": number}
    if act == "steps":
        columns = a_step(number)._asdict()
        event = {"kind": "steps", "who": "worker-1", "rows": 1, "columns": columns}
    line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
    if act == "fragment":
        return line[: number % len(line)]
    return line if act != "raw" else b"\n"


def link_only(path: Path) -> None:
    os.link(path, closed_path(path, head_of(path).number))


def link_and_draft(path: Path) -> None:
    link_only(path)
    draft = path.with_name(f"{path.name}.123-0badc0de.part")
    draft.write_bytes(b'{"schema":"paceline.events.segm')


def rotated(path: Path) -> None:
    begin_segment(path)


def half_compressed(path: Path) -> None:
    begin_segment(path)
    target = compressed_path(path, head_of(path).number - 1)
    target.with_name(f"{target.name}.123-0badc0de.part").write_bytes(b"\x1f\x8b\x08")


def compressed_beside_the_original(path: Path) -> None:
    begin_segment(path)
    closed = closed_path(path, head_of(path).number - 1)
    kept = closed.read_bytes()
    compress_closed(path)
    closed.write_bytes(kept)


def compressed(path: Path) -> None:
    begin_segment(path)
    compress_closed(path)


STATES = [link_only, link_and_draft, rotated, half_compressed, compressed_beside_the_original, compressed]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("leave", STATES)
def test_a_rotation_that_is_cut_off_anywhere_loses_nothing(
    tmp_path: Path, leave: Callable[[Path], None], before: int
) -> None:
    path = started_log(tmp_path)
    write(path, range(5), 1 << 30)
    for number in range(before):
        begin_segment(path)
        write(path, range(5 + number, 6 + number), 1 << 30)
    lines = NewLines(path)
    so_far = lines.read()
    leave(path)
    there = list(range(5 + before))
    assert ids(path) == there
    assert len(so_far) == 1 + len(there)
    assert lines.read() == []
    write(path, range(5 + before, 40))
    compress_closed(path)
    assert ids(path) == list(range(40))
    assert head_of(path).number > before + 1
    assert len(lines.read()) == 40 - len(there)
    write_header(path, run="r", plan="p", t0_ns=0, started_unix_s=0.0)  # a resume begins so
    assert ids(path) == list(range(40))


@pytest.mark.parametrize("leave", STATES)
def test_a_copy_of_a_folder_in_the_middle_of_a_rotation_reads_the_same(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    (tmp_path / "run").mkdir()
    path = started_log(tmp_path / "run")
    write(path, range(5), 1 << 30)
    leave(path)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # links become files of their own
    copy = tmp_path / "copy" / "events.jsonl"
    write(copy, range(5, 30))
    assert ids(copy) == list(range(30))


WRITES = """
import sys
from pathlib import Path
from paceline.core.clock import SystemClock
from paceline.events.log import EventLog
from paceline.events.segments import SegmentWriter, compress_closed
path, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = EventLog(path, who=who, clock=SystemClock(), file=SegmentWriter(path, 2000))
for number in range(count):
    log.write("action", id=number)
    if len(sys.argv) > 4 and number % 50 == 0:
        compress_closed(path)
log.close()
"""


def test_processes_that_write_while_others_rotate_and_compress_lose_no_line(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    count = 600
    names = [f"worker-{rank}" for rank in range(3)]
    words = [[str(path), name, str(count)] for name in names]
    words[0].append("compress")
    processes = [subprocess.Popen([sys.executable, "-c", WRITES, *mine]) for mine in words]
    lines = NewLines(path)
    results: list[str] = []
    while any(process.poll() is None for process in processes):
        results += lines.read()
    assert [process.wait() for process in processes] == [0, 0, 0]
    results += lines.read()
    assert head_of(path).number > 10
    for name in names:
        events = [json.loads(line) for line in results[1:]]
        assert [event["id"] for event in events if event["who"] == name] == list(range(count))
    assert lines.torn.count == 0


def has_rotated(path: Path, number: int) -> bool:
    return head_of(path).number > number


def test_a_writer_that_is_killed_at_any_moment_leaves_every_line_that_it_wrote(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    seen = 0
    for round_ in range(4):
        words = [str(path), f"worker-{round_}", "1000000", "compress"]
        process = subprocess.Popen([sys.executable, "-c", WRITES, *words])
        lines = NewLines(path)
        first = head_of(path).number
        until(partial(has_rotated, path, first + round_), "some rotations")
        process.send_signal(signal.SIGKILL)
        process.wait()
        events = [json.loads(line) for line in lines.read()[1:]]
        mine = [event["id"] for event in events if event["who"] == f"worker-{round_}"]
        assert mine == list(range(len(mine)))
        assert mine
        assert len(events) == seen + len(mine)
        seen = len(events)


def test_a_rotation_that_never_ends_delays_lines_and_loses_none(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    messages: list[str] = []
    file = SegmentWriter(path, SMALL)
    log = EventLog(path, who="worker-0", clock=SystemClock(), notify=messages.append, file=file)
    with path.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        log.write("action", id=0)
        assert ids(path) == []
    log.write("action", id=1)
    log.close()
    assert ids(path) == [0, 1]
    assert not messages


def test_a_segment_that_cannot_be_closed_grows_and_each_of_its_lines_is_read_once(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    closed_path(path, 0).mkdir()  # its name is taken
    messages: list[str] = []
    file = SegmentWriter(path, SMALL)
    log = EventLog(path, who="worker-0", clock=SystemClock(), notify=messages.append, file=file)
    for number in range(40):
        log.write("action", id=number)
    assert ids(path) == list(range(40))
    closed_path(path, 0).rmdir()
    for number in range(40, 80):
        log.write("action", id=number)
    log.close()
    assert ids(path) == list(range(80))
    assert head_of(path).number >= 1
    assert not messages


def test_a_closed_segment_that_is_missing_or_damaged_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    write(path, range(40))
    whole = end_of_lines(path)
    compress_closed(path)
    newest = head_of(path).number
    assert newest > 3
    compressed_path(path, 1).unlink()
    damaged = compressed_path(path, 3)
    damaged.write_bytes(damaged.read_bytes()[:-40])
    history = read_history(path)
    results = [int(str(event.fields["id"])) for event in history.plain]
    assert history.torn.count >= 2
    assert results == sorted(set(results))
    assert results[0] == 0
    assert results[-1] == 39
    lines = NewLines(path)
    lines.read()
    assert lines.offset == whole
    write(path, range(40, 41))
    assert [json.loads(line)["id"] for line in lines.read()] == [40]


def test_a_segment_whose_header_is_damaged_is_refused(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    write(path, range(20))
    path.write_bytes(path.read_bytes().replace(b'"begins":', b'"begins":x', 1))
    with pytest.raises(DamagedRecordError):
        read_history(path)


def test_an_older_version_refuses_the_newest_segment_alone(tmp_path: Path) -> None:
    """It would take the newest segment for the whole log."""
    path = started_log(tmp_path)
    write(path, range(20))
    assert json.loads(path.read_bytes().splitlines()[0])["schema"] != "paceline.events/1"


def test_a_log_that_is_replaced_by_a_shorter_one_is_noticed(tmp_path: Path, wording: Wording) -> None:
    path = started_log(tmp_path)
    write(path, range(30))
    lines = NewLines(path)
    lines.read()
    write_durably(path, [b"{}\n"])
    with wording.raises(PacelineError):
        lines.read()


def test_plans_and_sessions_of_closed_segments_are_known_without_reading_them(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    for plan, began_ns in (("p", 5), ("q", 70)):
        log = pen(path)
        log.write("run_started", plan=plan, launcher="local", unix_s=began_ns / 1e9, pid=1)
        log.close()
        write(path, range(30))
    session = newest_session(path)
    for number in range(head_of(path).number):
        closed_path(path, number).unlink()
    assert recorded_plans(path) == {"p", "q"}
    assert newest_session(path) == session
    assert session is not None
    assert session.unix_s == 70 / 1e9


def test_a_reader_that_follows_keeps_the_newest_rows_over_rotations(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    following = LogFollower(path, rows=3)
    log = pen(path)
    for number in range(30):
        log.add_step(a_step(number))
        log.flush()
        if number % 7 == 0:
            compress_closed(path)
            assert following.read().steps[0][-1].step == number
    log.close()
    assert [row.step for row in following.read().steps[0]] == [27, 28, 29]
    assert head_of(path).number > 3


def test_a_line_in_the_middle_of_which_a_segment_ends_is_whole_again(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    line = b'{"kind":"action","who":"worker-0","at_ns":1,"id":7}\n'
    writer = SegmentWriter(path, 1 << 30)
    writer.write(line[:20])
    begin_segment(path)
    lines = NewLines(path)
    assert len(lines.read()) == 1
    writer.write(b"\n" + line)
    assert [json.loads(result)["id"] for result in lines.read()] == [7]
    assert lines.torn.count == 1
    assert ids(path) == [7]


def test_symbolic_links_are_no_segments(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    write(path, range(30))
    secret = tmp_path / "secret"
    closed_path(path, 1).rename(secret)
    closed_path(path, 1).symlink_to(secret)
    history = read_history(path)
    assert history.torn.count >= 1
    results = [int(str(event.fields["id"])) for event in history.plain]
    ahead = list(takewhile(lambda pair: pair[0] == pair[1], enumerate(results)))
    assert len(ahead) < len(results) < 30

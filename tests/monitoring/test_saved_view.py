"""A view that is saved and read on from equals one that was read from the first line."""

import gzip
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.waiting import NEVER_S, until
from tests.fixtures.wording import Wording
from tests.monitoring.scripted_log import T0_NS, ScriptedLog, a_plan, followed, steady_log

from paceline.cli.main import cli
from paceline.core.clock import SystemClock
from paceline.events.log import EventLog
from paceline.events.read import Torn
from paceline.events.segments import SegmentWriter, begin_segment, closed_path, compress_closed, head_of
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.log_maintenance import LogMaintenance, MaintenanceTask
from paceline.monitoring.view.feed import Feed, FeedPurpose, read_snapshot
from paceline.monitoring.view.run_view import RunView
from paceline.monitoring.view.saved_view import NAME, Saved, load, save
from paceline.plan.plan import Elastic
from paceline.training.session import Session

PLAN = a_plan(4, elastic=Elastic(workers=4, min_workers=1, max_workers=4))


@cache
def eventful() -> tuple[str, ...]:
    """A log with a line of every kind that a view keeps something of, in two sessions."""
    log = steady_log(45, 4, slow="worker-3")

    def ns(at_s: float) -> int:
        return T0_NS + round(at_s * 1e9)

    for second in (20.0, 40.0):
        members = "worker-0,worker-1,worker-2,worker-3"
        for rank in range(4):
            entered = {"number": int(second // 20), "rank": rank, "workers": members, "why": "a loss"}
            log.tell(second, f"worker-{rank}", "generation_entered", committed=int(second * 10), **entered)
        log.tell(second + 1, "launcher", "supervision", decision="worker-2 was lost (killed by signal 9)")
        log.tell(second + 2, "worker-1", "generation_lost", number=1, committed=int(second * 10), why="b")
        log.tell(second + 3, "worker-2", "worker_started", pid=7, clock=3, node="here")
        log.tell(second + 4, "worker-0", "checkpoint", step=3, path="at-3", bytes=5, write_s=0.2, version=3)
        log.tell(second + 4, "worker-0", "evaluated", step=3, metrics='{"accuracy":0.5}', took_s=0.1)
        log.tell(second + 5, "server-0", "server_restored", part=0, version=2)
        log.tell(second + 6, "operator", "fault_injected", fault="slow", target="worker-3", by="me")
        silenced = {"rule": "WorkerStraggling", "worker": "", "until_ns": ns(999.0), "by": "me"}
        log.tell(second + 7, "operator", "alert_silenced", comment="known", **silenced)
        log.tell(second + 8, "herald", "notified", notifier="mail", outcome="sent", alerts=1)
        applied = {"op": ["apply", "discard"], "rank": 1, "step": 1, "position": 1, "version": [4, 5]}
        stale = {"read_version": 1, "staleness": 3, "gap": 2, "age_ns": 5}
        log.rows("server-0", "server", 2, at_ns=ns(second), **applied, **stale)
        log.rows("worker-1", "custom", at_ns=ns(second), step=3, name="sharpness", value=second)
        link = {"node": "here", "connections": 1, "round_trip_s": 0.1, "slowest_s": 0.2, "sent": 3}
        log.rows("worker-1", "links", at_ns=ns(second), sent_again=1, **link)
        process = {"worker": "worker-1", "pid": 7, "memory_bytes": 9, "cpu_share": 0.5, "is_stopped": False}
        log.rows("watch", "processes", at_ns=ns(second), **process)
        gpu = {"node": "here", "gpu": 0, "uuid": "u", "name": "g", "is_throttled": True}
        log.rows("watch", "gpus", at_ns=ns(second), **gpu)
        node = {"address": "a:1", "node": 1, "role": "leader", "is_voter": True, "leader": 1, "term": 2}
        counted = {"commits": "0.5/3:2", "fsyncs": "0.1/2:1", "round_trips": "2=0.1/1:1"}
        log.rows("watch", "coordinators", at_ns=ns(second), **node, **counted)
    log.steps("worker-0", 900, [51.0], loss=float("nan"), norms=[float("inf")])
    log.tell(60.0, "launcher", "run_started", plan="p", launcher="local", unix_s=1_800_000_080.0, pid=3)
    log.tell(61.0, "launcher", "run_resumed", version=300, clocks="300,300,300,300")
    log.steps("worker-1", 300, [62.0, 63.0], norms=[1.5, 2.5])
    log.second(64.0, memory_used_bytes=10, memory_size_bytes=100)
    return tuple(log.lines)


def read_through(view: RunView, lines: tuple[str, ...]) -> str:
    for line in lines:
        view.take(line)
    return json.dumps(view.snapshot())


@cache
def all_at_once() -> tuple[str, str]:
    view = RunView(PLAN)
    return read_through(view, eventful()), str(view.samples())


@settings(max_examples=5, deadline=None)
@given(places=st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_a_view_that_is_saved_anywhere_continues_as_if_it_had_not_been(
    tmp_path_factory: pytest.TempPathFactory, places: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = eventful()
    view = RunView(PLAN)
    read = 0
    for place in sorted(round(place * len(lines)) for place in places):
        read_through(view, lines[read:place])
        read = place
        save(folder, Saved(view, read, read, Torn()))
        saved = load(folder, PLAN, default_rules())
        assert saved is not None
        view = saved.view
    assert (read_through(view, lines[read:]), str(view.samples())) == all_at_once()


def a_run(folder: Path, *, is_rotated: bool, segment_bytes: int = 8_000) -> Path:
    """The same run, in one file or in segments."""
    log = steady_log(20, 4, slow="worker-3")
    log.tell(21.0, "launcher", "run_finished", outcome="finished")
    log.write(folder, a_plan(4))
    path = folder / "events.jsonl"
    if is_rotated:
        header, *lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(header)
        writer = SegmentWriter(path, segment_bytes)
        for line in lines:
            writer.write(line)
    return path


def keep(folder: Path) -> None:
    MaintenanceTask(folder).run_once(is_over=True)


def test_status_of_a_long_run_reads_the_saved_view_and_the_tail_only(tmp_path: Path) -> None:
    a_run(tmp_path / "whole", is_rotated=False)
    path = a_run(tmp_path / "parts", is_rotated=True)
    keeper = LogMaintenance(path.parent, pytest.fail, kept_bytes=0, finish_s=NEVER_S)
    keeper.check()
    keeper.close()
    newest = head_of(path).number
    assert newest > 3
    assert (path.parent / NAME).exists()
    assert not closed_path(path, 0).exists()
    for closed in path.parent.glob("events.0*"):
        closed.unlink()
    assert read_snapshot(path.parent) == read_snapshot(tmp_path / "whole")
    with path.open("ab") as file:
        file.write(b'{"kind":"action","who":"operator","at_ns":1,"id":5,"action":"slow"}\n')
    assert read_snapshot(path.parent)["seq"] == int(str(read_snapshot(tmp_path / "whole")["seq"])) + 1


@pytest.mark.parametrize("damage", ["half", "empty", "other format", "other rules", "beyond", "other run"])
def test_a_saved_view_that_is_of_no_use_is_ignored(tmp_path: Path, damage: str) -> None:
    path = a_run(tmp_path / "run", is_rotated=True)
    expected = read_snapshot(path.parent)
    keep(path.parent)
    file = path.parent / NAME
    data = json.loads(gzip.decompress(file.read_bytes()))
    match damage:
        case "half":
            file.write_bytes(file.read_bytes()[:-200])
        case "empty":
            file.write_bytes(b"")
        case "other run":
            data["parts"]["track"][2]["t0_ns"] = 7
        case "beyond":
            data["offset"] = 1 << 40
        case "other format":
            data["format"] = "0"
        case _:
            data["rules"] = "0"
    if damage not in ("half", "empty"):
        file.write_bytes(gzip.compress(json.dumps(data).encode()))
    assert read_snapshot(path.parent) == expected


def test_nothing_but_parts_of_a_view_is_made_from_a_file(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", is_rotated=False)
    keep(path.parent)
    data = json.loads(gzip.decompress((path.parent / NAME).read_bytes()))
    data["parts"]["track"] = ["object", "Popen", {"args": "true"}]
    (path.parent / NAME).write_bytes(gzip.compress(json.dumps(data).encode()))
    assert load(path.parent, a_plan(4), default_rules()) is None


def test_a_collector_continues_from_what_another_session_saved(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", is_rotated=True)
    keep(path.parent)
    before = Feed(path.parent, aim=FeedPurpose.SAVING).saved()
    assert before.offset > 0
    for closed in path.parent.glob("events.0*"):
        closed.unlink()  # a second reading of them would show
    log = EventLog(path, who="launcher", clock=SystemClock())
    log.write("run_started", plan="p", launcher="local", unix_s=1_800_000_500.0, pid=1)
    log.close()
    keep(path.parent)
    after = Feed(path.parent, aim=FeedPurpose.SAVING).saved()
    assert after.view.seq == before.view.seq + 1
    assert after.torn.count == 0


def test_a_keeper_ends_with_its_launcher(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", is_rotated=True)
    starts = (
        "import sys; from pathlib import Path\n"
        "from paceline.monitoring.log_maintenance import LogMaintenance\n"
        "keeper = LogMaintenance(Path(sys.argv[1]), print, kept_bytes=0); keeper.check()\n"
        "print(keeper._process.pid, flush=True); sys.stdin.read()"
    )
    args = [sys.executable, "-c", starts, str(path.parent)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        launcher.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the keeper is gone")
    assert (path.parent / NAME).exists()


def call(folder: Path, *args: str) -> str:
    result = CliRunner().invoke(cli, args, obj=Session(folder=folder), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_keeper_that_cannot_work_or_ends_is_reported_once(tmp_path: Path, wording: Wording) -> None:
    notes: list[str] = []
    missing = LogMaintenance(tmp_path / "missing", notes.append, kept_bytes=0)
    missing.check()
    missing.check()
    assert len(notes) == 1
    wording(notes[0])
    damaged = tmp_path / "run"
    damaged.mkdir()
    (damaged / "events.jsonl").write_text("no event\n")
    keeper = LogMaintenance(damaged, notes.append, kept_bytes=0)

    def is_reported() -> bool:
        keeper.check()
        return len(notes) == 2

    until(is_reported, "the end of the process is reported")
    keeper.check()
    keeper.close()
    assert len(notes) == 2


def test_commands_print_the_same_for_a_log_in_segments(tmp_path: Path) -> None:
    for name, is_rotated in (("whole", False), ("parts", True)):
        path = a_run(tmp_path / name / "runs" / "one", is_rotated=is_rotated)
        compress_closed(path)
    for words in (
        ("--json", "status"),
        ("--json", "events"),
        ("--json", "events", "--last", "2"),
        ("events", "--kind", "worker_started"),
        ("alerts", "list"),
    ):
        assert call(tmp_path / "parts", *words) == call(tmp_path / "whole", *words)


def test_events_are_followed_over_rotations(tmp_path: Path) -> None:
    log = ScriptedLog()
    path = tmp_path / "runs" / "one" / "events.jsonl"
    with followed(log, path.parent) as printed:
        writer = SegmentWriter(path)
        for step in range(4):
            log.lines.clear()
            log.tell(3.0, "worker-0", "checkpoint_skipped", step=step)
            log.tell(3.0, "launcher", "stop_requested", by=f"number {step}")
            writer.write((log.lines[0] + "\n").encode())
            begin_segment(path)
            compress_closed(path)
            writer.write((log.lines[1] + "\n").encode())
            skipped, stopped = (json.loads(printed.readline()) for _ in range(2))
            assert (skipped["kind"], stopped["kind"]) == ("checkpoint_skipped", "stop_requested")
            assert str(step) in skipped["text"]
            assert f"number {step}" in stopped["text"]
        log.lines.clear()
        log.tell(5.0, "launcher", "run_finished", outcome="stopped")
        begin_segment(path)
        writer.write((log.lines[0] + "\n").encode())
        assert json.loads(printed.readline())["kind"] == "run_finished"

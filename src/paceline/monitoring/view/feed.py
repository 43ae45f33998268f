"""Feed of a run's lines to a view: live as they are written (`Feed`), or replayed (`Replay`).

The run's clock is the calendar's, counted from the origin in the header, so it is the same for
every reader, on any machine.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import DamagedRecordError, NoSuchRunError, NothingRecordedError
from paceline.events.follow import NewLines
from paceline.events.read import UNREADABLE, Torn
from paceline.events.schema import COLUMN_KINDS
from paceline.events.segments import chunks, end_of_lines
from paceline.monitoring.alerts.rule_file import default_rules, load_rules
from paceline.monitoring.alerts.rules import Rules
from paceline.monitoring.probes.process import is_alive
from paceline.monitoring.view.run_track import RunTrack
from paceline.monitoring.view.run_view import RunView
from paceline.monitoring.view.saved_view import Saved, load
from paceline.plan.codec import Json, read
from paceline.plan.plan import EventDetail, Plan

_ROWS = tuple(f'{{"kind":"{kind}",' for kind in COLUMN_KINDS if kind != "hosts")  # lines of rows
RULES_NAME = "alerts.yaml"  # in a run's folder: the rules it was started with
LOOKBACK_NS = 35 * 60 * 1_000_000_000  # longer than the window of any default rule
TAIL_BYTES = 65_536
NEVER_NS = 1 << 62
SKEWED_NS = 5_000_000_000  # lines are written at most half a second after their events


def rules_of(run_dir: Path) -> Rules | None:
    """The rules that the run was started with; None: the defaults."""
    path = run_dir / RULES_NAME
    return load_rules(path) if path.exists() else None


class FeedPurpose(Enum):
    """The purpose of a feed, which decides how much of the log is read."""

    ALL = "all"
    SNAPSHOT = "snapshot"  # from the saved view on; without one, alerts of the last half hour only
    SAVING = "saving"  # from the saved view on; without one, everything
    EVENTS = "events"  # plain events, and no alerts


class Feed:
    """Follows a run that may still be training."""

    def __init__(
        self, run_dir: Path, *, rules: Rules | None = None, aim: FeedPurpose = FeedPurpose.ALL
    ) -> None:
        plan = read_plan(run_dir)
        path = run_dir / "events.jsonl"
        rules = rules_of(run_dir) if rules is None else rules
        self._purpose = aim
        self._lines = NewLines(path)
        self._has_lines = False
        self._clock = _RunNow()
        quiet_ns = 0
        if aim is FeedPurpose.EVENTS:
            quiet_ns = NEVER_NS
        elif aim is not FeedPurpose.ALL:
            saved = _load_saved(path, plan, default_rules() if rules is None else rules)
            if saved is not None:
                self.view = saved.view
                self._lines.resume(saved.offset, saved.lines, saved.torn)
                return
            if aim is FeedPurpose.SNAPSHOT:
                quiet_ns = max(0, _newest_ns(path) - LOOKBACK_NS)
        self.view = RunView(plan, rules, quiet_until_ns=quiet_ns)

    def read(self) -> bool:
        """Take new lines, and advance the time; return whether there were any."""
        before = self.view.seq
        for _ in self.parts():
            pass
        return self.view.seq > before

    def parts(self) -> Iterator[int]:
        """The same; yields the offset in the log after every few megabytes."""
        before = self.view.seq
        for part in self._lines.parts():
            for line in part:
                if self._purpose is FeedPurpose.EVENTS and line.startswith(_ROWS) and self.view.seq:
                    self.view.track.skip()
                elif not _take(self.view, line):
                    self.torn.count += 1
            yield self._lines.offset
        if self.view.seq and (self.view.seq > before or not self._has_lines):
            self._clock.update(self.view.track, is_first=not self._has_lines)
            self._has_lines = True
        if self.view.seq:
            self.view.advance(self.now_ns())

    def saved(self) -> Saved:
        """The view up to the current offset of the log."""
        return Saved(self.view, self._lines.offset, self._lines.number, self.torn)

    @property
    def torn(self) -> Torn:
        """Lines that could not be read, so far."""
        return self._lines.torn

    def now_ns(self) -> int:
        """Now, on the run's clock; of a run that is over, its end."""
        track = self.view.track
        if track.is_over or track.seq == 0:
            return track.last_ns
        return max(track.last_ns, self._clock.ns())


class _RunNow:
    """The run's clock, for a reader that may be on another machine.

    It starts from the calendar, since only the calendar shows how long a log has been silent. After that
    it is monotonic, so setting the system clock has no effect; where new lines show that the calendars of
    both machines differ, it follows the lines.
    """

    def __init__(self) -> None:
        self._at_ns = 0
        self._updated_s = monotonic_s()

    def ns(self) -> int:
        return self._at_ns + round((monotonic_s() - self._updated_s) * 1e9)

    def update(self, track: RunTrack, *, is_first: bool) -> None:
        if is_first:
            now_ns = track.t0_ns + round((unix_now_s() - track.started_unix_s) * 1e9)
        else:
            now_ns = self.ns()
            now_ns = track.last_ns if now_ns - track.last_ns > SKEWED_NS else now_ns
        self._at_ns = max(now_ns, track.last_ns)
        self._updated_s = monotonic_s()


class Replay:
    """Replays a recorded run, at any moment of it."""

    def __init__(self, run_dir: Path, *, rules: Rules | None = None) -> None:
        self._plan = read_plan(run_dir)
        self._rules = rules_of(run_dir) if rules is None else rules
        self._lines = NewLines(run_dir / "events.jsonl").read()
        self._times_ns = _line_times(self._lines)
        self.view = RunView(self._plan, self._rules)
        self._taken = 0

    @property
    def duration_s(self) -> float:
        return (self._times_ns[-1] - self._times_ns[0]) / 1e9 if self._times_ns else 0.0

    def seek(self, at_s: float) -> None:
        """Move to this time; going back replays from the start."""
        if not self._lines:
            return
        at_ns = self._times_ns[0] + round(at_s * 1e9)
        if self._taken and self._times_ns[self._taken - 1] > at_ns:
            self.view = RunView(self._plan, self._rules)
            self._taken = 0
        while self._taken < len(self._lines) and self._times_ns[self._taken] <= at_ns:
            _take(self.view, self._lines[self._taken])
            self._taken += 1
        self.view.advance(min(at_ns, self._times_ns[-1]))

    def now_ns(self, at_s: float) -> int:
        return self._times_ns[0] + round(at_s * 1e9) if self._times_ns else 0


def read_plan(run_dir: Path) -> Plan:
    """The plan of a run that has events."""
    plan = read(run_dir / "plan.json")
    if plan.events is EventDetail.OFF:
        raise NothingRecordedError(
            f"{run_dir} was trained with events off", "train it again with --events full"
        )
    return plan


def _take(view: RunView, line: str) -> bool:
    """False: it cannot be read, and is skipped. Without the header no other line has a meaning."""
    try:
        view.take(line)
        return True
    except UNREADABLE as error:
        if view.seq > 1:
            return False
        raise DamagedRecordError(
            f"the header of the event log cannot be read: {error}",
            "the log is damaged or was written by another version; train again",
        ) from error


def _line_times(lines: list[str]) -> list[int]:
    """The earliest time at which each line was written: never before the previous line."""
    times: list[int] = []
    for number, line in enumerate(lines):
        try:
            event = json.loads(line)
            time_ns = int(event["t0_ns"]) if number == 0 else _line_time(event)
        except UNREADABLE:
            time_ns = 0
        times.append(max(time_ns, times[-1]) if times else time_ns)
    return times


def _line_time(event: dict[str, object]) -> int:
    columns = event.get("columns")
    if not isinstance(columns, dict):
        return int(str(event["at_ns"]))
    name = "at_ns" if "at_ns" in columns else "start_ns"
    values = columns[name]
    return max(values) if isinstance(values, list) else int(values)


def _load_saved(path: Path, plan: Plan, rules: Rules) -> Saved | None:
    """The saved view of this log, if there is one."""
    saved = load(path.parent, plan, rules)
    if saved is None or saved.offset > end_of_lines(path):
        return None
    with path.open("rb") as file, suppress(*UNREADABLE):
        header = json.loads(file.readline())
        track = saved.view.track
        if (header["t0_ns"], header["started_unix_s"]) == (track.t0_ns, track.started_unix_s):
            return saved
    return None


def _newest_ns(path: Path) -> int:
    """About when the log was last written, without reading all of it."""
    end = end_of_lines(path)
    if not end:
        return 0
    lines = b"".join(chunks(path, max(0, end - TAIL_BYTES), end=end)).split(b"\n")[1:-1]
    newest = 0
    for line in lines[-20:]:
        with suppress(*UNREADABLE):
            newest = max(newest, _line_time(json.loads(line)))
    return newest


def is_orphaned(track: RunTrack) -> bool:
    """Whether the launcher and all started workers are gone, and none of them logged its end.

    A command that was killed (`kill -9`) logs no end, so readers of the log check the processes that
    it names. Processes of other machines cannot be checked from here.
    """
    hostname = socket.gethostname()
    if track.is_over or track.launcher_pid is None or track.launcher_node != hostname:
        return False
    workers = [w for w in track.workers.values() if w.has_started and not w.is_finished]
    if any(worker.node not in (None, hostname) for worker in workers):
        return False
    pids = [track.launcher_pid, *(worker.pid for worker in workers if worker.pid is not None)]
    return not any(map(is_alive, pids))


def find_run(folder: Path, given: Path | None) -> Path:
    """The given run, else the one under `runs/` whose log was written last."""
    if given is not None:
        run_dir = folder / given
        if not (run_dir / "plan.json").exists():
            known = [log.parent.relative_to(folder) for log in _logs(folder)]
            hint = f"name one, such as {known[-1] if known else 'runs/xor-ssgd'}"
            raise NoSuchRunError(f"{given} is not a run folder: it has no plan.json", hint)
        return run_dir
    logs = _logs(folder)
    if not logs:
        raise NoSuchRunError(
            "there is no run under runs/", "name a run folder, or start a run: paceline train"
        )
    return logs[-1].parent


def _logs(folder: Path) -> list[Path]:
    """Logs of the runs under `runs/`, newest last."""
    return sorted((folder / "runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)


def read_snapshot(run_dir: Path, rules: Rules | None = None) -> dict[str, Json]:
    """A snapshot of the run, now, and whether it is orphaned; by these rules, else by its own."""
    feed = Feed(run_dir, rules=rules, aim=FeedPurpose.SNAPSHOT)
    feed.read()
    if feed.view.seq == 0:
        raise NoSuchRunError(f"{run_dir} has no event log yet", "wait until the run has started")
    is_left = is_orphaned(feed.view.track)
    if is_left:
        feed.read()  # it may have ended properly between the two checks
    snapshot = feed.view.snapshot(feed.now_ns())
    return {**snapshot, "is_deserted": is_left and not feed.view.track.is_over}

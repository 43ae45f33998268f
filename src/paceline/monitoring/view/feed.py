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

_ROWS = tuple(
    f'{{"kind":"{kind}",' for kind in COLUMN_KINDS if kind != "hosts"
)  # which say nothing of plain events
RULES_NAME = "alerts.yaml"  # of a run's folder: what it was begun with
LOOKBACK_NS = 35 * 60 * 1_000_000_000  # more than any default rule looks back
TAIL_BYTES = 65_536
NEVER_NS = 1 << 62
SKEWED_NS = 5_000_000_000  # lines are written at most half a second after what they tell


def rules_of(run_dir: Path) -> Rules | None:
    """Those that the run was begun with; None: the default ones."""
    path = run_dir / RULES_NAME
    return load_rules(path) if path.exists() else None


class FeedPurpose(Enum):
    """What a feed is read for."""

    ALL = "all"
    SNAPSHOT = "snapshot"  # from the saved view on; without one, alerts of the last half hour only
    SAVING = "saving"  # from the saved view on; without one, everything
    EVENTS = "events"  # plain events, and no alerts


class Feed:
    """A run that may still be at work."""

    def __init__(
        self, run_dir: Path, *, rules: Rules | None = None, aim: FeedPurpose = FeedPurpose.ALL
    ) -> None:
        plan = read_plan(run_dir)
        path = run_dir / "events.jsonl"
        rules = rules_of(run_dir) if rules is None else rules
        self._aim = aim
        self._lines = NewLines(path)
        self._has_heard = False
        self._now = _Now()
        quiet_ns = 0
        if aim is FeedPurpose.EVENTS:
            quiet_ns = NEVER_NS
        elif aim is not FeedPurpose.ALL:
            saved = _saved(path, plan, default_rules() if rules is None else rules)
            if saved is not None:
                self.view = saved.view
                self._lines.resume(saved.offset, saved.lines, saved.torn)
                return
            if aim is FeedPurpose.SNAPSHOT:
                quiet_ns = max(0, _newest_ns(path) - LOOKBACK_NS)
        self.view = RunView(plan, rules, quiet_until_ns=quiet_ns)

    def read(self) -> bool:
        """Take what is new, and let time go on; was there anything?"""
        before = self.view.seq
        for _ in self.parts():
            pass
        return self.view.seq > before

    def parts(self) -> Iterator[int]:
        """The same; yields the offset in the log after every few megabytes."""
        before = self.view.seq
        for part in self._lines.parts():
            for line in part:
                if self._aim is FeedPurpose.EVENTS and line.startswith(_ROWS) and self.view.seq:
                    self.view.track.skip()
                elif not _take(self.view, line):
                    self.torn.count += 1
            yield self._lines.offset
        if self.view.seq and (self.view.seq > before or not self._has_heard):
            self._now.heard(self.view.track, is_first=not self._has_heard)
            self._has_heard = True
        if self.view.seq:
            self.view.advance(self.now_ns())

    def saved(self) -> Saved:
        """As far as the log was read."""
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
        return max(track.last_ns, self._now.ns())


class _Now:
    """The run's clock, for somebody who may be on another machine.

    At first by the calendar: nobody else knows how long a log has been silent. From then on it counts by
    itself, and a calendar that is set anew changes nothing; where fresh lines show that the calendars of
    both machines differ, it goes by the lines.
    """

    def __init__(self) -> None:
        self._at_ns, self._heard_s = 0, monotonic_s()

    def ns(self) -> int:
        return self._at_ns + round((monotonic_s() - self._heard_s) * 1e9)

    def heard(self, track: RunTrack, *, is_first: bool) -> None:
        if is_first:
            now_ns = track.t0_ns + round((unix_now_s() - track.started_unix_s) * 1e9)
        else:
            now_ns = self.ns()
            now_ns = track.last_ns if now_ns - track.last_ns > SKEWED_NS else now_ns
        self._at_ns, self._heard_s = max(now_ns, track.last_ns), monotonic_s()


class Replay:
    """A recorded run, at any moment of it."""

    def __init__(self, run_dir: Path, *, rules: Rules | None = None) -> None:
        self._plan = read_plan(run_dir)
        self._rules = rules_of(run_dir) if rules is None else rules
        self._lines = NewLines(run_dir / "events.jsonl").read()
        self._moments_ns = _moments(self._lines)
        self.view = RunView(self._plan, self._rules)
        self._taken = 0

    @property
    def duration_s(self) -> float:
        return (self._moments_ns[-1] - self._moments_ns[0]) / 1e9 if self._moments_ns else 0.0

    def seek(self, at_s: float) -> None:
        """As it was then. Backwards it begins anew."""
        if not self._lines:
            return
        at_ns = self._moments_ns[0] + round(at_s * 1e9)
        if self._taken and self._moments_ns[self._taken - 1] > at_ns:
            self.view, self._taken = RunView(self._plan, self._rules), 0
        while self._taken < len(self._lines) and self._moments_ns[self._taken] <= at_ns:
            _take(self.view, self._lines[self._taken])
            self._taken += 1
        self.view.advance(min(at_ns, self._moments_ns[-1]))

    def now_ns(self, at_s: float) -> int:
        return self._moments_ns[0] + round(at_s * 1e9) if self._moments_ns else 0


def read_plan(run_dir: Path) -> Plan:
    """The plan of a run that has events."""
    plan = read(run_dir / "plan.json")
    if plan.events is EventDetail.OFF:
        raise NothingRecordedError(
            f"{run_dir} was trained with events off", "train it again with --events full"
        )
    return plan


def _take(view: RunView, line: str) -> bool:
    """False: it makes no sense, and is skipped. Without the header no other line has a meaning."""
    try:
        view.take(line)
        return True
    except UNREADABLE as error:
        if view.seq > 1:
            return False
        raise DamagedRecordError(
            f"the header of the event log cannot be read: {error}",
            "the log was damaged or written by another version; make the run again",
        ) from error


def _moments(lines: list[str]) -> list[int]:
    """When each line was there, at the earliest: no line is older than those before it."""
    found: list[int] = []
    for number, line in enumerate(lines):
        try:
            event = json.loads(line)
            moment = int(event["t0_ns"]) if number == 0 else _moment(event)
        except UNREADABLE:
            moment = 0
        found.append(max(moment, found[-1]) if found else moment)
    return found


def _moment(event: dict[str, object]) -> int:
    columns = event.get("columns")
    if not isinstance(columns, dict):
        return int(str(event["at_ns"]))
    name = "at_ns" if "at_ns" in columns else "start_ns"
    values = columns[name]
    return max(values) if isinstance(values, list) else int(values)


def _saved(path: Path, plan: Plan, rules: Rules) -> Saved | None:
    """None: there is none of this log."""
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
            newest = max(newest, _moment(json.loads(line)))
    return newest


# A command that was killed at once (`kill -9`) writes no last word. Whoever follows the log
# must find out by the processes that it names; those of other machines nobody here can see.


def is_orphaned(track: RunTrack) -> bool:
    """The launcher and all workers that began are gone, and none of them said that it ended."""
    here = socket.gethostname()
    if track.is_over or track.launcher_pid is None or track.launcher_node != here:
        return False
    workers = [w for w in track.workers.values() if w.has_started and not w.is_finished]
    if any(worker.node not in (None, here) for worker in workers):
        return False
    pids = [track.launcher_pid, *(worker.pid for worker in workers if worker.pid is not None)]
    return not any(map(is_alive, pids))


def find_run(folder: Path, said: Path | None) -> Path:
    """The run that was named, else the one under `runs/` whose log was written last."""
    if said is not None:
        run_dir = folder / said
        if not (run_dir / "plan.json").exists():
            there = [log.parent.relative_to(folder) for log in _logs(folder)]
            hint = f"name one, such as {there[-1] if there else 'runs/xor-ssgd'}"
            raise NoSuchRunError(f"{said} is no run's folder: it has no plan.json", hint)
        return run_dir
    logs = _logs(folder)
    if not logs:
        raise NoSuchRunError(
            "there is no run under runs/", "name a run's folder, or begin one: paceline train"
        )
    return logs[-1].parent


def _logs(folder: Path) -> list[Path]:
    """Of the runs under `runs/`, the newest last."""
    return sorted((folder / "runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)


def read_snapshot(run_dir: Path, rules: Rules | None = None) -> dict[str, Json]:
    """One snapshot of it, now, and whether anybody is left of it; by these rules, else by its own."""
    feed = Feed(run_dir, rules=rules, aim=FeedPurpose.SNAPSHOT)
    feed.read()
    if feed.view.seq == 0:
        raise NoSuchRunError(f"{run_dir} has no event log yet", "wait until the run has begun")
    is_left = is_orphaned(feed.view.track)
    if is_left:
        feed.read()  # it may have ended in good order between our two looks
    snapshot = feed.view.snapshot(feed.now_ns())
    return {**snapshot, "is_deserted": is_left and not feed.view.track.is_over}

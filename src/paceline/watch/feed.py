"""How does a view get a run's lines? As they are written, or again from the beginning by another clock.

The run's clock is the calendar's, counted from the header's first moment: so it is the
same for whoever looks, on whatever machine.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from paceline.clock import monotonic_s, unix_now_s
from paceline.errors import DamagedRecordError, NothingRecordedError
from paceline.events.follow import NewLines
from paceline.events.read import UNREADABLE, Torn
from paceline.events.schema import COLUMN_KINDS
from paceline.events.segments import chunks, end_of_lines
from paceline.plan.codec import read
from paceline.plan.plan import EventDetail, Plan
from paceline.watch.rule_file import default_rules, load_rules
from paceline.watch.rules import Rules
from paceline.watch.run_track import RunTrack
from paceline.watch.saved_view import Saved, load
from paceline.watch.view import RunView

_ROWS = tuple(
    f'{{"kind":"{kind}",' for kind in COLUMN_KINDS if kind != "hosts"
)  # which say nothing of plain events
RULES_NAME = "alerts.yaml"  # of a run's folder: what it was begun with
GLANCE_NS = 35 * 60 * 1_000_000_000  # more than any default rule looks back
TAIL_BYTES = 65_536
NEVER_NS = 1 << 62
SKEWED_NS = 5_000_000_000  # lines are written at most half a second after what they tell


def rules_of(run_dir: Path) -> Rules | None:
    """Those that the run was begun with; None: the default ones."""
    path = run_dir / RULES_NAME
    return load_rules(path) if path.exists() else None


class Aim(Enum):
    """What a feed is read for."""

    ALL = "all"
    SNAPSHOT = "snapshot"  # from the saved view on; without one, alerts of the last half hour only
    SAVING = "saving"  # from the saved view on; without one, everything
    EVENTS = "events"  # plain events, and no alerts


class Feed:
    """A run that may still be at work."""

    def __init__(self, run_dir: Path, *, rules: Rules | None = None, aim: Aim = Aim.ALL) -> None:
        plan = read_plan(run_dir)
        path = run_dir / "events.jsonl"
        rules = rules_of(run_dir) if rules is None else rules
        self._aim = aim
        self._lines = NewLines(path)
        self._has_heard = False
        self._now = _Now()
        quiet_ns = 0
        if aim is Aim.EVENTS:
            quiet_ns = NEVER_NS
        elif aim is not Aim.ALL:
            saved = _saved(path, plan, default_rules() if rules is None else rules)
            if saved is not None:
                self.view = saved.view
                self._lines.resume(saved.offset, saved.lines, saved.torn)
                return
            if aim is Aim.SNAPSHOT:
                quiet_ns = max(0, _newest_ns(path) - GLANCE_NS)
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
                if self._aim is Aim.EVENTS and line.startswith(_ROWS) and self.view.seq:
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

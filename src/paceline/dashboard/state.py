"""Application state of a dashboard: followed runs, queued actions and running scenarios."""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.clock import monotonic_s, unix_now_s
from paceline.dashboard.launch import Settings
from paceline.dashboard.replay import RecordedRun
from paceline.dashboard.run_index import LOG, NoRunError, RunIndex
from paceline.dashboard.stream import DashboardStats, LiveRun
from paceline.faults.actions.queue import ActionQueue
from paceline.faults.actions.request import FAULTS, ActionKind
from paceline.faults.scenarios.catalog import SCENARIOS
from paceline.faults.scenarios.expectations import ALWAYS, PROMISES, State, Tick, merge_ticks
from paceline.monitoring.alerts.rule_file import load_rules
from paceline.monitoring.alerts.rules import Rules
from paceline.plan.codec import Json, read
from paceline.plan.plan import Launcher

# The run appears among the others and is watched like any other; what the experiment
# promised is ticked off as it says so: so far while it goes on, then for good.

MAX_LINES = 200
MAX_KEPT = 40  # experiments
SHUTDOWN_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Experiment:
    id: str
    name: str
    run: str  # its folder, among the others
    times: int
    lines: list[str] = field(default_factory=list)  # what it said
    told: dict[str, Tick] = field(default_factory=dict)  # by what: what it has ticked off
    outcome: dict[str, Json] | None = None  # None: it goes on
    began_s: float = field(default_factory=monotonic_s)

    def json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "name": self.name,
            "run": self.run,
            "times": self.times,
            "lines": list(self.lines),
            "ticks": [
                tick.json() for tick in merge_ticks(_expectations(self.name), list(self.told.values()))
            ],
            "is_over": self.outcome is not None,
            "outcome": self.outcome,
        }


class ScenarioRunner:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._experiments: dict[str, Experiment] = {}
        self._running: list[tuple[subprocess.Popen[str], threading.Thread]] = []
        self._lock = threading.Lock()

    def scenarios(self) -> list[Json]:
        return [
            {
                "name": name,
                "what": s.what,
                "times": s.times,
                "how": s.how,
                "expects": list(_expectations(name)),
            }
            for name, s in SCENARIOS.items()
        ]

    def list(self) -> list[Json]:
        with self._lock:
            return [experiment.json() for experiment in self._experiments.values()]

    def busy(self) -> str:
        """The experiment that goes on; two at once would measure each other."""
        with self._lock:
            return next((e.name for e in self._experiments.values() if e.outcome is None), "")

    def knows(self, key: str) -> bool:
        """Asked twice with one key is asked once."""
        with self._lock:
            return key in self._experiments

    def start(self, key: str, name: str, times: int) -> Experiment:
        with self._lock:
            if (found := self._experiments.get(key)) is not None:
                return found
            run = f"lab-{name}-{int(unix_now_s())}"
            while len(self._experiments) >= MAX_KEPT:
                del self._experiments[next(iter(self._experiments))]  # the oldest is over: one runs at a time
            experiment = self._experiments[key] = Experiment(key, name, run, times)
            self._running = [(process, thread) for process, thread in self._running if thread.is_alive()]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.faults.scenarios.main", name, str(times), str(self._root / run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        thread = threading.Thread(target=_follow, args=(process, experiment), daemon=True)
        self._running.append((process, thread))
        thread.start()
        return experiment

    def close(self) -> None:
        """What goes on is ended, and takes its workers with it."""
        for process, thread in self._running:
            assert process.stdin is not None, "it was asked for"
            with suppress(BrokenPipeError):
                process.stdin.close()
            thread.join(SHUTDOWN_TIMEOUT_S)
            if thread.is_alive():
                process.kill()  # what it has started ends with it
                thread.join()


def _expectations(name: str) -> tuple[str, ...]:
    return (*PROMISES[name], *ALWAYS)


def _follow(process: subprocess.Popen[str], experiment: Experiment) -> None:
    assert process.stdout is not None, "it was asked for"
    outcome: dict[str, Json] = {"holds": False, "expectations": [], "problem": "it was ended"}
    with process.stdout as lines:
        for line in lines:
            said = _message(line)
            if "said" in said:
                experiment.lines = [*experiment.lines, str(said["said"])][-MAX_LINES:]
            elif "tick" in said:
                tick = Tick(**{**said["tick"], "state": State(said["tick"]["state"])})
                experiment.told = {**experiment.told, tick.what: tick}  # whoever looks sees all or none
            elif "problem" in said:
                outcome["problem"] = said["problem"]
            else:
                found = said["expectations"]
                outcome = {"holds": all(e["ok"] for e in found), "expectations": found, "problem": None}
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    experiment.outcome = outcome


def _message(line: str) -> dict[str, Any]:  # Any: as told.py writes it
    """What somebody else printed there, a library for instance, is only a line."""
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"said": line.rstrip()}


MAX_WATCHED = 12  # runs that are followed, unless more are being watched; a comparison takes six
MAX_RECORDED = 8


class AppState:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runs = RunIndex.at(settings.place, is_run=settings.stops_with_stdin)
        self.desk = ActionQueue()
        self.lab = ScenarioRunner(self.runs.root)
        self.counted = DashboardStats()
        self._rules: Rules | None = None if settings.rules is None else load_rules(settings.rules)
        self._watched: dict[str, LiveRun] = {}
        self._recorded: dict[str, tuple[int, RecordedRun]] = {}
        self.closing = asyncio.Event()  # streams end with it
        self.bells: set[asyncio.Event] = set()  # of those who wait

    def folder(self, run: str | None) -> tuple[str, Path]:
        name = run or self.runs.usual()
        if name is None:
            raise NoRunError(f"{self.runs.root} has no run yet", "start one: paceline train --dashboard")
        if name == self.runs.named and not (self.runs.root / name / LOG).exists():
            raise NoRunError(f"the run {name} has not begun yet", "look again in a moment")
        return name, self.runs.folder(name)

    async def watched(self, run: str | None) -> LiveRun:
        name, folder = self.folder(run)
        found = self._watched.pop(name, None) or LiveRun(folder, self._rules, self.counted)
        self._watched[name] = found  # the last one is the one that was asked for last
        found.start()
        await self._forget()
        return found

    async def _forget(self) -> None:
        """Who is not watched was only looked at once: each costs memory, and a look now and then."""
        idle = [name for name, watched in self._watched.items() if watched.viewers == 0]
        for name in idle[: max(0, len(self._watched) - MAX_WATCHED)]:
            if self._watched[name] is not next(reversed(self._watched.values())):
                await self._watched.pop(name).close()

    def recorded(self, run: str | None) -> RecordedRun:
        name, folder = self.folder(run)
        size = (folder / LOG).stat().st_size  # one that has grown is another recording
        if name not in self._recorded or self._recorded[name][0] != size:
            self._recorded.pop(name, None)
            self._recorded[name] = (size, RecordedRun(folder, self._rules))
            while len(self._recorded) > MAX_RECORDED:
                del self._recorded[next(iter(self._recorded))]
        return self._recorded[name][1]

    def about(self, run: str | None) -> dict[str, Json]:
        """What the page must know besides the run itself."""
        name, _ = self.folder(run)
        settings = self.settings
        return {
            "run": name,
            "is_replay": settings.is_replay,
            "is_readonly": settings.is_readonly,
            "allows_faults": self.allows_faults(run),
            "viewers": self.counted.viewers,
        }

    def allows_faults(self, run: str | None) -> bool:
        """Unless it was said: only where the workers are processes of this machine."""
        settings = self.settings
        if settings.is_readonly or settings.is_replay:
            return False
        if settings.allows_faults is not None:
            return settings.allows_faults
        return read(self.folder(run)[1] / "plan.json").launcher is Launcher.LOCAL

    def why_not(self, run: str | None, deed: ActionKind) -> str:
        if self.settings.is_replay:
            return "this is a recording"
        if deed in FAULTS and not self.allows_faults(run):
            return "faults are off here; start the dashboard with --allow-faults"
        return ""

    def end_streams(self) -> None:
        self.closing.set()
        for bell in self.bells:
            bell.set()

    async def close(self) -> None:
        self.end_streams()
        for watched in list(self._watched.values()):
            await watched.close()
        await asyncio.to_thread(self.lab.close)
        await asyncio.to_thread(self.desk.close)

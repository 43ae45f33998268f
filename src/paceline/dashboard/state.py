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

MAX_LINES = 200
MAX_KEPT = 40  # experiments
SHUTDOWN_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Experiment:
    id: str
    name: str
    run: str  # its folder, among the others
    times: int
    lines: list[str] = field(default_factory=list)  # messages of the scenario
    ticks: dict[str, Tick] = field(default_factory=dict)  # by expectation
    outcome: dict[str, Json] | None = None  # None: still running
    began_s: float = field(default_factory=monotonic_s)

    def json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "name": self.name,
            "run": self.run,
            "times": self.times,
            "lines": list(self.lines),
            "ticks": [
                tick.json() for tick in merge_ticks(_expectations(self.name), list(self.ticks.values()))
            ],
            "is_over": self.outcome is not None,
            "outcome": self.outcome,
        }


class ScenarioRunner:
    """Runs scenarios in subprocesses; their runs appear among the others.

    Expectations are updated while a scenario runs, and final at its end.
    """

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
        """The running scenario; two at once would disturb each other's measurements."""
        with self._lock:
            return next((e.name for e in self._experiments.values() if e.outcome is None), "")

    def knows(self, key: str) -> bool:
        """Whether this idempotency key was used before."""
        with self._lock:
            return key in self._experiments

    def start(self, key: str, name: str, times: int) -> Experiment:
        with self._lock:
            if (known := self._experiments.get(key)) is not None:
                return known
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
        """End running scenarios with their workers."""
        for process, thread in self._running:
            assert process.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError):
                process.stdin.close()
            thread.join(SHUTDOWN_TIMEOUT_S)
            if thread.is_alive():
                process.kill()  # its children end with it
                thread.join()


def _expectations(name: str) -> tuple[str, ...]:
    return (*PROMISES[name], *ALWAYS)


def _follow(process: subprocess.Popen[str], experiment: Experiment) -> None:
    assert process.stdout is not None, "it is a pipe"
    outcome: dict[str, Json] = {"holds": False, "expectations": [], "problem": "the scenario was terminated"}
    with process.stdout as lines:
        for line in lines:
            message = _message(line)
            if "said" in message:
                experiment.lines = [*experiment.lines, str(message["said"])][-MAX_LINES:]
            elif "tick" in message:
                tick = Tick(**{**message["tick"], "state": State(message["tick"]["state"])})
                experiment.ticks = {
                    **experiment.ticks,
                    tick.what: tick,
                }  # replaced, not mutated: read by other threads
            elif "problem" in message:
                outcome["problem"] = message["problem"]
            else:
                expectations = message["expectations"]
                outcome = {
                    "holds": all(e["ok"] for e in expectations),
                    "expectations": expectations,
                    "problem": None,
                }
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    experiment.outcome = outcome


def _message(line: str) -> dict[str, Any]:  # Any: as faults/scenarios/main.py writes it
    """A line that is not JSON, printed by a library for instance, is a message as well."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    return message if isinstance(message, dict) else {"said": line.rstrip()}


MAX_WATCHED = 12  # runs that are followed, unless more have viewers; a comparison takes six
MAX_RECORDED = 8


class AppState:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runs = RunIndex.at(settings.place, is_run=settings.stops_with_stdin)
        self.actions = ActionQueue()
        self.lab = ScenarioRunner(self.runs.root)
        self.stats = DashboardStats()
        self._rules: Rules | None = None if settings.rules is None else load_rules(settings.rules)
        self._live_runs: dict[str, LiveRun] = {}
        self._recorded_runs: dict[str, tuple[int, RecordedRun]] = {}
        self.closing = asyncio.Event()  # streams end with it
        self.wakeups: set[asyncio.Event] = set()  # of waiting streams

    def folder(self, run: str | None) -> tuple[str, Path]:
        name = run or self.runs.default()
        if name is None:
            raise NoRunError(f"{self.runs.root} has no run yet", "start one: paceline train --dashboard")
        if name == self.runs.named and not (self.runs.root / name / LOG).exists():
            raise NoRunError(f"the run {name} has not started yet", "retry in a moment")
        return name, self.runs.folder(name)

    async def live_run(self, run: str | None) -> LiveRun:
        name, folder = self.folder(run)
        live = self._live_runs.pop(name, None) or LiveRun(folder, self._rules, self.stats)
        self._live_runs[name] = live  # ordered by last use
        live.start()
        await self._drop_idle()
        return live

    async def _drop_idle(self) -> None:
        """Drop the least recently used runs without viewers: each costs memory and polling."""
        idle = [name for name, live in self._live_runs.items() if live.viewers == 0]
        for name in idle[: max(0, len(self._live_runs) - MAX_WATCHED)]:
            if self._live_runs[name] is not next(reversed(self._live_runs.values())):
                await self._live_runs.pop(name).close()

    def recorded_run(self, run: str | None) -> RecordedRun:
        name, folder = self.folder(run)
        size = (folder / LOG).stat().st_size  # a log that has grown is read again
        if name not in self._recorded_runs or self._recorded_runs[name][0] != size:
            self._recorded_runs.pop(name, None)
            self._recorded_runs[name] = (size, RecordedRun(folder, self._rules))
            while len(self._recorded_runs) > MAX_RECORDED:
                del self._recorded_runs[next(iter(self._recorded_runs))]
        return self._recorded_runs[name][1]

    def about(self, run: str | None) -> dict[str, Json]:
        """Data of the page in addition to the run itself."""
        name, _ = self.folder(run)
        settings = self.settings
        return {
            "run": name,
            "is_replay": settings.is_replay,
            "is_readonly": settings.is_readonly,
            "allows_faults": self.allows_faults(run),
            "viewers": self.stats.viewers,
        }

    def allows_faults(self, run: str | None) -> bool:
        """As configured; by default only for runs whose workers are processes of this machine."""
        settings = self.settings
        if settings.is_readonly or settings.is_replay:
            return False
        if settings.allows_faults is not None:
            return settings.allows_faults
        return read(self.folder(run)[1] / "plan.json").launcher is Launcher.LOCAL

    def why_not(self, run: str | None, kind: ActionKind) -> str:
        if self.settings.is_replay:
            return "this is a recording"
        if kind in FAULTS and not self.allows_faults(run):
            return "fault injection is disabled; start the dashboard with --allow-faults"
        return ""

    def end_streams(self) -> None:
        self.closing.set()
        for wakeup in self.wakeups:
            wakeup.set()

    async def close(self) -> None:
        self.end_streams()
        for live in list(self._live_runs.values()):
            await live.close()
        await asyncio.to_thread(self.lab.close)
        await asyncio.to_thread(self.actions.close)

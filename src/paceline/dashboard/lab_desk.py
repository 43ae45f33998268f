"""How does the page break a run that nobody needs? The body of `paceline lab run`, as a process.

The run appears among the others and is watched like any other; what the experiment
promised is ticked off as it says so: so far while it goes on, then for good.
"""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.app.lab.catalog import SCENARIOS
from paceline.app.lab.promises import ALWAYS, PROMISES
from paceline.app.lab.ticking import State, Tick, merged
from paceline.clock import monotonic_s, unix_now_s
from paceline.plan.codec import Json

MOST_LINES = 200
MOST_KEPT = 40  # experiments
ENDS_S = 30.0


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
            "ticks": [tick.json() for tick in merged(_promises(self.name), list(self.told.values()))],
            "is_over": self.outcome is not None,
            "outcome": self.outcome,
        }


class LabDesk:
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
                "expects": list(_promises(name)),
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
            while len(self._experiments) >= MOST_KEPT:
                del self._experiments[next(iter(self._experiments))]  # the oldest is over: one runs at a time
            experiment = self._experiments[key] = Experiment(key, name, run, times)
            self._running = [(process, thread) for process, thread in self._running if thread.is_alive()]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.app.lab.told", name, str(times), str(self._root / run)],
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
            thread.join(ENDS_S)
            if thread.is_alive():
                process.kill()  # what it has started ends with it
                thread.join()


def _promises(name: str) -> tuple[str, ...]:
    return (*PROMISES[name], *ALWAYS)


def _follow(process: subprocess.Popen[str], experiment: Experiment) -> None:
    assert process.stdout is not None, "it was asked for"
    outcome: dict[str, Json] = {"holds": False, "expectations": [], "problem": "it was ended"}
    with process.stdout as lines:
        for line in lines:
            said = _message(line)
            if "said" in said:
                experiment.lines = [*experiment.lines, str(said["said"])][-MOST_LINES:]
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

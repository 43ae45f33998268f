"""A run as its log shows it now: processes by name and the events that actions wait for.

Steps, which are most of a log, are read only of one worker, and only where an action asks for them.
"""

import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.clock import SystemClock
from paceline.core.processes import command_line
from paceline.events.follow import ColumnReader, NewLines
from paceline.events.read import UNREADABLE, PlainEvent, plain_event
from paceline.events.schema import PHASES

# Written first in each line, so that lines of steps, which are most of a log, need not be read.
_KINDS = (
    *("run_started", "run_finished", "worker_started", "worker_finished"),
    *("generation_entered", "checkpoint"),
)
CHUNK_BYTES = 4 << 20
STEPS_KEPT = 400
SLACK_S = 2.0  # tolerance for 100 Hz clocks and a busy machine
_HEADS = tuple(f'{{"kind":"{kind}"' for kind in _KINDS)


@dataclass(slots=True)
class RunState:
    run_dir: Path
    pids: dict[str, int] = field(default_factory=dict)  # of the newest process of each name
    started_ns: dict[str, int] = field(default_factory=dict)  # by name, from its event
    launcher: int | None = None  # its pid; None: not in the log
    launched_ns: int = 0
    events: list[PlainEvent] = field(default_factory=list)
    is_over: bool = False
    steps_of: str = ""  # the worker whose steps are read too
    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))  # start, end (ns)
    _lines: NewLines | None = None

    def read(self) -> None:
        """Read new lines of the log."""
        if self._lines is None:
            self._lines = NewLines(self.run_dir / "events.jsonl", CHUNK_BYTES)
        steps_head = f'{{"kind":"steps","who":"{self.steps_of}"'
        while lines := self._lines.read():  # a log may be longer than memory
            for line in lines:
                with suppress(*UNREADABLE):  # damaged lines are skipped
                    if self.steps_of and line.startswith(steps_head):
                        self._take_steps(json.loads(line))
                    if line.startswith(_HEADS):
                        self._take(plain_event(json.loads(line)))

    def is_still(self, pid: int, at_ns: int) -> bool:
        """Whether the pid still belongs to the process that wrote an event at `at_ns`: pids are reused."""
        return "paceline" in command_line(pid) and _age_s(pid) + SLACK_S >= (now_ns() - at_ns) / 1e9

    def generation(self) -> int:
        """The newest generation that a worker entered; 0: none."""
        return max((_number(e) for e in self.events if e.kind == "generation_entered"), default=0)

    def since(self, kind: str, at_ns: int) -> list[PlainEvent]:
        return [event for event in self.events if event.kind == kind and event.at_ns >= at_ns]

    def mean_step_s(
        self, *, before_ns: int | None = None, since_ns: int = 0, minimum: int = 1
    ) -> float | None:
        """Of steps that ended before `before_ns` or began since `since_ns`; None: fewer than `minimum`."""
        lasted = [
            end - start
            for start, end in self.steps
            if start >= since_ns and (before_ns is None or end <= before_ns)
        ]
        return sum(lasted) / len(lasted) / 1e9 if len(lasted) >= minimum else None

    def _take_steps(self, line: dict[str, object]) -> None:
        columns = ColumnReader(line)
        phases = zip(*(columns.ints(f"{phase}_ns") for phase in PHASES), strict=True)
        for start_ns, spent_ns in zip(columns.ints("start_ns"), phases, strict=True):
            self.steps.append((start_ns, start_ns + sum(spent_ns)))

    def _take(self, event: PlainEvent) -> None:
        self.events.append(event)
        match event.kind:
            case "run_started":
                pid = event.fields.get("pid")
                self.launcher = None if pid is None else int(str(pid))
                self.is_over = False
                self.launched_ns = event.at_ns
                self.pids.clear()
            case "run_finished":
                self.is_over = True
            case "worker_started":
                self.pids[event.who] = int(str(event.fields["pid"]))
                self.started_ns[event.who] = event.at_ns
            case "worker_finished":
                self.pids.pop(event.who, None)


def _number(event: PlainEvent) -> int:
    return int(str(event.fields["number"]))


def now_ns() -> int:
    return SystemClock().now_ns()


def _age_s(pid: int) -> float:
    """Age of the process; 0: there is none."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0.0
    return up_s - ticks / os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """R, S, T (stopped) …; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""

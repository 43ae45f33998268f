"""Who is at work in a run, and what has happened since? From its log, without reading steps."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from paceline.events.follow import NewLines
from paceline.events.read import PlainEvent

# Written first in each line, so that lines of steps, which are most of a log, need not be read.
_KINDS = (
    *("run_started", "run_finished", "worker_started", "worker_finished"),
    *("generation_entered", "checkpoint"),
)
_HEADS = tuple(f'{{"kind":"{kind}"' for kind in _KINDS)


@dataclass(slots=True)
class Look:
    run_dir: Path
    pids: dict[str, int] = field(default_factory=dict)  # of the newest process under each name
    launcher: int | None = None  # its process; None: its log does not say
    events: list[PlainEvent] = field(default_factory=list)
    is_over: bool = False
    _lines: NewLines | None = None

    def read(self) -> None:
        """What is new."""
        if self._lines is None:
            self._lines = NewLines(self.run_dir / "events.jsonl")
        for line in self._lines.read():
            if line.startswith(_HEADS):
                said = json.loads(line)
                event = PlainEvent(str(said.pop("kind")), str(said.pop("who")), int(said.pop("at_ns")), said)
                self._take(event)

    def generation(self) -> int:
        """The newest that somebody entered; 0: none."""
        return max((_number(e) for e in self.events if e.kind == "generation_entered"), default=0)

    def since(self, kind: str, at_ns: int) -> list[PlainEvent]:
        return [event for event in self.events if event.kind == kind and event.at_ns >= at_ns]

    def _take(self, event: PlainEvent) -> None:
        self.events.append(event)
        match event.kind:
            case "run_started":
                pid = event.fields.get("pid")
                self.launcher, self.is_over = None if pid is None else int(str(pid)), False
                self.pids.clear()
            case "run_finished":
                self.is_over = True
            case "worker_started":
                self.pids[event.who] = int(str(event.fields["pid"]))
            case "worker_finished":
                self.pids.pop(event.who, None)


def _number(event: PlainEvent) -> int:
    return int(str(event.fields["number"]))


def command_of(pid: int) -> str:
    """Empty when there is no such process, or it has ended and nobody has noticed yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """R, S, T (stopped) …; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""

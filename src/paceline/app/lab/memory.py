"""Does anything pile up while faults strike? Memory, files, threads, shared memory; from /proc."""

import re
import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly, told

MOST_GROWTH_MB = 24.0  # between the end of the warm-up and the end
MOST_WORLDS = 2  # generations that a worker may have mapped: the one it is in, and the one it leaves


@dataclass(slots=True)
class Piles:
    """Looked at after every fault."""

    command: list[float] = field(default_factory=list)  # MB
    helper: list[float] = field(default_factory=list)
    workers: dict[int, list[float]] = field(default_factory=dict)  # by process
    files: list[int] = field(default_factory=list)
    helper_files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    worlds: int = 0  # most generations that one worker had mapped at once
    _names_before: frozenset[str] = field(default_factory=lambda: _shared_names())

    def look(self, helper: int, workers: dict[str, int]) -> None:
        self.command.append(memory_mb("self"))
        self.helper.append(memory_mb(helper))
        self.files.append(_files("self"))
        self.helper_files.append(_files(helper))
        self.threads.append(threading.active_count())
        for pid in workers.values():
            if (used := memory_mb(pid)) > 0:
                self.workers.setdefault(pid, []).append(used)
                self.worlds = max(self.worlds, _worlds(pid))

    def expectations(self) -> list[Expectation]:
        left = sorted(_shared_names() - self._names_before)
        return [
            _flat("memory of the command", self.command),
            _flat("memory of the process that starts the workers", self.helper),
            self._workers_flat(),
            at_most(
                "generations that one worker has mapped at once", self.worlds, MOST_WORLDS, "generations"
            ),
            at_most("open files of the command that pile up", _growth(self.files), 2, "files"),
            at_most("open files of its helper that pile up", _growth(self.helper_files), 2, "files"),
            at_most("threads of the command that pile up", _growth(self.threads), 0, "threads"),
            exactly("shared memory with a name that was left behind", left, []),
        ]

    def _workers_flat(self) -> Expectation:
        """Of those who lived through several faults: from the first look at them to the last."""
        old = [seen for seen in self.workers.values() if len(seen) >= 4]
        if not old:
            return told("memory of the workers", "none lived through four faults")
        growth = max(seen[-1] - seen[1] for seen in old)
        longest = max(map(len, old))
        what = f"growth of a worker's memory (of {len(old)} that lived through 4 to {longest} faults)"
        return at_most(what, growth, MOST_GROWTH_MB, "MB")


def _flat(what: str, seen: list[float]) -> Expectation:
    """After a quarter to warm up, against the end: medians, so that one moment does not decide."""
    early, late = _early(seen), _late(seen)
    return Expectation(
        what,
        f"grows by at most {MOST_GROWTH_MB:g} MB",
        f"{early:.1f} MB after the first quarter, {late:.1f} MB at the end",
        late - early <= MOST_GROWTH_MB,
    )


def _growth(seen: list[int]) -> float:
    """What piles up never goes away: the least of the end counts, and not what is open for a moment.

    Whoever was frozen or cut off connects anew, so connections come and go by the dozen.
    """
    return max(0.0, min(seen[-max(8, len(seen) // 4) :]) - _early(seen))


def _early(seen: "list[int] | list[float]") -> float:
    quarter = len(seen) // 4
    return statistics.median(seen[quarter : quarter + max(1, len(seen) // 8)])


def _late(seen: "list[int] | list[float]") -> float:
    return statistics.median(seen[-max(1, len(seen) // 8) :])


def memory_mb(pid: int | str) -> float:
    """What it has made itself, or has from the process that it was forked from; no files. 0: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(kb) for kb in re.findall(r"^RssAnon:\s+(\d+)", status, re.M)) / 1024


def _files(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _worlds(pid: int) -> int:
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return len(set(re.findall(r"/memfd:paceline-(\d+)", mapped)))


def _shared_names() -> frozenset[str]:
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return frozenset(name for name in names if name.startswith(("paceline", "torch_")))

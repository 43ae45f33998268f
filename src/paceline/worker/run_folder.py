"""Where does a worker leave its record and its snapshots, and find its last one?

Usually in the run folder itself. Who cannot reach that folder has another way (far_folder.py).
"""

from pathlib import Path
from typing import Protocol

from paceline.checkpoints.store import Snapshot, read_snapshot
from paceline.checkpoints.writer import CheckpointWriter
from paceline.clock import Clock, SystemClock
from paceline.events.log import EventLog
from paceline.plan.plan import EventDetail, Plan
from paceline.worker.saving import writer_for


class RunFolder(Protocol):
    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog: ...

    def writer(self, plan: Plan, who: str) -> CheckpointWriter: ...

    def snapshot(self, who: str) -> Snapshot | None:
        """From which to go on; None: the run begins."""
        ...


class OwnFolder:
    def __init__(self, run_dir: Path, resume_from: Path | None) -> None:
        self._run_dir, self._resume_from = run_dir, resume_from

    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog:
        return open_log(plan, self._run_dir, who, clock)

    def writer(self, plan: Plan, who: str) -> CheckpointWriter:
        return writer_for(plan, self._run_dir / "checkpoints", who, participants=plan.num_workers)

    def snapshot(self, who: str) -> Snapshot | None:
        return None if self._resume_from is None else read_snapshot(self._resume_from, who)


def open_log(plan: Plan, run_dir: Path, who: str, clock: Clock) -> EventLog:
    path = run_dir / "events.jsonl" if plan.events is EventDetail.FULL else None
    return EventLog(path, who=who, clock=clock)


def append_lines(path: Path, lines: bytes) -> None:
    """Whole lines of another process's log, as that process would have appended them."""
    if lines:
        log = EventLog(path, who="launcher", clock=SystemClock())
        log.append_lines(lines)
        log.close()

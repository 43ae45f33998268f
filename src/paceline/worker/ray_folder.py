"""How does an actor of Ray keep a record and checkpoints, when only the launcher has the run folder?

It says them, and the launcher writes them as the worker would have (launchers/ray_folder.py): whatever
reads the folder needs to know nothing of this. A snapshot counts as written once the launcher says so.
"""

from pathlib import Path
from typing import Any

from paceline.checkpoints.store import Snapshot, Wrote
from paceline.checkpoints.writer import CheckpointWriter, Disk, Place
from paceline.clock import Clock
from paceline.events.log import EventLog
from paceline.plan.plan import EventDetail, Plan
from paceline.worker.far_folder import SentLog
from paceline.worker.ray_outbox import Message, Outbox
from paceline.worker.saving import writer_for


class SaidFolder:
    def __init__(self, outbox: Outbox, saved: Snapshot | None, *, timeout_s: float) -> None:
        self._outbox, self._saved, self._timeout_s = outbox, saved, timeout_s

    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog:
        if plan.events is EventDetail.OFF:
            return EventLog(None, who=who, clock=clock)
        return SentLog(who=who, clock=clock, outbox=self._outbox.lines)

    def writer(self, plan: Plan, who: str) -> CheckpointWriter:
        participants = plan.num_workers if who.startswith("worker-") else 1
        disk = _SaidDisk(self._outbox, self._timeout_s)
        return writer_for(plan, Path(), who, participants=participants, disk=disk)

    def snapshot(self, who: str) -> Snapshot | None:
        return self._saved


class _SaidDisk(Disk):
    def __init__(self, outbox: Outbox, timeout_s: float) -> None:
        self._outbox, self._timeout_s = outbox, timeout_s
        self._removed: tuple[int, ...] = ()

    def is_there(self, folder: Path, who: str, generation: int | None) -> bool:
        return False  # the launcher looks

    def put(
        self,
        folder: Path,
        who: str,
        tensors: memoryview,
        facts: dict[str, Any],  # Any: JSON
    ) -> Wrote:
        number = folder.name.removeprefix("at-")
        message: Message = {"ev": "image", "at": int(number), "who": who, "facts": facts}
        answer = self._outbox.ask(message, bytes(tensors), timeout_s=self._timeout_s)
        if answer["failure"]:
            raise OSError(str(answer["failure"]))
        removed = answer["removed"]
        self._removed = tuple(int(str(n)) for n in removed) if isinstance(removed, list) else ()
        return Wrote(int(str(answer["bytes"])), str(answer["sha256"]))

    def remove_old(self, folder: Path, place: Place) -> tuple[int, ...]:
        return self._removed  # by the launcher, when it wrote this one

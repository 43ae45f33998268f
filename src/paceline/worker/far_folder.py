"""How do workers keep a record and checkpoints when only rank 0 can reach the run folder?

What a worker would write it sends to rank 0, which writes it as the worker would have: the folder looks
as if all had been there, and whatever reads it needs to know nothing of this. With every snapshot goes
what was recorded up to then, so a checkpoint is never ahead of the log. A snapshot that equals rank 0's,
as in modes whose replicas never differ, is not sent: its hash says so.
"""

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.checkpoints.store import Snapshot, Wrote, from_bytes, to_bytes, write_image
from paceline.checkpoints.writer import CheckpointWriter, Disk, Place
from paceline.clock import Clock
from paceline.errors import PeerLostError
from paceline.events.log import EventLog
from paceline.plan.plan import EventDetail, Plan
from paceline.transport.meeting_place import MeetingPlace
from paceline.worker.run_folder import OwnFolder, append_lines
from paceline.worker.saving import writer_for

Facts = dict[str, Any]  # Any: JSON


class SentLog(EventLog):
    """A pen whose lines wait in `outbox` until somebody sends them."""

    def __init__(self, *, who: str, clock: Clock, outbox: deque[bytes]) -> None:
        super().__init__(None, who=who, clock=clock)
        self._outbox = outbox

    @property
    def is_on(self) -> bool:
        return True

    def _append(self, event: Mapping[str, object]) -> None:
        self._outbox.append((json.dumps(event, separators=(",", ":")) + "\n").encode())


class FarFolder:
    """The run folder for a rank that cannot reach it."""

    def __init__(self, place: MeetingPlace, saved: Snapshot | None) -> None:
        self._place, self._saved = place, saved
        self._outbox: deque[bytes] = deque()

    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog:
        if plan.events is EventDetail.OFF:
            return EventLog(None, who=who, clock=clock)
        return SentLog(who=who, clock=clock, outbox=self._outbox)

    def writer(self, plan: Plan, who: str) -> CheckpointWriter:
        disk = _SendingDisk(self._place, self)
        return writer_for(plan, Path(), who, participants=plan.num_workers, disk=disk)

    def snapshot(self, who: str) -> Snapshot | None:
        return self._saved

    def unsent(self) -> bytes:
        """What was recorded and nobody has sent yet; from now on it is the caller's."""
        lines = []
        while self._outbox:
            lines.append(self._outbox.popleft())
        return b"".join(lines)


class NearFolder(OwnFolder):
    """The run folder for rank 0, which also writes what the others send."""

    def __init__(self, place: MeetingPlace, run_dir: Path, resume_from: Path | None) -> None:
        super().__init__(run_dir, resume_from)
        self._place, self._events, self._root = place, run_dir / "events.jsonl", run_dir / "checkpoints"

    def writer(self, plan: Plan, who: str) -> CheckpointWriter:
        disk = _GatheringDisk(self._place, self._events)
        return writer_for(plan, self._root, who, participants=plan.num_workers, disk=disk)


class _SendingDisk(Disk):
    def __init__(self, place: MeetingPlace, folder: FarFolder) -> None:
        self._place, self._folder = place, folder
        self._own: MeetingPlace | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, who: str, generation: int | None) -> bool:
        return False

    def put(self, folder: Path, who: str, tensors: memoryview, facts: Facts) -> Wrote:
        self._own = self._own or self._place.another()
        save, sha256 = f"save/{self._saves}", hashlib.sha256(tensors).hexdigest()
        self._saves += 1
        try:
            is_same = self._own.see(save, whose="rank 0's checkpoint") == sha256
            name = f"{save}/{self._place.world.rank}"
            self._own.send(f"{name}/events", self._folder.unsent())
            self._own.send(f"{name}/tensors", b"" if is_same else tensors)
            self._own.show(name, {"facts": facts, "is_same": is_same})
        except PeerLostError as error:
            raise ConnectionError(error.what) from error
        return Wrote(len(tensors), sha256)

    def remove_old(self, folder: Path, place: Place) -> tuple[int, ...]:
        return ()  # rank 0's business


class _GatheringDisk(Disk):
    def __init__(self, place: MeetingPlace, events: Path) -> None:
        self._place, self._events = place, events
        self._own: MeetingPlace | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, who: str, generation: int | None) -> bool:
        return False  # the others send theirs, and wait for us to take it

    def put(self, folder: Path, who: str, tensors: memoryview, facts: Facts) -> Wrote:
        self._own = self._own or self._place.another()
        save = f"save/{self._saves}"
        self._saves += 1
        try:
            self._own.show(save, hashlib.sha256(tensors).hexdigest())
            wrote, failure = _written(folder, who, tensors, facts)
            # Also after a failure: what the others send must not stay in the store.
            for rank in range(1, self._place.world.size):
                theirs, sent = self._take(self._own, f"{save}/{rank}", rank)
                whole = tensors if sent is None else memoryview(sent)
                failure = _written(folder, f"worker-{rank}", whole, theirs)[1] or failure
            self._own.hide(save)
        except PeerLostError as error:
            raise ConnectionError(error.what) from error
        if failure is not None:
            raise failure
        return wrote

    def _take(self, place: MeetingPlace, name: str, rank: int) -> tuple[Facts, bytes | None]:
        whose = f"rank {rank}'s part of a checkpoint"
        said = place.see(name, whose=whose)
        append_lines(self._events, place.receive(f"{name}/events", whose=whose))
        sent = place.receive(f"{name}/tensors", whose=whose)
        place.hide(name)
        return said["facts"], None if said["is_same"] else sent


def _written(folder: Path, who: str, tensors: memoryview, facts: Facts) -> tuple[Wrote, OSError | None]:
    try:
        return write_image(folder, who, tensors, facts), None
    except OSError as error:
        return Wrote(0, ""), error


def send_snapshot(place: MeetingPlace, rank: int, saved: Snapshot) -> None:
    """From rank 0; returns when it was taken, so that the store never holds more than one."""
    place.send(f"resume/{rank}", to_bytes(saved))
    place.see(f"resume/{rank}/taken", whose=f"rank {rank} to take its checkpoint")


def receive_snapshot(place: MeetingPlace) -> Snapshot:
    rank = place.world.rank
    data = place.receive(f"resume/{rank}", whose="rank 0's checkpoint")
    place.show(f"resume/{rank}/taken", True)
    return from_bytes(data)

"""Background checkpoint writer: the step only copies, a thread writes.

There are two images. While one is written, the other can take the next
snapshot; with both in use the next one waits, where all participants must save
the same ones, or is left out, where one participant saves for all. So memory
and work never pile up. A failure is reported and does not end the training: the
checkpoint before stays as it was.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.catalog import (
    DAMAGED,
    KEEP_CHECKPOINTS,
    facts_of,
    folder_at,
    is_complete,
    remove_old,
    return_to_newest,
)
from paceline.checkpoints.snapshot import Snapshot, SnapshotImage, WriteResult, write_image
from paceline.core.clock import SystemClock

IMAGES = 2
TakeSnapshot = Callable[[], Snapshot]  # of live tensors: they are copied at once


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTarget:
    """Participant and folder of snapshots, and the number of checkpoints to keep."""

    root: Path
    who: str
    participants: int = 1  # number of snapshots that make a checkpoint
    keep: int = KEEP_CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """Result of writing one snapshot."""

    name: str  # of the folder
    step: int
    pause_ns: int  # that the step waited for its copy
    write_s: float = 0.0
    nbytes: int = 0
    removed: tuple[int, ...] = ()  # numbers of older checkpoints
    is_catalogued: bool | None = None  # None: there is no catalogue
    failure: str = ""  # why there is no such checkpoint; empty: there is
    trouble: str = ""  # other problem, although the snapshot is written
    is_skipped: bool = False


class Cataloguer:
    """Catalogue of checkpoints that are announced and durable. This one keeps none."""

    def begin(self, generation: int, at: int) -> None:
        """A snapshot was taken after `at` steps; called from the writing thread, before it is written."""

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool | None:
        """It is on the disk. Whether that was recorded; None: there is no catalogue."""
        return None

    @property
    def trouble(self) -> str:
        """Why the last one was not noted."""
        return ""


class Disk:
    """Destination of snapshots: a disk that this process can reach."""

    def is_there(self, folder: Path, participant: str, generation: int | None) -> bool:
        return _is_there(folder, participant, generation)

    def put(
        self,
        folder: Path,
        participant: str,
        tensors: memoryview,
        facts: dict[str, Any],  # Any: JSON
    ) -> WriteResult:
        """OSError when it is not there afterwards."""
        return write_image(folder, participant, tensors, facts)

    def return_to_newest(self, root: Path, num_workers: int) -> int:
        """The number of the newest checkpoint with the parts of all workers; newer ones are set aside."""
        return return_to_newest(root, num_workers)

    def fetch(self, folder: Path) -> None:
        """Make all files of a checkpoint readable in this folder. OSError if they are not."""

    def remove_old(self, folder: Path, target: SnapshotTarget) -> tuple[int, ...]:
        """Remove checkpoints that a new one supersedes; returns their numbers."""
        if not is_complete(folder, target.participants):
            return ()  # the participant that completes it does
        return tuple(remove_old(target.root, participants=target.participants, keep=target.keep))


@dataclass(slots=True)
class _Job:
    folder: Path
    step: int
    image: SnapshotImage
    facts: dict[str, Any]  # Any: JSON
    generation: int
    pause_ns: int


@dataclass(slots=True)
class CheckpointWriter:
    place: SnapshotTarget
    cataloguer: Cataloguer = field(default_factory=Cataloguer)
    is_in_background: bool = True
    disk: Disk = field(default_factory=Disk)
    _free: list[SnapshotImage] = field(default_factory=lambda: [SnapshotImage() for _ in range(IMAGES)])
    _jobs: deque[_Job | None] = field(default_factory=deque)  # None: the thread is to end
    _news: deque[WriteReport] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _bug: BaseException | None = None  # internal error of the thread; raised in the training thread

    def save(self, number: int, step: int, take: TakeSnapshot, *, must: bool, generation: int = 0) -> None:
        """Copy what `take` gives, now; it is written later. With `must` it waits rather than be left out."""
        began_ns = SystemClock().now_ns()
        image = self._image(wait=must or self.place.participants > 1 or not self.is_in_background)
        folder = folder_at(self.place.root, number)
        if image is None:
            paused_ns = SystemClock().now_ns() - began_ns
            self._news.append(WriteReport(name=folder.name, step=step, pause_ns=paused_ns, is_skipped=True))
            return
        snapshot = take()
        image.fill(snapshot.tensors)
        paused_ns = SystemClock().now_ns() - began_ns
        job = _Job(folder, step, image, snapshot.facts, generation, paused_ns)
        if not self.is_in_background:
            self._carry_out(job)
            self._free.append(image)
            return
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="checkpoints", daemon=True)
            self._thread.start()

    def take_reports(self) -> list[WriteReport]:
        """Results of earlier snapshots; called at every step, so it must cost nothing."""
        if self._bug is not None:
            raise self._bug
        reports = []
        while self._news:
            reports.append(self._news.popleft())
        return reports

    def drain(self) -> None:
        """Everything that was saved is written, and no thread is left, when this returns."""
        if self._thread is None:
            return
        with self._changed:
            self._jobs.append(None)
            self._changed.notify_all()
        self._thread.join()
        self._thread = None

    def _image(self, *, wait: bool) -> SnapshotImage | None:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: bool(self._free) or self._bug is not None)
            return self._free.pop() if self._free else None

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs))
                job = self._jobs.popleft()
            if job is None:
                return
            try:
                self._carry_out(job)
            except BaseException as error:
                traceback.print_exc()  # into the participant's log; the training thread raises it
                self._bug = error
            with self._changed:
                self._free.append(job.image)
                self._changed.notify_all()

    def _carry_out(self, job: _Job) -> None:
        clock = SystemClock()
        name = job.folder.name
        participant = self.place.who
        if self.disk.is_there(job.folder, participant, job.facts.get("generation")):
            return  # same step of the same history, so the same content
        at = int(job.facts.get("at", job.step))  # servers count versions
        self.cataloguer.begin(job.generation, at)
        began_ns = clock.now_ns()
        try:
            wrote = self.disk.put(job.folder, participant, job.image.data, job.facts)
            removed = self.disk.remove_old(job.folder, self.place)
        except OSError as error:
            why = f"{error.strerror or error} ({error.filename or job.folder})"
            self._news.append(WriteReport(name=name, step=job.step, pause_ns=job.pause_ns, failure=why))
            return
        write_s = (clock.now_ns() - began_ns) / 1e9
        file = job.folder / f"{participant}.safetensors"
        is_catalogued = self.cataloguer.durable(job.generation, at, file, wrote)
        self._news.append(
            WriteReport(
                name=name,
                step=job.step,
                pause_ns=job.pause_ns,
                write_s=write_s,
                nbytes=wrote.nbytes,
                removed=removed,
                is_catalogued=is_catalogued,
                trouble=self.cataloguer.trouble,
            )
        )


def _is_there(folder: Path, participant: str, generation: int | None) -> bool:
    if not (folder / f"{participant}.json").exists():
        return False
    try:
        # A part of a model that was split otherwise, by a worker that woke up late, is another one.
        return facts_of(folder, participant).get("generation") == generation
    except DAMAGED:
        return False

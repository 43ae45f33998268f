"""What does a participant get from whoever started it? The plan, and how to reach the others."""

import hashlib
import json
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch._C._distributed_c10d import Store

from paceline.checkpoints.snapshot import (
    Snapshot,
    WriteResult,
    from_bytes,
    read_snapshot,
    to_bytes,
    write_image,
)
from paceline.checkpoints.writer import CheckpointWriter, Disk, SnapshotTarget
from paceline.core.clock import Clock, SystemClock
from paceline.core.errors import PeerLostError
from paceline.events.log import EventLog
from paceline.plan.codec import Json
from paceline.plan.plan import EventDetail, Plan
from paceline.transport.rendezvous_store import RendezvousStore
from paceline.transport.shm import SharedWorld
from paceline.transport.tcp_store import Address
from paceline.worker.checkpointing import writer_for
from paceline.worker.control import ControlBlock

# Usually in the run folder itself. Who cannot reach that folder has another way (far_folder.py).


class RunDir(Protocol):
    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog: ...

    def writer(self, plan: Plan, who: str) -> CheckpointWriter: ...

    def snapshot(self, who: str) -> Snapshot | None:
        """From which to go on; None: the run begins."""
        ...


class LocalRunDir:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteContext:
    local_rank: int  # which GPU of its host is its own
    clock: Clock  # rank 0's, whatever this host's says
    folder: RunDir
    store: Store  # in which torch's process group meets
    # Says that we are ready to meet the others, with so many samples, and waits until they are.
    ready: Callable[[int], None]
    server: Address | None = None  # of parameters, where the mode has one
    tls: ssl.SSLContext | None = None  # between that server and workers on other hosts
    looks_at_host: bool = False  # the first on a machine that is not the launcher's: it tells how that one is
    # Where all parts of a checkpoint lie for a while, if the state is in parts and its folder out of reach.
    parts: Callable[[], AbstractContextManager[Path]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEndpoint:
    """Where an elastic run's workers find the coordinator; the token itself is in a file of the owner's."""

    addresses: tuple[str, ...]
    token_file: Path
    run: str

    @classmethod
    def read(cls, said: dict[str, Json]) -> "CoordinatorEndpoint":
        addresses = tuple(str(said["addresses"]).split(","))
        return cls(addresses=addresses, token_file=Path(str(said["token_file"])), run=str(said["run"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a launcher provides to every participant of a run on this host."""

    plan: Plan
    run_dir: Path
    control: ControlBlock
    rendezvous: Path
    world: SharedWorld | None = None
    listener: socket.socket | None = None
    token: bytes = b""
    resume_from: Path | None = None
    coordinator: CoordinatorEndpoint | None = None
    foreign: RemoteContext | None = None

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def clock(self) -> Clock:
        return SystemClock() if self.foreign is None else self.foreign.clock

    @property
    def folder(self) -> RunDir:
        return LocalRunDir(self.run_dir, self.resume_from) if self.foreign is None else self.foreign.folder

    @contextmanager
    def parts(self) -> Iterator[Path | None]:
        """The folder with all parts of the state to go on from; None: the run begins."""
        if self.foreign is None or self.foreign.parts is None:
            yield self.resume_from
            return
        with self.foreign.parts() as folder:
            yield folder

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.foreign is None else self.foreign.tls

    @property
    def server_address(self) -> Address:
        if self.foreign is not None and self.foreign.server is not None:
            return self.foreign.server
        assert self.listener is not None, "the launcher opens the store's port"
        return Address(*self.listener.getsockname()[:2])


# What a worker would write it sends to rank 0, which writes it as the worker would have: the folder looks
# as if all had been there, and whatever reads it needs to know nothing of this. With every snapshot goes
# what was recorded up to then, so a checkpoint is never ahead of the log. A snapshot that equals rank 0's,
# as in modes whose replicas never differ, is not sent: its hash says so.

Facts = dict[str, Any]  # Any: JSON


class ForwardedLog(EventLog):
    """A pen whose lines wait in `outbox` until somebody sends them."""

    def __init__(self, *, who: str, clock: Clock, outbox: deque[bytes]) -> None:
        super().__init__(None, who=who, clock=clock)
        self._outbox = outbox

    @property
    def is_on(self) -> bool:
        return True

    def _append(self, event: Mapping[str, object]) -> None:
        self._outbox.append((json.dumps(event, separators=(",", ":")) + "\n").encode())


class RemoteRunDir:
    """The run folder for a rank that cannot reach it."""

    def __init__(self, place: RendezvousStore, saved: Snapshot | None) -> None:
        self._place, self._saved = place, saved
        self._outbox: deque[bytes] = deque()

    def open_log(self, plan: Plan, who: str, clock: Clock) -> EventLog:
        if plan.events is EventDetail.OFF:
            return EventLog(None, who=who, clock=clock)
        return ForwardedLog(who=who, clock=clock, outbox=self._outbox)

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


class GatheringRunDir(LocalRunDir):
    """The run folder for rank 0, which also writes what the others send."""

    def __init__(self, place: RendezvousStore, run_dir: Path, resume_from: Path | None) -> None:
        super().__init__(run_dir, resume_from)
        self._place, self._events, self._root = place, run_dir / "events.jsonl", run_dir / "checkpoints"

    def writer(self, plan: Plan, who: str) -> CheckpointWriter:
        disk = _GatheringDisk(self._place, self._events)
        return writer_for(plan, self._root, who, participants=plan.num_workers, disk=disk)


class _SendingDisk(Disk):
    def __init__(self, place: RendezvousStore, folder: RemoteRunDir) -> None:
        self._place, self._folder = place, folder
        self._own: RendezvousStore | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, who: str, generation: int | None) -> bool:
        return False

    def put(self, folder: Path, who: str, tensors: memoryview, facts: Facts) -> WriteResult:
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
        return WriteResult(len(tensors), sha256)

    def remove_old(self, folder: Path, place: SnapshotTarget) -> tuple[int, ...]:
        return ()  # rank 0's business


class _GatheringDisk(Disk):
    def __init__(self, place: RendezvousStore, events: Path) -> None:
        self._place, self._events = place, events
        self._own: RendezvousStore | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, who: str, generation: int | None) -> bool:
        return False  # the others send theirs, and wait for us to take it

    def put(self, folder: Path, who: str, tensors: memoryview, facts: Facts) -> WriteResult:
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

    def _take(self, place: RendezvousStore, name: str, rank: int) -> tuple[Facts, bytes | None]:
        whose = f"rank {rank}'s part of a checkpoint"
        said = place.see(name, whose=whose)
        append_lines(self._events, place.receive(f"{name}/events", whose=whose))
        sent = place.receive(f"{name}/tensors", whose=whose)
        place.hide(name)
        return said["facts"], None if said["is_same"] else sent


def _written(folder: Path, who: str, tensors: memoryview, facts: Facts) -> tuple[WriteResult, OSError | None]:
    try:
        return write_image(folder, who, tensors, facts), None
    except OSError as error:
        return WriteResult(0, ""), error


def send_snapshot(place: RendezvousStore, rank: int, saved: Snapshot) -> None:
    """From rank 0; returns when it was taken, so that the store never holds more than one."""
    place.send(f"resume/{rank}", to_bytes(saved))
    place.see(f"resume/{rank}/taken", whose=f"rank {rank} to take its checkpoint")


def receive_snapshot(place: RendezvousStore) -> Snapshot:
    rank = place.world.rank
    data = place.receive(f"resume/{rank}", whose="rank 0's checkpoint")
    place.show(f"resume/{rank}/taken", True)
    return from_bytes(data)


class RemoteClock:
    """Rank 0's clock, as seen from another host."""

    def __init__(self, ahead_ns: int) -> None:
        self._ahead_ns, self._own = ahead_ns, SystemClock()

    def now_ns(self) -> int:
        return self._own.now_ns() + self._ahead_ns

    def sleep(self, duration_s: float) -> None:
        self._own.sleep(duration_s)


def ahead_ns(*, asked_ns: int, theirs_ns: int, answered_ns: int) -> int:
    """How far the other clock is ahead of ours, if both ways took equally long."""
    return theirs_ns - (asked_ns + answered_ns) // 2

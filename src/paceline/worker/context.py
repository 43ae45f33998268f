"""Worker context: what a launcher gives to a participant, and access to the run folder from any host.

`WorkerContext` holds the plan and the endpoints of the other participants. `RunDir` is the run folder as a
participant uses it: `LocalRunDir` writes to the folder itself; `RemoteRunDir` sends the files of a rank that
cannot reach the folder to rank 0, whose `GatheringRunDir` writes them. `RemoteClock` gives all ranks the
time of rank 0.
"""

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
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.core.clock import Clock, SystemClock
from paceline.core.errors import PeerLostError
from paceline.events.log import EventLog
from paceline.plan.plan import EventDetail, Plan
from paceline.transport.rendezvous_store import RendezvousStore
from paceline.transport.shm import SharedWorld
from paceline.transport.tcp_store import Address
from paceline.worker.checkpointing import writer_for
from paceline.worker.control import ControlBlock

LOCAL_HOST = "127.0.0.1"


class RunDir(Protocol):
    def open_log(self, plan: Plan, participant: str, clock: Clock) -> EventLog: ...

    def writer(self, plan: Plan, participant: str) -> CheckpointWriter: ...

    def snapshot(self, participant: str) -> Snapshot | None:
        """The snapshot to resume from; None: the run begins."""
        ...


class LocalRunDir:
    def __init__(self, run_dir: Path, resume_from: Path | None) -> None:
        self._run_dir = run_dir
        self._resume_from = resume_from

    def open_log(self, plan: Plan, participant: str, clock: Clock) -> EventLog:
        return open_log(plan, self._run_dir, participant, clock)

    def writer(self, plan: Plan, participant: str) -> CheckpointWriter:
        return writer_for(plan, self._run_dir / "checkpoints", participant, participants=plan.num_workers)

    def snapshot(self, participant: str) -> Snapshot | None:
        return None if self._resume_from is None else read_snapshot(self._resume_from, participant)


def open_log(plan: Plan, run_dir: Path, participant: str, clock: Clock) -> EventLog:
    path = run_dir / "events.jsonl" if plan.events is EventDetail.FULL else None
    return EventLog(path, who=participant, clock=clock)


def append_lines(path: Path, lines: bytes) -> None:
    """Whole lines of another process's log, as that process would have appended them."""
    if lines:
        log = EventLog(path, who="launcher", clock=SystemClock())
        log.append_lines(lines)
        log.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteContext:
    local_rank: int  # which GPU of its host is its own
    clock: Clock  # rank 0's, not this host's
    folder: RunDir
    store: Store  # rendezvous of torch's process group
    # Reports that this rank is ready, with this number of samples, and waits until all ranks are.
    ready: Callable[[int], None]
    server: Address | None = None  # the parameter server, in modes with one
    tls: ssl.SSLContext | None = None  # between that server and workers on other hosts
    looks_at_host: bool = False  # the first rank on a host other than the launcher's: it samples that host
    # A temporary folder with all parts of a checkpoint, if the state is in parts and its folder is remote.
    parts: Callable[[], AbstractContextManager[Path]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a launcher provides to every participant of a run on this host."""

    plan: Plan
    run_dir: Path
    control: ControlBlock
    rendezvous: Path
    world: SharedWorld | None = None
    listener: socket.socket | None = None
    token: bytes = b""  # the run's secret: it never appears in an argument, a log or the plan
    host: str = LOCAL_HOST  # the address at which this host's participants listen
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
        """The folder with all parts of the state to resume from; None: the run begins."""
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


# A rank that cannot reach the run folder sends its files to rank 0, which writes them as the rank would have,
# so readers of the folder see no difference. Each snapshot is sent together with the events up to then, so a
# checkpoint is never ahead of the log. A snapshot that equals rank 0's, as in modes whose replicas never
# differ, is not sent: its hash suffices.

Facts = dict[str, Any]  # Any: JSON


class ForwardedLog(EventLog):
    """An event log whose lines wait in `outbox` until they are sent."""

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

    def __init__(self, rendezvous: RendezvousStore, saved: Snapshot | None) -> None:
        self._rendezvous = rendezvous
        self._saved = saved
        self._outbox: deque[bytes] = deque()

    def open_log(self, plan: Plan, participant: str, clock: Clock) -> EventLog:
        if plan.events is EventDetail.OFF:
            return EventLog(None, who=participant, clock=clock)
        return ForwardedLog(who=participant, clock=clock, outbox=self._outbox)

    def writer(self, plan: Plan, participant: str) -> CheckpointWriter:
        disk = _SendingDisk(self._rendezvous, self)
        return writer_for(plan, Path(), participant, participants=plan.num_workers, disk=disk)

    def snapshot(self, participant: str) -> Snapshot | None:
        return self._saved

    def unsent(self) -> bytes:
        """The lines that were not sent yet; the caller must send them."""
        lines = []
        while self._outbox:
            lines.append(self._outbox.popleft())
        return b"".join(lines)


class GatheringRunDir(LocalRunDir):
    """The run folder for rank 0, which also writes what the others send."""

    def __init__(self, rendezvous: RendezvousStore, run_dir: Path, resume_from: Path | None) -> None:
        super().__init__(run_dir, resume_from)
        self._rendezvous = rendezvous
        self._events = run_dir / "events.jsonl"
        self._root = run_dir / "checkpoints"

    def writer(self, plan: Plan, participant: str) -> CheckpointWriter:
        disk = _GatheringDisk(self._rendezvous, self._events)
        return writer_for(plan, self._root, participant, participants=plan.num_workers, disk=disk)


class _SendingDisk(Disk):
    def __init__(self, rendezvous: RendezvousStore, folder: RemoteRunDir) -> None:
        self._rendezvous = rendezvous
        self._folder = folder
        self._own: RendezvousStore | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, participant: str, generation: int | None) -> bool:
        return False

    def put(self, folder: Path, participant: str, tensors: memoryview, facts: Facts) -> WriteResult:
        self._own = self._own or self._rendezvous.another()
        save = f"save/{self._saves}"
        sha256 = hashlib.sha256(tensors).hexdigest()
        self._saves += 1
        try:
            is_same = self._own.see(save, source="rank 0's checkpoint") == sha256
            name = f"{save}/{self._rendezvous.world.rank}"
            self._own.send(f"{name}/events", self._folder.unsent())
            self._own.send(f"{name}/tensors", b"" if is_same else tensors)
            self._own.show(name, {"facts": facts, "is_same": is_same})
        except PeerLostError as error:
            raise ConnectionError(error.what) from error
        return WriteResult(len(tensors), sha256)

    def remove_old(self, folder: Path, target: SnapshotTarget) -> tuple[int, ...]:
        return ()  # rank 0's business


class _GatheringDisk(Disk):
    def __init__(self, rendezvous: RendezvousStore, events: Path) -> None:
        self._rendezvous = rendezvous
        self._events = events
        self._own: RendezvousStore | None = None  # the writing thread's
        self._saves = 0

    def is_there(self, folder: Path, participant: str, generation: int | None) -> bool:
        return False  # the others send theirs, and wait for us to take it

    def put(self, folder: Path, participant: str, tensors: memoryview, facts: Facts) -> WriteResult:
        self._own = self._own or self._rendezvous.another()
        save = f"save/{self._saves}"
        self._saves += 1
        try:
            self._own.show(save, hashlib.sha256(tensors).hexdigest())
            wrote, failure = _written(folder, participant, tensors, facts)
            # Also after a failure: messages of the other ranks must not stay in the store.
            for rank in range(1, self._rendezvous.world.size):
                theirs, sent = self._take(self._own, f"{save}/{rank}", rank)
                whole = tensors if sent is None else memoryview(sent)
                failure = _written(folder, f"worker-{rank}", whole, theirs)[1] or failure
            self._own.hide(save)
        except PeerLostError as error:
            raise ConnectionError(error.what) from error
        if failure is not None:
            raise failure
        return wrote

    def _take(self, rendezvous: RendezvousStore, name: str, rank: int) -> tuple[Facts, bytes | None]:
        source = f"rank {rank}'s part of a checkpoint"
        reply = rendezvous.see(name, source=source)
        append_lines(self._events, rendezvous.receive(f"{name}/events", source=source))
        sent = rendezvous.receive(f"{name}/tensors", source=source)
        rendezvous.hide(name)
        return reply["facts"], None if reply["is_same"] else sent


def _written(
    folder: Path, participant: str, tensors: memoryview, facts: Facts
) -> tuple[WriteResult, OSError | None]:
    try:
        return write_image(folder, participant, tensors, facts), None
    except OSError as error:
        return WriteResult(0, ""), error


def send_snapshot(rendezvous: RendezvousStore, rank: int, saved: Snapshot) -> None:
    """Send a snapshot to rank 0; returns once it is received, so the store holds at most one."""
    rendezvous.send(f"resume/{rank}", to_bytes(saved))
    rendezvous.see(f"resume/{rank}/taken", source=f"rank {rank} to receive its checkpoint")


def receive_snapshot(rendezvous: RendezvousStore) -> Snapshot:
    rank = rendezvous.world.rank
    data = rendezvous.receive(f"resume/{rank}", source="rank 0's checkpoint")
    rendezvous.show(f"resume/{rank}/taken", True)
    return from_bytes(data)


class RemoteClock:
    """Rank 0's clock, as seen from another host."""

    def __init__(self, ahead_ns: int) -> None:
        self._ahead_ns = ahead_ns
        self._own = SystemClock()

    def now_ns(self) -> int:
        return self._own.now_ns() + self._ahead_ns

    def sleep(self, duration_s: float) -> None:
        self._own.sleep(duration_s)


def ahead_ns(*, asked_ns: int, theirs_ns: int, answered_ns: int) -> int:
    """How far the other clock is ahead of this one, assuming equal delay in both directions."""
    return theirs_ns - (asked_ns + answered_ns) // 2

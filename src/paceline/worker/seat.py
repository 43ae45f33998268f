"""What does a participant get from whoever started it? The plan, and how to reach the others."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.clock import Clock, SystemClock
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.transport.shm import SharedWorld
from paceline.transport.tcp_store import Address
from paceline.worker.control import ControlBlock
from paceline.worker.foreign_seat import ForeignSeat
from paceline.worker.run_folder import OwnFolder, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSeat:
    """Where an elastic run's workers find the coordinator; the token itself is in a file of the owner's."""

    addresses: tuple[str, ...]
    token_file: Path
    run: str

    @classmethod
    def read(cls, said: dict[str, Json]) -> "CoordinatorSeat":
        addresses = tuple(str(said["addresses"]).split(","))
        return cls(addresses=addresses, token_file=Path(str(said["token_file"])), run=str(said["run"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a launcher provides to every participant of a run on this host."""

    plan: Plan
    run_dir: Path
    control: ControlBlock
    rendezvous: Path
    world: SharedWorld | None = None
    listener: socket.socket | None = None
    token: bytes = b""
    resume_from: Path | None = None
    coordinator: CoordinatorSeat | None = None
    foreign: ForeignSeat | None = None

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def clock(self) -> Clock:
        return SystemClock() if self.foreign is None else self.foreign.clock

    @property
    def folder(self) -> RunFolder:
        return OwnFolder(self.run_dir, self.resume_from) if self.foreign is None else self.foreign.folder

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

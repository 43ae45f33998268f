"""What does a worker tell about where it runs? Its connections, and what its launcher cannot see.

A thread of the worker looks every two seconds, and writes several looks at once. A worker that the launcher
forked is seen by the launcher's own collector. One that somebody else started tells its process itself; the
first on each other machine also tells that machine and its GPUs. If a look fails, training does not.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.events.log import EventLog
from paceline.events.schema import Scalar
from paceline.plan.plan import EventDetail, Launcher, Transport
from paceline.watch.links_door import LinksDoor
from paceline.watch.process_door import ProcessDoor, has_proc
from paceline.worker.seat import Seat
from paceline.worker.telling import Report

if TYPE_CHECKING:
    from paceline.watch.gpu_door import GpuDoor
    from paceline.watch.host_door import HostDoor

EVERY_S = 2.0
BATCH = 3  # looks that are written together
BY_TCP = (Transport.GLOO, Transport.NCCL, Transport.TCP)
Row = tuple[Scalar, ...]
Body = Callable[[Seat, Callable[[Report], None]], None]


@contextmanager
def looking(seat: Seat, who: str) -> Iterator[None]:
    """While this worker trains."""
    plan, foreign = seat.plan, seat.foreign
    is_watched = plan.events is EventDetail.FULL and plan.launcher is not Launcher.VIRTUAL
    if not is_watched or (foreign is None and plan.elastic is None and plan.transport not in BY_TCP):
        yield
        return
    log = seat.folder.open_log(plan, who, seat.clock)
    machine = None
    if foreign is not None and foreign.looks_at_host:
        machine = seat.folder.open_log(plan, f"watch@{socket.gethostname()}", seat.clock)
    look = _Look(who, seat, log, machine, tells_process=foreign is not None)
    thread = threading.Thread(target=look.work, name="own look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        look.is_over.set()
        thread.join()
        log.close()
        if machine is not None:
            machine.close()


def while_looking(who: str, body: Body) -> Body:
    """The same body of a participant, which is looked at meanwhile."""

    def looked_at(seat: Seat, report: Callable[[Report], None]) -> None:
        with looking(seat, who):
            body(seat, report)

    return looked_at


class _Look:
    def __init__(
        self, who: str, seat: Seat, log: EventLog, machine: EventLog | None, *, tells_process: bool
    ) -> None:
        self._who, self._clock, self._log, self._machine = who, seat.clock, log, machine
        self._links = LinksDoor(socket.gethostname())
        self._process = ProcessDoor() if tells_process and has_proc() else None
        # The run's folder may be out of reach from here; then it is this machine's own disk that may fill.
        self._disk = seat.run_dir if seat.run_dir.is_dir() else Path("/")
        self._rows: dict[str, list[Row]] = {}
        self.is_over = threading.Event()

    def work(self) -> None:
        host, gpus = (None, None) if self._machine is None else _doors(self._disk)
        looks = 0
        try:
            while not self.is_over.wait(EVERY_S):
                self._once(host, gpus)
                looks += 1
                if looks % BATCH == 0:
                    self._write()
            self._write()
        except (OSError, AssertionError) as error:  # a full disk ends this record, not the run
            print(f"warning: {self._who} tells nothing more about where it runs: {error}", file=sys.stderr)
        finally:
            if gpus is not None:
                gpus.close()

    def _once(self, host: "HostDoor | None", gpus: "GpuDoor | None") -> None:
        now_ns = self._clock.now_ns()
        link = self._links.look(now_ns)
        self._keep("links", [] if link is None else [link])
        if self._process is not None:
            self._keep("processes", self._process.look(now_ns, {self._who: os.getpid()}))
        if host is not None:
            self._keep("hosts", [host.look(now_ns)])
        if gpus is not None:
            self._keep("gpus", gpus.look(now_ns))

    def _keep(self, kind: str, rows: Sequence[Row]) -> None:
        self._rows.setdefault(kind, []).extend(rows)

    def _write(self) -> None:
        for kind, rows in self._rows.items():
            pen = self._machine if kind in ("hosts", "gpus") else self._log
            assert pen is not None, "only who looks at the machine has rows of it"
            pen.write_rows(kind, rows)
        self._rows = {}


def _doors(disk: Path) -> "tuple[HostDoor, GpuDoor]":
    from paceline.watch.gpu_door import GpuDoor  # both bring libraries that most workers do not need
    from paceline.watch.host_door import HostDoor

    host = HostDoor(disk)
    return host, GpuDoor(host.node)

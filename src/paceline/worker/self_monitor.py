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

import torch

from paceline.events.log import EventLog
from paceline.events.schema import Scalar
from paceline.monitoring.probes.process import ProcessProbe, TcpProbe, has_proc
from paceline.plan.plan import EventDetail, Launcher, Transport
from paceline.tasks.port import CountsTokens, CountsWork, Task
from paceline.worker.context import WorkerContext
from paceline.worker.reporting import Report

if TYPE_CHECKING:
    from paceline.monitoring.probes.gpu import GpuProbe
    from paceline.monitoring.probes.host import HostProbe


EVERY_S = 2.0
BATCH = 3  # looks that are written together
BY_TCP = (Transport.GLOO, Transport.NCCL, Transport.TCP)
Row = tuple[Scalar, ...]
ParticipantBody = Callable[[WorkerContext, Callable[[Report], None]], None]


@contextmanager
def monitor_self(seat: WorkerContext, who: str) -> Iterator[None]:
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
    look = _SelfMonitor(who, seat, log, machine, tells_process=foreign is not None)
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


def with_self_monitor(who: str, body: ParticipantBody) -> ParticipantBody:
    """The same body of a participant, which is looked at meanwhile."""

    def looked_at(seat: WorkerContext, report: Callable[[Report], None]) -> None:
        with monitor_self(seat, who):
            body(seat, report)

    return looked_at


class _SelfMonitor:
    def __init__(
        self, who: str, seat: WorkerContext, log: EventLog, machine: EventLog | None, *, tells_process: bool
    ) -> None:
        self._who, self._clock, self._log, self._machine = who, seat.clock, log, machine
        self._links = TcpProbe(socket.gethostname())
        self._process = ProcessProbe() if tells_process and has_proc() else None
        # The run's folder may be out of reach from here; then it is this machine's own disk that may fill.
        self._disk = seat.run_dir if seat.run_dir.is_dir() else Path("/")
        self._rows: dict[str, list[Row]] = {}
        self.is_over = threading.Event()

    def work(self) -> None:
        host, gpus = (None, None) if self._machine is None else _machine_probes(self._disk)
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

    def _once(self, host: "HostProbe | None", gpus: "GpuProbe | None") -> None:
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


def _machine_probes(disk: Path) -> "tuple[HostProbe, GpuProbe]":
    from paceline.monitoring.probes.gpu import GpuProbe  # both bring libraries that most workers do not need
    from paceline.monitoring.probes.host import HostProbe

    host = HostProbe(disk)
    return host, GpuProbe(host.node)


# How much one sample is (tokens, floating-point operations), if the task says so; and,
# on a GPU, which one it is and how much of its memory was ever taken.


def sample_cost(task: Task) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    if isinstance(task, CountsTokens):
        found["tokens_per_sample"] = int(task.tokens_per_sample())
    if isinstance(task, CountsWork):
        found["flops_per_sample"] = float(task.flops_per_sample())
    return found


def device_usage(device: torch.device) -> dict[str, Scalar]:
    """Empty on a CPU: what a process takes of its memory is no matter of the training alone."""
    if device.type != "cuda":
        return {}
    return {
        "device": torch.cuda.get_device_name(device),
        "device_id": str(torch.cuda.get_device_properties(device).uuid),
        "peak_device_bytes": torch.cuda.max_memory_allocated(device),
    }

"""Self-monitor of a worker: samples of its connections, process, host and GPUs that its launcher cannot take.

A thread of the worker takes a sample every two seconds and writes several at once. The launcher's own
collector samples the workers that the launcher forked. A worker that another program started (torchrun, Ray)
samples its own process; the first one on each other host also samples that host and its GPUs. An error here
never fails the training.
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
BATCH = 3  # samples that are written together
BY_TCP = (Transport.GLOO, Transport.NCCL, Transport.TCP)
Row = tuple[Scalar, ...]
ParticipantBody = Callable[[WorkerContext, Callable[[Report], None]], None]


@contextmanager
def monitor_self(context: WorkerContext, participant: str) -> Iterator[None]:
    """While this worker trains."""
    plan = context.plan
    foreign = context.foreign
    is_watched = plan.events is EventDetail.FULL and plan.launcher is not Launcher.VIRTUAL
    if not is_watched or (foreign is None and plan.elastic is None and plan.transport not in BY_TCP):
        yield
        return
    log = context.folder.open_log(plan, participant, context.clock)
    machine = None
    if foreign is not None and foreign.looks_at_host:
        machine = context.folder.open_log(plan, f"watch@{socket.gethostname()}", context.clock)
    is_elsewhere = foreign is not None or context.agent is not None
    monitor = _SelfMonitor(participant, context, log, machine, tells_process=is_elsewhere)
    thread = threading.Thread(target=monitor.work, name="own look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        monitor.is_over.set()
        thread.join()
        log.close()
        if machine is not None:
            machine.close()


def with_self_monitor(participant: str, body: ParticipantBody) -> ParticipantBody:
    """The same body of a participant, which is monitored meanwhile."""

    def monitored(context: WorkerContext, report: Callable[[Report], None]) -> None:
        with monitor_self(context, participant):
            body(context, report)

    return monitored


class _SelfMonitor:
    def __init__(
        self,
        participant: str,
        context: WorkerContext,
        log: EventLog,
        machine: EventLog | None,
        *,
        tells_process: bool,
    ) -> None:
        self._participant = participant
        self._clock = context.clock
        self._log = log
        self._machine = machine
        self._links = TcpProbe(socket.gethostname())
        self._process = ProcessProbe() if tells_process and has_proc() else None
        # The run's folder may be out of reach from here; then it is this machine's own disk that may fill.
        self._disk = context.run_dir if context.run_dir.is_dir() else Path("/")
        self._rows: dict[str, list[Row]] = {}
        self.is_over = threading.Event()

    def work(self) -> None:
        host, gpus = (None, None) if self._machine is None else _machine_probes(self._disk)
        samples = 0
        try:
            while not self.is_over.wait(EVERY_S):
                self._once(host, gpus)
                samples += 1
                if samples % BATCH == 0:
                    self._write()
            self._write()
        except (OSError, AssertionError) as error:  # a full disk ends this record, not the run
            print(
                f"warning: {self._participant} is no longer monitored: {error}",
                file=sys.stderr,
            )
        finally:
            if gpus is not None:
                gpus.close()

    def _once(self, host: "HostProbe | None", gpus: "GpuProbe | None") -> None:
        now_ns = self._clock.now_ns()
        link = self._links.sample(now_ns)
        self._keep("links", [] if link is None else [link])
        if self._process is not None:
            self._keep("processes", self._process.sample(now_ns, {self._participant: os.getpid()}))
        if host is not None:
            self._keep("hosts", [host.sample(now_ns)])
        if gpus is not None:
            self._keep("gpus", gpus.sample(now_ns))

    def _keep(self, kind: str, rows: Sequence[Row]) -> None:
        self._rows.setdefault(kind, []).extend(rows)

    def _write(self) -> None:
        for kind, rows in self._rows.items():
            pen = self._machine if kind in ("hosts", "gpus") else self._log
            assert pen is not None, "only the monitor of a machine has its rows"
            pen.write_rows(kind, rows)
        self._rows = {}


def _machine_probes(disk: Path) -> "tuple[HostProbe, GpuProbe]":
    from paceline.monitoring.probes.gpu import GpuProbe  # both bring libraries that most workers do not need
    from paceline.monitoring.probes.host import HostProbe

    host = HostProbe(disk)
    return host, GpuProbe(host.node)


# The cost of one training sample (tokens, floating-point operations), if the task declares it; and,
# on a GPU, which one it is and its peak memory.


def sample_cost(task: Task) -> dict[str, Scalar]:
    costs: dict[str, Scalar] = {}
    if isinstance(task, CountsTokens):
        costs["tokens_per_sample"] = int(task.tokens_per_sample())
    if isinstance(task, CountsWork):
        costs["flops_per_sample"] = float(task.flops_per_sample())
    return costs


def device_usage(device: torch.device) -> dict[str, Scalar]:
    """Device memory usage; empty on a CPU, where process memory is not only that of training."""
    if device.type != "cuda":
        return {}
    return {
        "device": torch.cuda.get_device_name(device),
        "device_id": str(torch.cuda.get_device_properties(device).uuid),
        "peak_device_bytes": torch.cuda.max_memory_allocated(device),
    }

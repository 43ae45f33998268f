"""Host probe: CPU, memory, disk and network by way of psutil and the kernel.

A value that is not available is None; the probe never fails. The only module that imports psutil
(extra `watch`).
"""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from paceline.events.schema import HostRow, ProcessRow
from paceline.monitoring.probes.process import ProcessProbe, has_proc

try:
    import psutil
except ModuleNotFoundError:  # then rows hold only the time
    psutil = None  # type: ignore[assignment]  # absent

LOOPBACK = "lo"
SNMP = Path("/proc/net/snmp")
Value = TypeVar("Value")


class HostProbe:
    def __init__(self, folder: Path, node: str | None = None) -> None:
        self._folder = folder
        self.node = socket.gethostname() if node is None else node
        self._processes: dict[int, psutil.Process] = {}
        self._proc = ProcessProbe() if has_proc() else None
        if psutil is not None:
            psutil.cpu_percent()  # the next call returns the share since now

    def sample(self, at_ns: int) -> HostRow:
        if psutil is None:
            return HostRow(at_ns, self.node, *[None] * (len(HostRow._fields) - 2))
        memory = _or_none(psutil.virtual_memory)
        disk = _or_none(lambda: psutil.disk_usage(str(self._folder)))
        # Raw kernel counters: readers that compute rates handle resets.
        io = _or_none(lambda: psutil.disk_io_counters(nowrap=False))
        load = _or_none(psutil.getloadavg)
        nics = _or_none(lambda: psutil.net_io_counters(pernic=True, nowrap=False)) or {}
        cpu = _or_none(psutil.cpu_percent)
        tcp = _tcp(SNMP)
        outside = [counters for name, counters in nics.items() if name != LOOPBACK]
        return HostRow(
            at_ns,
            self.node,
            None if cpu is None else round(cpu / 100, 4),
            None if load is None else round(load[0], 2),
            None if memory is None else memory.total - memory.available,
            None if memory is None else memory.total,
            None if disk is None else disk.free,
            None if disk is None else disk.total,
            None if io is None else io.read_bytes,
            None if io is None else io.write_bytes,
            sum(c.bytes_recv for c in outside) if nics else None,
            sum(c.bytes_sent for c in outside) if nics else None,
            nics[LOOPBACK].bytes_sent if LOOPBACK in nics else None,
            tcp.get("OutSegs"),
            tcp.get("RetransSegs"),
        )

    def processes(self, at_ns: int, pids: Mapping[str, int]) -> list[ProcessRow]:
        """Rows of the participants that are alive."""
        if self._proc is not None:
            return self._proc.sample(at_ns, pids)
        if psutil is None:
            return []
        rows = []
        for worker, pid in pids.items():
            with suppress(psutil.Error):  # it has just ended
                process = self._processes.get(pid) or psutil.Process(pid)
                self._processes[pid] = process
                with process.oneshot():
                    is_stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
                    share = round(process.cpu_percent() / 100, 4)
                    rows.append(ProcessRow(at_ns, worker, pid, process.memory_info().rss, share, is_stopped))
        self._processes = {pid: p for pid, p in self._processes.items() if pid in pids.values()}
        return rows


def _or_none(query: Callable[[], Value]) -> Value | None:
    """A container may hide values of its host."""
    try:
        return query()
    except (OSError, RuntimeError, psutil.Error):
        return None


def _tcp(path: Path) -> dict[str, int]:
    """The kernel's counts of TCP segments, in this network namespace."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith("Tcp:")]
    except OSError:
        return {}
    if len(lines) != 2:
        return {}
    return {name: int(value) for name, value in zip(lines[0][1:], lines[1][1:], strict=True)}

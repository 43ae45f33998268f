"""Collector: a thread of the launcher that samples machine and processes once a second.

It is off the step path. The samples go into the run's own event log, so that live and replayed
views show the same. A failing probe never ends the run: the failure is noted once.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from paceline.core.clock import Clock, SystemClock
from paceline.events.follow import NewLines
from paceline.events.log import EventLog
from paceline.events.read import UNREADABLE
from paceline.events.schema import CoordinatorRow
from paceline.monitoring.log_maintenance import LogMaintenance
from paceline.monitoring.probes.gpu import GpuProbe
from paceline.monitoring.probes.host import HostProbe
from paceline.plan.catalog import spans_hosts
from paceline.plan.plan import EventDetail, Launcher, Plan

EVERY_S = 1.0
FIRST_SAMPLE_POLL_S = 0.1  # until the run has published the address of its coordinator
WHO = "watch"


class CoordinatorSampler(Protocol):
    def rows(self, at_ns: int) -> list[CoordinatorRow]:
        """One row per node; none as long as there is no coordinator."""
        ...

    def close(self) -> None: ...


class Collector:
    """Samples inside a `with` block."""

    def __init__(
        self,
        run_dir: Path,
        note: Callable[[str], None],
        *,
        has_local_workers: bool,
        coordinator: CoordinatorSampler | None = None,
        every_s: float | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._note = note
        self._every_s = EVERY_S if every_s is None else every_s
        self._has_local_workers = has_local_workers
        self._coordinator = coordinator
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run_machine, name="watch", daemon=True)]
        if coordinator is not None:
            # Its own thread: a node that does not answer must not delay the other samples.
            coordinator_thread = threading.Thread(
                target=self._sample_coordinator, name="watch coordinator", daemon=True
            )
            self._threads.append(coordinator_thread)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run_machine(self) -> None:
        try:
            self._sample_machine()
        except OSError as error:
            self._fail(f"the run continues, but this machine is not monitored: {error}")

    def _sample_machine(self) -> None:
        with _CollectorLog(self._run_dir, self._note) as log:
            clock = SystemClock()
            host = HostProbe(self._run_dir)
            gpus = GpuProbe(host.node)
            processes = WorkerProcesses(self._run_dir / "events.jsonl")
            maintenance = LogMaintenance(self._run_dir, self._note)
            try:
                while True:
                    self._sample_once(log, clock, host, gpus, processes)
                    maintenance.check()
                    if self._is_over.wait(self._every_s):
                        break
            finally:
                maintenance.close()
                gpus.close()

    def _sample_once(
        self, log: EventLog, clock: Clock, host: HostProbe, gpus: GpuProbe, processes: "WorkerProcesses"
    ) -> None:
        try:
            now_ns = clock.now_ns()
            if self._has_local_workers:
                log.write_rows("processes", host.processes(now_ns, processes.pids()))
            log.write_rows("gpus", gpus.sample(now_ns))
            log.write_rows("hosts", [host.sample(now_ns)])  # last: it marks the second as complete
        except (OSError, AssertionError) as error:  # a full disk ends this record, not the run
            self._fail(f"the run continues, but this machine is no longer monitored: {error}")

    def _sample_coordinator(self) -> None:
        assert self._coordinator is not None, "this thread is for it"
        clock = SystemClock()
        with _CollectorLog(self._run_dir, self._note) as log:
            is_sampled = False
            while not self._is_over.wait(self._every_s if is_sampled else FIRST_SAMPLE_POLL_S):
                try:
                    rows = self._coordinator.rows(clock.now_ns())
                    log.write_rows("coordinators", rows)
                    is_sampled = is_sampled or bool(rows)
                except (OSError, AssertionError) as error:
                    self._fail(f"the run continues, but its coordinator is no longer monitored: {error}")
        self._coordinator.close()

    def _fail(self, message: str) -> None:
        if not self._is_over.is_set():
            self._is_over.set()
            self._note(f"warning: {message}")


class _CollectorLog:
    """The collector's event log, closed at the end."""

    def __init__(self, run_dir: Path, note: Callable[[str], None]) -> None:
        self._path = run_dir / "events.jsonl"
        self._note = note

    def __enter__(self) -> EventLog:
        self._log = EventLog(
            self._path, who=WHO, clock=SystemClock(), notify=lambda text: self._note(f"warning: {text}")
        )
        return self._log

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()


class WorkerProcesses:
    """Process ids of the running workers, from the start and end events in the log."""

    def __init__(self, path: Path) -> None:
        self._lines = NewLines(path)
        self._pids: dict[str, int] = {}

    def pids(self) -> dict[str, int]:
        for line in (line for part in self._lines.parts() for line in part):
            with suppress(*UNREADABLE):  # skip damaged lines
                self._take(line)
        return dict(self._pids)

    def _take(self, line: str) -> None:
        # Checked before parsing: nearly all lines are steps.
        if '"kind":"worker_started"' in line:
            event = json.loads(line)
            self._pids[str(event["who"])] = int(event["pid"])
        elif '"kind":"worker_finished"' in line:
            self._pids.pop(str(json.loads(line)["who"]), None)
        elif '"kind":"run_started"' in line:
            self._pids.clear()  # of an earlier session


@contextmanager
def collecting(
    plan: Plan,
    run_dir: Path,
    note: Callable[[str], None],
    coordinator_probe: Callable[[Path], CoordinatorSampler],
) -> Iterator[None]:
    """Sample machines and processes while the block runs; not of a run without events, or in virtual time."""
    if plan.events is EventDetail.OFF or plan.launcher is Launcher.VIRTUAL:
        yield
        return
    coordinator = None if plan.elastic is None else coordinator_probe(run_dir)
    is_elastic_here = plan.elastic is not None and not spans_hosts(plan)
    is_local = plan.launcher is Launcher.LOCAL or is_elastic_here
    with Collector(run_dir, note, has_local_workers=is_local, coordinator=coordinator):
        yield

"""Load for the dashboard: a thread writes the log of hundreds of workers, and viewers never read."""

import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psutil

from paceline.core.clock import SystemClock, unix_now_s
from paceline.events.log import EventLog, write_header
from paceline.events.schema import StepRow
from paceline.plan.codec import dumps, plan_hash
from paceline.plan.plan import Plan

TURN_S = 0.01


class Writer:
    """A run of synthetic workers, each a step every 1/hz seconds, spread evenly over that time."""

    def __init__(self, folder: Path, workers: int, *, hz: float) -> None:
        folder.mkdir(parents=True)
        self.folder, self._workers, self._hz, self._clock = folder, workers, hz, SystemClock()
        batches = (8,) * workers
        plan = Plan(
            run="bench", task="digits", mode="ssgd", num_workers=workers, steps=10**6, batch_sizes=batches
        )
        (folder / "plan.json").write_text(dumps(plan))
        path, hash_ = folder / "events.jsonl", plan_hash(plan)
        write_header(path, run="bench", plan=hash_, t0_ns=self._clock.now_ns(), started_unix_s=unix_now_s())
        self._logs = [EventLog(path, who=f"worker-{rank}", clock=self._clock) for rank in range(workers)]
        for log in self._logs:
            log.write("worker_started", pid=0, clock=0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for log in self._logs:
            log.close()

    def _run(self) -> None:
        period_ns = round(1e9 / self._hz)
        begun_ns = self._clock.now_ns()
        due = [begun_ns + rank * period_ns // self._workers for rank in range(self._workers)]
        made = [0] * self._workers
        while not self._is_over.wait(TURN_S):
            now_ns = self._clock.now_ns()
            for rank, log in enumerate(self._logs):
                if due[rank] <= now_ns:
                    log.add_step(_row(made[rank], now_ns - period_ns, period_ns))
                    log.flush()  # like a worker at its first step after the flush interval
                    made[rank], due[rank] = made[rank] + 1, due[rank] + period_ns


def _row(step: int, start_ns: int, lasts_ns: int) -> StepRow:
    part = lasts_ns // 10
    return StepRow(
        step=step,
        position=step,
        start_ns=start_ns,
        data_ns=part // 2,
        forward_ns=2 * part,
        backward_ns=4 * part,
        delay_ns=0,
        wait_ns=part,
        codec_ns=0,
        comm_ns=2 * part,
        apply_ns=part // 2,
        loss=2.0 / (1 + step / 50),
        samples=8,
        bytes_out=1000,
        bytes_in=1000,
        version=step,
        synced=True,
    )


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 80)

    @property
    def head(self) -> str:
        host, port = self.address
        return f"Host: {host}:{port}\r\nAuthorization: Bearer {self.url.partition('token=')[2]}\r\n"


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "dashboard", str(folder), "--json", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None, "it was asked for"
    try:
        yield Server(str(json.loads(process.stdout.readline())["data"]["url"]), process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def viewers(server: Server, count: int, *, do_read: bool) -> Iterator[None]:
    """`count` browsers that follow the run; those that do not read have small receive buffers."""
    is_over = threading.Event()
    with ExitStack() as stack:
        streams = [stack.enter_context(socket.create_connection(server.address)) for _ in range(count)]
        for stream in streams:
            if not do_read:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.sendall(f"GET /api/v1/stream HTTP/1.1\r\n{server.head}\r\n".encode())
        reading = threading.Thread(target=_read_all, args=(streams, is_over), name="viewers")
        if do_read:
            reading.start()
        try:
            yield
        finally:
            is_over.set()
            if do_read:
                reading.join()


def _read_all(streams: list[socket.socket], is_over: threading.Event) -> None:
    while not is_over.is_set():
        readable, _, _ = select.select(streams, [], [], 0.2)
        for stream in readable:
            if not stream.recv(1 << 16):
                return


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory growth of two servers that follow the same log for the same time, in MB."""

    stalled: float  # the one whose viewers do not read
    reading: float  # the one with a single viewer, who reads: what the history itself takes
    began: float
    ended: float


def growth(folder: Path, count: int, seconds: float) -> Growth:
    """The history of a run grows in both alike until its rings are full; what is more is the viewers'."""
    with (
        served(folder) as stuck,
        served(folder) as other,
        viewers(stuck, count, do_read=False),
        viewers(other, 1, do_read=True),
    ):
        SystemClock().sleep(min(20.0, seconds / 3))  # mailboxes of 64 messages are full by then
        before = memory_mb(stuck), memory_mb(other)
        SystemClock().sleep(seconds)
        after = memory_mb(stuck), memory_mb(other)
    return Growth(after[0] - before[0], after[1] - before[1], before[0], after[0])


def memory_mb(server: Server) -> float:
    return float(psutil.Process(server.pid).memory_info().rss) / 1e6

"""A worker reports what its launcher cannot see, and nothing otherwise."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from torch._C._distributed_c10d import HashStore

from paceline.core.clock import SystemClock
from paceline.plan.plan import Plan, Transport
from paceline.worker import self_monitor
from paceline.worker.context import LocalRunDir, RemoteContext, WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.self_monitor import monitor_self, with_self_monitor


def a_context(run_dir: Path, transport: Transport, *, looks_at_host: bool | None) -> WorkerContext:
    """`looks_at_host=None`: the launcher forked this worker."""
    plan = Plan(
        run="r", task="xor", mode="ssgd", num_workers=2, steps=1, batch_sizes=(8, 8), transport=transport
    )
    foreign = None
    if looks_at_host is not None:
        foreign = RemoteContext(
            local_rank=0,
            clock=SystemClock(),
            folder=LocalRunDir(run_dir, None),
            store=HashStore(),
            ready=lambda _: None,
            looks_at_host=looks_at_host,
        )
    return WorkerContext(
        plan=plan, run_dir=run_dir, control=ControlBlock(2), rendezvous=run_dir, foreign=foreign
    )


def reported_samples(run_dir: Path) -> dict[tuple[str, str], list[dict[str, object]]]:
    path, result = run_dir / "events.jsonl", dict[tuple[str, str], list[dict[str, object]]]()
    for line in path.read_text().splitlines() if path.exists() else ():
        event = json.loads(line)
        result.setdefault((event["who"], event["kind"]), []).append(event)
    return result


def test_the_first_worker_on_another_machine_reports_its_host_and_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_monitor, "EVERY_S", 0.01)
    host = f"watch@{socket.gethostname()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far, monitor_self(a_context(tmp_path, Transport.GLOO, looks_at_host=True), "worker-3"):

            def is_told() -> bool:
                near.sendall(b"x")
                far.sendall(far.recv(1))
                near.recv(1)
                return {
                    ("worker-3", "links"),
                    ("worker-3", "processes"),
                    (host, "hosts"),
                } <= reported_samples(tmp_path).keys()

            until(is_told, "its host, its process and its connections are told")
    first = reported_samples(tmp_path)["worker-3", "processes"][0]
    assert first["columns"]["pid"] == os.getpid()  # type: ignore[index]  # as the log has it
    assert not [thread for thread in threading.enumerate() if thread.name == "own look"]


@pytest.mark.parametrize(("transport", "starts"), [(Transport.SHM, 0), (Transport.GLOO, 1)])
def test_a_forked_worker_starts_its_monitor_only_with_tcp(
    tmp_path: Path, transport: Transport, starts: int
) -> None:
    seen: list[int] = []

    def body(_context: WorkerContext, _report: object) -> None:
        seen.append(sum(thread.name == "own look" for thread in threading.enumerate()))

    with_self_monitor("worker-0", body)(a_context(tmp_path, transport, looks_at_host=None), lambda _: None)
    assert seen == [starts]
    assert not reported_samples(tmp_path).keys() & {("worker-0", "processes")}

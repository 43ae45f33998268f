"""Processes, connections and machines that the launcher does not see."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.fixtures.waiting import until
from tests.monitoring.scripted_log import T0_NS, ScriptedLog, a_plan

from paceline.events.schema import LinkRow
from paceline.launchers.ray.group import host_monitors
from paceline.monitoring.probes.host import HostProbe
from paceline.monitoring.probes.process import ProcessProbe, TcpProbe
from paceline.monitoring.view.run_view import RunView


def test_the_round_trip_of_a_connection_is_the_kernels_and_its_segments_are_counted() -> None:
    door = TcpProbe("here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:

            def talk() -> LinkRow | None:
                near.sendall(b"ping")
                far.sendall(far.recv(4))
                near.recv(4)
                return door.sample(1)

            until(lambda: talk() is not None, "the kernel has measured a round trip")
            first, second = talk(), talk()
            assert first is not None
            assert second is not None
            assert 0 < second.round_trip_s <= second.slowest_s < 60
            assert second.sent > first.sent
            assert second.connections >= 2
            assert near.fileno() >= 0, "whose sockets are looked at keeps them"
            near.sendall(b"still")
            assert far.recv(5) == b"still"


def test_a_process_is_known_by_its_beginning_and_gone_when_it_has_ended() -> None:
    door = ProcessProbe()
    (mine,) = door.sample(5, {"worker-0": os.getpid()})
    assert (mine.worker, mine.pid, mine.is_stopped, mine.cpu_share) == ("worker-0", os.getpid(), False, 0.0)
    assert mine.memory_bytes > 1_000_000

    def has_worked() -> bool:
        sum(range(100_000))
        return door.sample(6, {"worker-0": os.getpid()})[0].cpu_share > 0

    until(has_worked, "time that was spent is seen")
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(60)
        assert door.sample(7, {"worker-1": child.pid}) == []


def test_one_worker_on_each_other_machine_monitors_it() -> None:
    boots = {"server-0": "b", "worker-0": "a", "worker-1": "b", "worker-2": "b", "worker-3": "c"}
    assert host_monitors(boots, "a") == {"worker-1", "worker-3"}
    assert host_monitors(dict.fromkeys(boots, "a"), "a") == frozenset()


def test_a_machine_that_is_reported_late_has_its_label_and_does_not_pace_alerts() -> None:
    log = ScriptedLog()
    log.tell(0.1, "worker-1", "worker_started", pid=7, clock=0, node="there")
    log.second(1, memory_used_bytes=10, memory_size_bytes=100)
    view = RunView(a_plan())
    for line in log.lines:
        view.take(line)
    before = view.track.last_tick_s
    far = ScriptedLog()
    far.lines.clear()
    at_ns = [T0_NS + 500_000_000, T0_NS + 2_500_000_000]
    far.rows("watch@there", "hosts", 2, at_ns=at_ns, node="there", cpu_share=[0.1, 0.9])
    far.rows("worker-1", "links", at_ns=at_ns[1], node="there", connections=2, round_trip_s=0.001,
             slowest_s=0.002, sent=10, sent_again=1)  # fmt: skip
    for line in far.lines:
        view.take(line)
    assert view.track.last_tick_s == before
    now_ns = T0_NS + 3_000_000_000
    results = {(s.name, dict(s.labels).get("node") or dict(s.labels).get("worker")): s.value
             for s in view.samples(now_ns)}  # fmt: skip
    assert results["paceline_host_cpu_usage_ratio", "there"] == 0.9
    assert results["paceline_worker_round_trip_seconds", "worker-1"] == 0.001
    assert results["paceline_worker_tcp_retransmitted_total", "worker-1"] == 1
    assert ("paceline_worker_info", "there") in results
    (worker,) = json.loads(json.dumps(view.snapshot(now_ns)))["workers"]
    assert (worker["node"], worker["round_trip_s"]) == ("there", 0.001)
    much_later = {s.name for s in view.samples(T0_NS + 60_000_000_000)}
    assert "paceline_host_cpu_usage_ratio" not in much_later, "its current state is unknown"


def test_processes_are_seen_without_psutil(tmp_path: Path) -> None:
    assert HostProbe(tmp_path).processes(0, {"worker-0": os.getpid()})[0].pid == os.getpid()

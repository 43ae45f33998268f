"""torchft's own clients work with our lighthouse."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.coordinator.lighthouse_proxy import lighthouse_proxy
from tests.fixtures.coordinator.node_processes import NodeProcesses, three_nodes
from tests.fixtures.waiting import until

coordination = pytest.importorskip(
    "torchft.coordination",
    reason="torchft is NOT installed, so nothing here was proved with it: pip install 'paceline[peers]'",
    exc_type=ImportError,
)

REPLICAS = ("r0:x", "r1:y", "r2:z")
PATIENCE = timedelta(seconds=60)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with three_nodes(tmp_path) as node_processes:
        yield node_processes


def leader_of(nodes: NodeProcesses) -> int:
    """As its own output says, once one of them does."""
    results: list[int] = []

    def has_leader() -> bool:
        last = {
            node: [line for line in running.said.read_text().splitlines() if "event=state" in line][-1:]
            for node, running in nodes.running.items()
            if running.process.poll() is None
        }
        results[:] = [node for node, lines in last.items() if lines and "role=leader" in lines[0]]
        return len(results) == 1

    until(has_leader, "there is a leader")
    return results[0]


def steps(url: str, replica: str, count: int) -> list[Any]:
    """What one replica hears, step after step. Any: torchft's own type."""
    client = coordination.LighthouseClient(url, PATIENCE)
    results = []
    for number in range(count):
        client.heartbeat(replica)
        results.append(
            client.quorum(
                replica_id=replica,
                timeout=PATIENCE,
                address=f"http://{replica}",
                store_address="store:1",
                step=number,
                world_size=1,
                shrink_only=False,
                data={"name": replica},
            )
        )
    return results


def quorum_fields(quorum: Any) -> tuple[Any, ...]:  # Any: torchft's own type
    members = [(m.replica_id, m.address, m.store_address, m.step, m.data) for m in quorum.participants]
    return quorum.quorum_id, quorum.created.seconds, quorum.created.nanos, members


def test_its_clients_step_together_while_leaders_are_killed(nodes: NodeProcesses) -> None:
    count = 300
    with lighthouse_proxy(nodes, "--min-replicas", "3") as url, ThreadPoolExecutor(len(REPLICAS)) as pool:
        running = [pool.submit(steps, url, replica, count) for replica in REPLICAS]
        nodes.running[leader_of(nodes)].stop(signal.SIGKILL)
        received = [[quorum_fields(quorum) for quorum in result.result()] for result in running]
    assert received[0] == received[1] == received[2]
    assert len({number for number, *_ in received[0]}) == 1, "the members are the same, so the number stays"
    for number, (_, _, _, members) in enumerate(received[0]):
        expected = [(name, f"http://{name}", "store:1", number, {"name": name}) for name in REPLICAS]
        assert members == expected

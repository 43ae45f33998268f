"""Failover measurement: time without a leader after repeated `kill -9`, and lost writes.

Connected clients keep writing and reading all the time. A kill is over when its node is back and
has caught up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from tests.coordinator.real.cluster import PATIENCE_S, Cluster
from tests.coordinator.real.history import REGISTERS, History, create

from paceline.coordinator.client.aio import Client
from paceline.core.clock import monotonic_s

PAUSE_S = 0.01  # of a client between two requests: a cluster at work, not at its limit
ANSWERS_BETWEEN = 12  # that clients get before the next kill
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class Kill:
    node: int
    leader_s: float  # until another node said that it leads
    write_s: float  # until a write that was asked after the kill was acknowledged


@dataclass(slots=True)
class Failovers:
    kills: list[Kill] = field(default_factory=list)
    histories: list[History] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        return sum(history.answers for history in self.histories)

    @property
    def is_linearizable(self) -> bool:
        return all(history.is_linearizable() for history in self.histories)


Tell = Callable[[int, Kill], None]


async def failovers(cluster: Cluster, kills: int, tell: Tell | None = None) -> Failovers:
    result = Failovers()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client()) for _ in REGISTERS]
        probe = await stack.enter_async_context(cluster.client())
        for number in range(kills):
            history = History(f"kill-{number}")
            result.histories.append(history)
            result.kills.append(await _one(cluster, history, clients, probe))
            if tell is not None:
                tell(number + 1, result.kills[-1])
        for history in result.histories:
            result.lost += [f"{history.run}: {key}" for key in await history.lost(probe)]
    return result


async def _one(cluster: Cluster, history: History, clients: Sequence[Client], probe: Client) -> Kill:
    await create(probe, history.run)
    async with _asking(history, clients):
        await _answered(cluster, history)
        kill = await _kill(cluster, history, probe)
        await _answered(cluster, history)
    cluster.start(kill.node)
    await cluster.whole()
    await history.read(probe)
    return kill


async def _kill(cluster: Cluster, history: History, probe: Client) -> Kill:
    await _moment(lambda: bool(_leading(cluster)))
    leader = _leading(cluster)[-1]
    killed_s = monotonic_s()
    cluster.kill(leader)
    written = asyncio.create_task(history.mark(probe))
    led_s = await asyncio.wait_for(_moment(lambda: bool(_leading(cluster))), PATIENCE_S)
    await written
    written_s = monotonic_s()
    return Kill(leader, led_s - killed_s, written_s - killed_s)


def _leading(cluster: Cluster) -> list[int]:
    """Who says that it leads; of several the one of the newest term comes last."""
    messages = {node: cluster.standing(node) for node in cluster.living()}
    return sorted(
        (node for node in messages if messages[node][1] == "leader"), key=lambda node: messages[node]
    )


async def _moment(is_true: Callable[[], bool]) -> float:
    while not is_true():
        await asyncio.sleep(LOOK_S)
    return monotonic_s()


async def _answered(cluster: Cluster, history: History) -> None:
    enough = history.answers + ANSWERS_BETWEEN
    await cluster.until(lambda: history.answers >= enough, "clients got their answers")


@asynccontextmanager
async def _asking(history: History, clients: Sequence[Client]) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(history.keep_asking(client, register, PAUSE_S))
        for client, register in zip(clients, REGISTERS, strict=True)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    assert not failed, f"a client failed: {failed}"

"""Heartbeat cost on the leader: many joined workers that each send a heartbeat every second.

`python -m benchmarks.beats ADDRESSES WORKERS TOKEN_FILE` is all the workers, in one process, with a
connection each. It prints the number of live workers once all are connected, or one has lost its connection;
and again when its stdin ends.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load import RUN, make_run, new_client
from benchmarks.replicas import Called, DisturbedError, leader_of
from paceline.coordinator.client.aio import Client
from paceline.coordinator.proto import cluster_pb2 as pb

JOIN_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time, as a share of one core."""

    leader: float
    followers: tuple[float, ...]
    idle_leader: float


def measure(cluster: Called, token_file: Path, workers: int, seconds: float) -> Cost:
    leader = leader_of(cluster, token_file)
    idle = _shares([leader], seconds / 4)
    order = [sys.executable, "-m", "benchmarks.beats", ",".join(cluster.addresses), str(workers)]
    order.append(str(token_file))
    with subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as beating:
        assert beating.stdin is not None, "it is a pipe"
        assert beating.stdout is not None, "it is a pipe"
        received = int(beating.stdout.readline())
        shares = _shares([leader, *(pid for pid in cluster.pids if pid != leader)], seconds)
        is_same = leader_of(cluster, token_file) == leader
        beating.stdin.close()
        still = int(beating.stdout.readline())
    if min(received, still) < workers or not is_same:
        raise DisturbedError(
            f"{min(received, still)} of {workers} workers were heard to the end by one leader"
        )
    return Cost(shares[0], tuple(shares[1:]), idle[0])


def _shares(pids: Sequence[int], seconds: float) -> list[float]:
    def spent_s() -> list[float]:
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return [each.user + each.system for each in times]

    before, started_s = spent_s(), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - started_s
    return [(now_s - then_s) / took_s for now_s, then_s in zip(spent_s(), before, strict=True)]


async def beat(addresses: Sequence[str], workers: int, token_file: Path) -> None:
    async with new_client(addresses, token_file) as client:
        await make_run(client)
    gate = asyncio.Semaphore(JOIN_AT_ONCE)
    events = [asyncio.Event() for _ in range(workers)]
    living = [
        asyncio.create_task(_live(new_client(addresses, token_file, own_connection=True), n, gate, events[n]))
        for n in range(workers)
    ]
    all_connected = asyncio.create_task(_all(events))
    await asyncio.wait({all_connected, *living}, return_when=asyncio.FIRST_COMPLETED)
    all_connected.cancel()
    print(sum(event.is_set() for event in events), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(sum(not task.done() for task in living), flush=True)
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)


async def _all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _live(client: Client, number: int, gate: asyncio.Semaphore, received: asyncio.Event) -> None:
    async with client:
        async with gate:
            joining = pb.JoinRun(run=RUN, worker=f"w{number}")
            worker = await client.write("Members.Join", joining, pb.Worker)
        async for _ in client.live(_beats(worker)):
            received.set()


async def _beats(worker: pb.Worker) -> AsyncIterator[pb.Beat]:
    step = 0
    while True:
        yield pb.Beat(
            run=worker.run, worker=worker.worker, incarnation=worker.incarnation, step=step, phase="compute"
        )
        step += 1
        await asyncio.sleep(1.0)


def main() -> None:
    addresses, workers, token_file = sys.argv[1:]
    asyncio.run(beat(addresses.split(","), int(workers), Path(token_file)))


if __name__ == "__main__":
    main()

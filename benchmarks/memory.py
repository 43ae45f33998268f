"""Memory of a node while it applies commands: it must stay flat, however many there are."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load import make_run, mark, new_client
from benchmarks.replicas import Called, DisturbedError, leader_of
from paceline.core.clock import monotonic_s

KEYS = 3_000  # three times what is kept of one run, so that old ones are forgotten
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Sample:
    commands: int
    leader_mb: float
    followers_mb: tuple[float, ...]
    log_mb: float  # of the leader, on disk


@dataclass(frozen=True, slots=True)
class Growth:
    samples: tuple[Sample, ...]
    snapshots: int  # that the leader took
    per_s: float

    def at(self, share: float) -> Sample:
        return self.samples[round(share * len(self.samples)) - 1]

    @property
    def factor(self) -> float:
        """The leader's memory at the end ÷ half-way, when every kind of record has been kept and dropped."""
        return self.at(1.0).leader_mb / self.at(0.5).leader_mb


def measure(cluster: Called, token_file: Path, folder: Path, commands: int, clients: int) -> Growth:
    leader = leader_of(cluster, token_file)
    pids = [leader, *(pid for pid in cluster.pids if pid != leader)]
    own_folder = folder / str(cluster.pids.index(leader) + 1)
    started_s = monotonic_s()
    samples = asyncio.run(_load(cluster.addresses, token_file, pids, own_folder, commands, clients))
    took_s = monotonic_s() - started_s
    if leader_of(cluster, token_file) != leader:
        raise DisturbedError("another node has come to lead")
    newest = max(int(path.stem.partition("-")[2]) for path in own_folder.glob("wal-*.log"))
    return Growth(tuple(samples), newest - 1, commands / took_s)


async def _load(
    addresses: Sequence[str], token_file: Path, pids: Sequence[int], folder: Path, commands: int, clients: int
) -> list[Sample]:
    numbers = itertools.count(1)
    samples: list[Sample] = []
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(new_client(addresses, token_file)) for _ in range(clients)]
        await make_run(opened[0])

        async def ask(client: int) -> None:
            while (number := next(numbers)) <= commands:
                await mark(opened[client], f"key-{number % KEYS}")()
                if number % (commands // SAMPLES) == 0:
                    samples.append(_sample(number, pids, folder))

        await asyncio.gather(*map(ask, range(clients)))
    return samples


def _sample(commands: int, pids: Sequence[int], folder: Path) -> Sample:
    leader_mb, *followers_mb = (psutil.Process(pid).memory_info().rss / 1e6 for pid in pids)
    log_mb = sum(path.stat().st_size for path in folder.glob("wal-*.log")) / 1e6
    return Sample(commands, leader_mb, tuple(followers_mb), log_mb)

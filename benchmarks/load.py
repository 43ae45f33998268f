"""How many commits a second, and how long does each take? A closed loop: each client asks again at once.

The same loop drives every system, so that what a client costs is alike:
`python -m benchmarks.load SYSTEM ADDRESSES CLIENTS SECONDS [TOKEN_FILE]` prints one line of JSON.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import grpc.aio

from benchmarks import etcd_wire
from paceline.clock import monotonic_s
from paceline.coordinator.client import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import security

VALUE_BYTES = 64
WARM_UP_S = 1.0
RUN = "bench"

Write = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figures:
    commits: int
    per_s: float
    p50_ms: float
    p99_ms: float


def figures(took_s: Sequence[float], seconds: float) -> Figures:
    ordered = sorted(took_s)
    assert ordered, "nothing was committed"
    p50_s, p99_s = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return Figures(len(ordered), len(ordered) / seconds, p50_s * 1e3, p99_s * 1e3)


async def closed_loop(writes: Sequence[Write], seconds: float) -> Figures:
    took_s: list[float] = []
    begin_s = monotonic_s() + WARM_UP_S
    end_s = begin_s + seconds

    async def ask(write: Write) -> None:
        while (asked_s := monotonic_s()) < end_s:
            await write()
            if begin_s <= asked_s and (done_s := monotonic_s()) <= end_s:
                took_s.append(done_s - asked_s)

    await asyncio.gather(*map(ask, writes))
    return figures(took_s, seconds)


async def of_ours(addresses: Sequence[str], clients: int, seconds: float, token_file: Path) -> Figures:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(new_client(addresses, token_file)) for _ in range(clients)]
        await make_run(opened[0])
        return await closed_loop([_mark(client, number) for number, client in enumerate(opened)], seconds)


def new_client(addresses: Sequence[str], token_file: Path) -> Client:
    access = security.client_access(token_file=token_file)
    metadata = security.call_metadata(access)
    return Client(addresses, lambda address: security.open_channel(address, access), metadata=metadata)


async def make_run(client: Client) -> None:
    known = await client.read("Runs.List", pb.ListRuns(), pb.RunList)
    if not known.runs:
        await client.write("Runs.Create", pb.CreateRun(run=RUN, min_workers=1), pb.Run)


def _mark(client: Client, number: int) -> Write:
    """A key and a value, like the others'; once each, under a session, which only we promise."""
    request = pb.AcknowledgeAlert(run=RUN, alert=f"key-{number}", note="v" * VALUE_BYTES)
    return lambda: client.write("Actions.Acknowledge", request, pb.AlertMark)


async def of_etcd(addresses: Sequence[str], clients: int, seconds: float) -> Figures:
    leader = await etcd_wire.find_leader(addresses)
    async with AsyncExitStack() as stack:
        writes = []
        for number in range(clients):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(leader))
            writes.append(etcd_wire.putter(channel, f"key-{number}".encode(), b"v" * VALUE_BYTES))
        return await closed_loop(writes, seconds)


def main() -> None:
    system, joined, clients, seconds, *rest = sys.argv[1:]
    addresses = joined.split(",")
    if system == "ours":
        found = asyncio.run(of_ours(addresses, int(clients), float(seconds), Path(rest[0])))
    else:
        found = asyncio.run(of_etcd(addresses, int(clients), float(seconds)))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

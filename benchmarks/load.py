"""Closed-loop load generator: commits per second and latency; each client sends its next request at once.

The same loop drives every system, so that what a client costs is alike:
`python -m benchmarks.load SYSTEM ADDRESSES CLIENTS SECONDS [TOKEN_FILE]` prints one line of JSON.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import grpc
import grpc.aio

from benchmarks import etcd_wire
from paceline.coordinator.client.aio import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.core.clock import monotonic_s

VALUE_BYTES = 64
WARM_UP_S = 1.0
START_S = 60.0  # timeout for the start of a cluster, on a machine that may be busy
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
        return await closed_loop([mark(client, f"key-{n}") for n, client in enumerate(opened)], seconds)


def new_client(addresses: Sequence[str], token_file: Path, *, own_connection: bool = False) -> Client:
    """Clients in one process share a connection to each node, unless they want their own."""
    access = security.client_access(token_file=token_file)
    options = [("grpc.use_local_subchannel_pool", int(own_connection))]
    dial = partial(security.open_channel, access=access, options=options)
    return Client(addresses, dial, metadata=security.call_metadata(access), patience_s=START_S)


async def make_run(client: Client) -> None:
    known = await client.read("Runs.List", pb.ListRuns(), pb.RunList)
    if not known.runs:
        await client.write("Runs.Create", pb.CreateRun(run=RUN, min_workers=1), pb.Run)


def mark(client: Client, key: str) -> Write:
    """A key and a value, like the others'; under a session, so that it is done once."""
    request = pb.AcknowledgeAlert(run=RUN, alert=key, note="v" * VALUE_BYTES)
    return lambda: client.write("Actions.Acknowledge", request, pb.AlertMark)


async def of_etcd(addresses: Sequence[str], clients: int, seconds: float) -> Figures:
    leader = await etcd_wire.find_leader(addresses, START_S)
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
        result = asyncio.run(of_ours(addresses, int(clients), float(seconds), Path(rest[0])))
    else:
        result = asyncio.run(of_etcd(addresses, int(clients), float(seconds)))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()

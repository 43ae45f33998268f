"""Whole coordinator nodes inside the test's own process, on real sockets and disks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.coordinator.real.cluster import PATIENCE_S, own_host

from paceline.coordinator.client.aio import Client
from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.server import security
from paceline.coordinator.server.node import Pace
from paceline.coordinator.server.server import Coordinator, Note, Settings
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Tokens, load_or_create_tokens
from paceline.core.clock import monotonic_s

# Slower than the default: all nodes and clients share one thread here.
CALM = Pace(tick_s=0.02, election_ticks=25, heartbeat_ticks=5)
LOOK_AGAIN_S = 0.02


@dataclass(slots=True)
class Nodes:
    folder: Path
    addresses: dict[int, str]
    pace: Pace
    lease_s: float
    grace_s: float
    proof: Tokens | Certificate | None = None  # None: tokens of their own
    running: dict[int, Coordinator] = field(default_factory=dict)

    @property
    def tokens(self) -> Tokens:
        return load_or_create_tokens(self.folder / "tokens.json")

    async def start(self, node: int) -> None:
        settings = Settings(
            node=NodeId(node),
            listen=self.addresses[node],
            peers={NodeId(n): address for n, address in self.addresses.items()},
            data_dir=self.folder / f"node-{node}",
            proof=self.proof or self.tokens,
            pace=self.pace,
            lease_s=self.lease_s,
            grace_s=self.grace_s,
        )
        coordinator = Coordinator(settings, _keep_quiet)
        await coordinator.start()
        self.running[node] = coordinator

    async def stop(self, node: int) -> None:
        await self.running.pop(node).stop()

    async def leader(self) -> int:
        """Until one of them leads."""
        deadline_s = monotonic_s() + PATIENCE_S
        while True:
            leading = [n for n, result in self.running.items() if result.node.raft.is_leader]
            if leading:
                return leading[0]
            assert monotonic_s() < deadline_s, "there is no leader"
            await asyncio.sleep(LOOK_AGAIN_S)

    def client(self, *, addresses: list[str] | None = None, patience_s: float = PATIENCE_S) -> Client:
        access = security.client_access(token_file=self.folder / "tokens.json")
        return Client(
            addresses or list(self.addresses.values()),
            lambda address: security.open_channel(address, access),
            metadata=security.call_metadata(access),
            patience_s=patience_s,
        )


@asynccontextmanager
async def nodes_in_process(
    folder: Path, count: int = 1, *, pace: Pace = CALM, lease_s: float = 3.0, grace_s: float = 0.5
) -> AsyncIterator[Nodes]:
    host = own_host()
    addresses = {node: f"{host}:{7400 + node}" for node in range(1, count + 1)}
    nodes = Nodes(folder, addresses, pace, lease_s, grace_s)
    try:
        for node in addresses:
            await nodes.start(node)
        await nodes.leader()
        yield nodes
    finally:
        for node in list(nodes.running):
            await nodes.stop(node)


def _keep_quiet(note: Note) -> None:
    """A test looks at the nodes themselves."""

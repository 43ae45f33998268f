"""A complete coordinator node: storage, Raft, state, leases and peers behind one guarded gRPC server."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from paceline.coordinator.raft.types import Membership, Message, NodeId
from paceline.coordinator.server import security
from paceline.coordinator.server.leader_tasks import GenerationManager, LeaseMonitor, Leases
from paceline.coordinator.server.node import Node, Pace
from paceline.coordinator.server.node_services import NodeServices
from paceline.coordinator.server.partitions import Partitions
from paceline.coordinator.server.raft_transport import CHANNEL_OPTIONS, AddressBook, Peers, RaftService
from paceline.coordinator.server.services import client_services
from paceline.coordinator.server.storage import Storage
from paceline.coordinator.server.streams import HEARTBEATS_PER_LEASE, Streams, WriteService
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Tokens
from paceline.coordinator.torchft.service import LighthouseService
from paceline.core.clock import StandstillDetector, monotonic_s

Fact = int | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Note:
    event: str  # listening, repaired, state, resumed (after a standstill), stopped
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(
            f"{key}={_format_fact(value)}" for key, value in {"event": self.event, **self.facts}.items()
        )


def _format_fact(value: Fact) -> str:
    match value:
        case tuple():
            return ",".join(map(str, value))
        case None:
            return "none"
        case int():
            return str(value)
        case _:
            return json.dumps(value) if any(c in value for c in ' "=') or not value else value


OnNote = Callable[[Note], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node: NodeId
    listen: str  # host:port; port 0 takes any
    peers: Mapping[NodeId, str]  # of the group, including this node unless it joins later
    data_dir: Path
    proof: Tokens | Certificate  # credentials required of callers
    cluster: str = "paceline"
    is_joining: bool = False  # a leader adds this node: until then it neither votes nor campaigns
    pace: Pace = field(default_factory=Pace)
    lease_s: float = 3.0  # silence until a worker is declared lost
    grace_s: float = 0.5  # grace period after its connection ended


class Coordinator:
    """One node: `start`, wait for `ended`, `stop`."""

    def __init__(self, settings: Settings, notify: OnNote) -> None:
        self._settings = settings
        self._notify = notify
        self.address = settings.listen
        self._access = security.peer_access(settings.proof)
        self._partitions = Partitions()
        self._tasks: list[asyncio.Task[None]] = []
        self._last_note: Note | None = None
        self._stack = AsyncExitStack()

    async def start(self, *, after_failure: bool = False) -> None:
        """The node listens when this returns; there may be no leader yet."""
        try:
            await self._start(after_failure)
        except BaseException:
            await self._stack.aclose()  # so that the folder can be opened again, also in this process
            raise

    async def _start(self, after_failure: bool) -> None:
        settings = self._settings
        for address in settings.peers.values():
            security.check_address(address, settings.proof)
        storage = Storage(settings.data_dir, settings.node)
        self._stack.callback(storage.close)
        members = frozenset(settings.peers) - ({settings.node} if settings.is_joining else frozenset())
        stored = storage.load(Membership(members), after_failure=after_failure)
        if stored.torn_bytes:
            # Half written when the process crashed.
            self._notify(Note("repaired", {"torn_bytes": stored.torn_bytes}))
        self._peers = Peers(settings.node, settings.cluster, self._dial, security.call_metadata(self._access))
        self._stack.push_async_callback(self._peers.close)
        rng = random.Random(f"{settings.node}:{monotonic_s()}")
        self.node = Node(
            settings.node, storage, stored, send=self._send, randrange=rng.randrange, pace=settings.pace
        )
        self._address_book = AddressBook(self.node, settings.peers)
        leases = Leases(settings.lease_s, settings.grace_s)
        self.services = NodeServices(
            self.node,
            self._peers,
            self._address_book,
            leases,
            settings.cluster,
            self._check_address,
            self._injectable_partitions(),
        )
        # A worker sends four heartbeats per lease: a poll that is one interval late means a standstill.
        attention = StandstillDetector(slack_s=settings.lease_s / HEARTBEATS_PER_LEASE)
        lighthouses = LighthouseService(self.node, self._address_book.leader_address, attention)
        await self._listen(leases, lighthouses)
        self.node.on_change = self._on_change
        self._on_change()
        lease_monitor = LeaseMonitor(self.node, leases, attention, self._on_standstill)
        tasks = (lease_monitor, GenerationManager(self.node), lighthouses)
        for coroutine in (self.node.run(), *(task.run() for task in tasks)):
            self._tasks.append(asyncio.create_task(coroutine))

    async def ended(self) -> None:
        """Wait until a task of the node fails, and raise its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop listening, finish pending writes, and release everything."""
        self._partitions.heal()  # so that held calls end
        await self._server.stop(grace=0.2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _listen(self, leases: Leases, lighthouses: LighthouseService) -> None:
        settings = self._settings
        node = self.node
        self._server = security.new_server(settings.proof, partitions=self._partitions)
        streams = Streams(node, self._address_book, leases)
        raft = RaftService(node, settings.cluster, self._partitions).handler()
        leader = self._address_book.leader_address
        handlers = [*client_services(node, leader), WriteService(node, leader).handler(), raft]
        handlers.append(self.services.handler())
        self._server.add_generic_rpc_handlers((*handlers, *streams.handlers(), lighthouses.handler()))
        port = security.listen(self._server, settings.listen, settings.proof)
        host, _, port_given = settings.listen.rpartition(":")
        self.address = f"{host}:{port}"
        if int(port_given) == 0:
            self._address_book.set_address(settings.node, self.address)
        await self._server.start()

    def _check_address(self, address: str) -> None:
        security.check_address(address, self._settings.proof)

    def _send(self, messages: Iterable[Message]) -> None:
        self._peers.send(message for message in messages if not self._partitions.drops(message.to))

    def _injectable_partitions(self) -> Partitions | None:
        """None beyond loopback: there faults cannot be injected by a call."""
        return self._partitions if security.is_loopback(security.host_of(self._settings.listen)) else None

    def _dial(self, address: str) -> grpc.aio.Channel:
        return security.open_channel(address, self._access, list(CHANNEL_OPTIONS))

    def _on_standstill(self, gap_s: float) -> None:
        self._notify(Note("resumed", {"gap_ms": int(gap_s * 1000)}))

    def _on_change(self) -> None:
        raft = self.node.raft
        self._peers.follow(self._address_book.others())
        facts: dict[str, Fact] = {"term": raft.term, "role": raft.role.value, "leader": raft.leader}
        facts["voters"] = tuple(sorted(raft.membership.voters))
        if raft.membership.learners:
            facts["learners"] = tuple(sorted(raft.membership.learners))
        note = Note("state", facts)
        if note != self._last_note:  # a changed address alone is not logged
            self._last_note = note
            self._notify(note)

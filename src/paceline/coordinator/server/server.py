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
        return " ".join(f"{key}={_text(value)}" for key, value in {"event": self.event, **self.facts}.items())


def _text(value: Fact) -> str:
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
    peers: Mapping[NodeId, str]  # of the cluster, ourselves among them unless we join it later
    data_dir: Path
    proof: Tokens | Certificate  # what callers must show
    cluster: str = "paceline"
    is_joining: bool = False  # the others take us in: until then we neither vote nor campaign
    pace: Pace = field(default_factory=Pace)
    lease_s: float = 3.0  # of silence until a worker is lost
    grace_s: float = 0.5  # after its connection ended


class Coordinator:
    """One node, from its first breath to its last."""

    def __init__(self, settings: Settings, say: OnNote) -> None:
        self._settings, self._say = settings, say
        self.address = settings.listen
        self._access = security.peer_access(settings.proof)
        self._cuts = Partitions()
        self._tasks: list[asyncio.Task[None]] = []
        self._said: Note | None = None
        self._stack = AsyncExitStack()

    async def start(self, *, after_failure: bool = False) -> None:
        """Listening when this returns; whether anybody leads is another question."""
        try:
            await self._start(after_failure)
        except BaseException:
            await self._stack.aclose()  # the folder may be tried again, also in this process
            raise

    async def _start(self, after_failure: bool) -> None:
        s = self._settings
        for address in s.peers.values():
            security.check_address(address, s.proof)
        storage = Storage(s.data_dir, s.node)
        self._stack.callback(storage.close)
        members = frozenset(s.peers) - ({s.node} if s.is_joining else frozenset())
        found = storage.load(Membership(members), after_failure=after_failure)
        if found.torn_bytes:
            self._say(
                Note("repaired", {"torn_bytes": found.torn_bytes})
            )  # a crash had left them half written
        self._peers = Peers(s.node, s.cluster, self._dial, security.call_metadata(self._access))
        self._stack.push_async_callback(self._peers.close)
        dice = random.Random(f"{s.node}:{monotonic_s()}")
        self.node = Node(s.node, storage, found, send=self._send, dice=dice.randrange, pace=s.pace)
        self._book = AddressBook(self.node, s.peers)
        leases = Leases(s.lease_s, s.grace_s)
        self.services = NodeServices(
            self.node, self._peers, self._book, leases, s.cluster, self._check_address, self._faults()
        )
        # A beat that is late by this much is no worker's fault: a worker beats four times in a lease.
        attention = StandstillDetector(slack_s=s.lease_s / HEARTBEATS_PER_LEASE)
        desk = LighthouseService(self.node, self._book.leader_address, attention)
        await self._listen(leases, desk)
        self.node.on_change = self._follow_change
        self._follow_change()
        keeper = LeaseMonitor(self.node, leases, attention, self._resumed)
        others = (keeper, GenerationManager(self.node), desk)
        for body in (self.node.run(), *(other.run() for other in others)):
            self._tasks.append(asyncio.create_task(body))

    async def ended(self) -> None:
        """Until something in here fails, with that error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop listening, finish what is being written, and be gone."""
        self._cuts.mend()  # else those who wait would be waited for
        await self._server.stop(grace=0.2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _listen(self, leases: Leases, desk: LighthouseService) -> None:
        s, node = self._settings, self.node
        self._server = security.new_server(s.proof, cuts=self._cuts)
        streams = Streams(node, self._book, leases)
        raft = RaftService(node, s.cluster, self._cuts).handler()
        leader = self._book.leader_address
        handlers = [*client_services(node, leader), WriteService(node, leader).handler(), raft]
        handlers.append(self.services.handler())
        self._server.add_generic_rpc_handlers((*handlers, *streams.handlers(), desk.handler()))
        port = security.listen(self._server, s.listen, s.proof)
        host, _, asked = s.listen.rpartition(":")
        self.address = f"{host}:{port}"
        if int(asked) == 0:
            self._book.is_at(s.node, self.address)
        await self._server.start()

    def _check_address(self, address: str) -> None:
        security.check_address(address, self._settings.proof)

    def _send(self, messages: Iterable[Message]) -> None:
        self._peers.send(message for message in messages if not self._cuts.drops(message.to))

    def _faults(self) -> Partitions | None:
        """Beyond one machine nobody breaks anything by a call."""
        return self._cuts if security.is_loopback(security.host_of(self._settings.listen)) else None

    def _dial(self, address: str) -> grpc.aio.Channel:
        return security.open_channel(address, self._access, list(CHANNEL_OPTIONS))

    def _resumed(self, gap_s: float) -> None:
        self._say(Note("resumed", {"gap_ms": int(gap_s * 1000)}))

    def _follow_change(self) -> None:
        raft = self.node.raft
        self._peers.follow(self._book.others())
        facts: dict[str, Fact] = {"term": raft.term, "role": raft.role.value, "leader": raft.leader}
        facts["voters"] = tuple(sorted(raft.membership.voters))
        if raft.membership.learners:
            facts["learners"] = tuple(sorted(raft.membership.learners))
        note = Note("state", facts)
        if note != self._said:  # an address may have changed, which is no news
            self._said = note
            self._say(note)

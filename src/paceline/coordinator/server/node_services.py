"""The service Nodes: status of a node, membership changes, step-down, snapshots, injected partitions."""

import asyncio
from collections.abc import Callable

import grpc

from paceline import __version__
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Membership, NodeId
from paceline.coordinator.raft.validate import LARGEST
from paceline.coordinator.server import services
from paceline.coordinator.server.guard import Context
from paceline.coordinator.server.leader_tasks import Leases
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.server.partitions import MAX_PARTITION_S, Partitions
from paceline.coordinator.server.raft_transport import AddressBook, Peers
from paceline.coordinator.server.services import service, unary
from paceline.core.clock import monotonic_s
from paceline.core.errors import PacelineError
from paceline.events.schema import Timings

CAUGHT_UP = 100  # a learner that lacks at most this many entries becomes a voter
POLL_S = 0.05


class NodeServices:
    def __init__(
        self,
        node: Node,
        peers: Peers,
        address_book: AddressBook,
        leases: Leases,
        cluster: str,
        check_address: Callable[[str], None],
        partitions: Partitions | None,
    ) -> None:
        self._node = node
        self._peers = peers
        self._address_book = address_book
        self._leases = leases
        self._cluster = cluster
        self._check_address = check_address  # raises if nodes cannot call each other there
        self._partitions = partitions  # None: fault injection is off
        self._since_s = monotonic_s()

    def handler(self) -> grpc.GenericRpcHandler:
        return service(
            "Nodes",
            {
                "Status": unary(self._status, pb.StatusRequest, pb.NodeStatus),
                "Add": unary(self._add, pb.AddNode, pb.NodeStatus),
                "Remove": unary(self._remove, pb.RemoveNode, pb.NodeStatus),
                "StepDown": unary(self._step_down, pb.StepDownRequest, pb.NodeStatus),
                "Snapshot": unary(self._snapshot, pb.SnapshotRequest, pb.NodeStatus),
                "Cut": unary(self._cut, pb.CutRequest, pb.NodeStatus),
            },
        )

    def status(self) -> pb.NodeStatus:
        node = self._node
        raft = self._node.raft
        return pb.NodeStatus(
            node=node.me,
            cluster=self._cluster,
            version=__version__,
            role=raft.role.value,
            leader=raft.leader or 0,
            leader_address=self._address_book.leader_address(),
            term=raft.term,
            commit=raft.log.commit,
            applied=node.applied,
            last_index=raft.log.last_index,
            snapshot_index=raft.log.snapshot.index,
            peers=[self._peer(other) for other in sorted(raft.membership.nodes)],
            sessions=len(node.state.sessions),
            leases=len(self._leases),
            up_ms=int((monotonic_s() - self._since_s) * 1000),
            cut_ms=0 if self._partitions is None else int(self._partitions.remaining_s() * 1000),
            commit_timings=_timings(node.latency.commit),
            fsync_timings=_timings(node.latency.fsync),
            elections=node.latency.elections,
            proposals_failed=node.latency.proposals_failed,
        )

    def _peer(self, other: NodeId) -> pb.PeerStatus:
        raft = self._node.raft
        peer = pb.PeerStatus(
            node=other, address=self._address_book.address(other), is_voter=other in raft.membership.voters
        )
        if other == self._node.me:
            peer.match = raft.log.stable
            peer.is_connected = True
            peer.sending = "self"
        else:
            peer.is_connected = self._peers.is_connected(other)
        progress = raft.progress().get(other)
        if progress is not None:
            peer.match = progress.match
            peer.sending = progress.sending.value
            peer.lag = raft.log.last_index - progress.match
        if (timings := self._node.latency.round_trip.get(other)) is not None:
            peer.round_trip_timings.CopyFrom(_timings(timings))
        return peer

    async def _status(self, request: pb.StatusRequest, context: Context) -> pb.NodeStatus:
        return self.status()

    async def _add(self, request: pb.AddNode, context: Context) -> pb.NodeStatus:
        """Add a node as a learner, then, once it has caught up, as a voter. Idempotent: a retry continues."""
        if not 1 <= request.node <= LARGEST:
            await services.abort_invalid(
                context, f"{request.node} is not a node number", "give a number from 1"
            )
        try:
            self._check_address(request.address)
        except PacelineError as error:
            await services.abort_invalid(
                context, f"node {request.node} cannot be added: {error.what}", error.hint
            )
        node = self._node
        other = NodeId(request.node)
        try:
            address = pb.NodeAddress(node=other, address=request.address)
            await node.propose(pb.Command(name_node=address))
            if other not in node.raft.membership.nodes:
                now = node.raft.membership
                await self._change(Membership(now.voters, now.learners | {other}))
            while other in node.raft.membership.learners:
                progress = node.raft.progress().get(other)
                if progress is not None and node.raft.log.last_index - progress.match <= CAUGHT_UP:
                    now = node.raft.membership
                    await self._change(Membership(now.voters | {other}, now.learners - {other}))
                else:
                    await asyncio.sleep(POLL_S)
                    await node.agree()  # NotLeaderError if leadership is lost
        except NotLeaderError:
            await services.abort_not_leader(context, self._address_book.leader_address())
        except TooBusyError:
            await services.abort_too_busy(context)
        return self.status()

    async def _remove(self, request: pb.RemoveNode, context: Context) -> pb.NodeStatus:
        node = self._node
        other = NodeId(request.node)
        now = node.raft.membership
        if other not in now.nodes:
            message = f"node {other} is not a member; members are {sorted(now.nodes)}"
            await services.abort_invalid(context, message, "check the nodes: `paceline coordinator status`")
        if now.voters == {other}:
            message = f"node {other} is the only voter and cannot be removed"
            await services.abort_invalid(context, message, "stop the node instead")
        if (refusal := self._why_not_remove(other)) is not None:
            await services.abort_refused(context, refusal)
        try:
            await self._change(Membership(now.voters - {other}, now.learners - {other}))
            if node.raft.is_leader:
                await node.propose(pb.Command(name_node=pb.NodeAddress(node=other)))
        except NotLeaderError:
            await services.abort_not_leader(context, self._address_book.leader_address())
        except TooBusyError:
            await services.abort_too_busy(context)
        return self.status()

    def _why_not_remove(self, other: NodeId) -> pb.Refusal | None:
        """The remaining voters must form a quorum: a change that they cannot commit would block the group."""
        rest = Membership(self._node.raft.membership.voters - {other})
        silent = [n for n in sorted(rest.voters) if n != self._node.me and not self._peers.is_connected(n)]
        if not self._node.raft.is_leader or len(rest.voters) - len(silent) >= rest.quorum:
            return None
        message = (
            f"without node {other} there would be no quorum: of voters {sorted(rest.voters)} {silent} "
            "are down"
        )
        return pb.Refusal(
            why=pb.NOT_NOW, what=message, hint=f"start node {silent[0]} again, or remove it first"
        )

    async def _change(self, membership: Membership) -> None:
        """Change the membership; a new leader must first commit an entry of its own term (4.1)."""
        await self._node.agree()
        await self._node.change(membership)

    async def _step_down(self, request: pb.StepDownRequest, context: Context) -> pb.NodeStatus:
        raft = self._node.raft
        matches = {n: p.match for n, p in raft.progress().items() if n in raft.membership.voters}
        if not raft.is_leader:
            await services.abort_not_leader(context, self._address_book.leader_address())
        if not matches:
            await services.abort_invalid(
                context, "there is no other voter to transfer leadership to", "add another voter first"
            )
        to = NodeId(request.to) if request.to else max(matches, key=lambda n: (matches[n], -n))
        if to not in matches:
            message = f"node {to} is not another voter; those are {sorted(matches)}"
            await services.abort_invalid(context, message, "name one of them, or none")
        try:
            await self._node.hand_over(to)
        except NotLeaderError:
            await services.abort_not_leader(context, self._address_book.leader_address())
        while raft.leader in (None, self._node.me):  # the caller's deadline ends this
            if raft.is_leader and not raft.is_handing_over:
                message = f"node {to} did not take over in time, and node {self._node.me} is still the leader"
                hint = (
                    "check that it is running (`paceline coordinator status`), or name another one with --to"
                )
                await services.abort_refused(context, pb.Refusal(why=pb.NOT_NOW, what=message, hint=hint))
            await asyncio.sleep(POLL_S)
        return self.status()

    async def _snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.NodeStatus:
        await self._node.snapshot()
        return self.status()

    async def _cut(self, request: pb.CutRequest, context: Context) -> pb.NodeStatus:
        if self._partitions is None:
            message = (
                f"node {self._node.me} listens on an address that is reachable from other machines, "
                "where faults are not injected"
            )
            await services.abort_invalid(
                context, message, "try it on a cluster on 127.0.0.1: paceline coordinator up"
            )
            return self.status()
        if request.cluster != self._cluster:
            message = f"this node belongs to the cluster {self._cluster!r}, not to {request.cluster!r}"
            await services.abort_invalid(context, message, "check the nodes: `paceline coordinator status`")
        if not 0 <= request.for_ms <= MAX_PARTITION_S * 1000:
            message = f"it cannot be partitioned for {request.for_ms} ms"
            await services.abort_invalid(
                context, message, f"use at most {MAX_PARTITION_S * 1000:g}, or 0 to heal the partition"
            )
        if request.for_ms == 0:
            self._partitions.heal()
        else:
            nodes = [NodeId(node) for node in request.nodes]
            self._partitions.partition(
                request.for_ms / 1000, nodes=nodes, pids=request.pids, others=request.others
            )
        return self.status()


def _timings(timings: Timings) -> pb.Timings:
    return pb.Timings(counts=timings.counts, total_s=timings.total_s)

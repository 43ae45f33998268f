"""How is a cluster of coordinators? Every node is asked for its own view; what they say is put together.

Nobody has to agree for this, so it also works when nobody can.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

import grpc
import grpc.aio

from paceline.app.cluster_access import Cluster
from paceline.coordinator.client import FAILED, Client, RefusedError, UnreachableError, refused
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import ClusterWishError, Problem

LEADER, LEARNER, OUTSIDE, SILENT = "leader", "learner", "outside", "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node, by its own words, and by the leader's where only the leader knows."""

    node: int | None  # None: nobody answers at this address, and nobody knows it
    address: str
    role: str
    is_voter: bool = False
    term: int | None = None  # from here on None: it is not known
    commit: int | None = None
    applied: int | None = None
    snapshot: int | None = None
    up_s: float | None = None
    lag: int | None = None  # entries that it lacks, says the leader
    is_connected: bool | None = None  # to the leader, says the leader
    problem: str = ""

    @property
    def answers(self) -> bool:
        return self.term is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    cluster: str
    version: str
    leader: int | None
    term: int
    nodes: tuple[NodeLine, ...]
    sessions: int
    leases: int  # of workers that live, says the leader

    @property
    def missing(self) -> list[int]:
        """Voters that do not answer, or that the leader does not reach."""
        return [
            line.node
            for line in self.nodes
            if line.node is not None
            and line.is_voter
            and not (line.answers and line.is_connected is not False)
        ]

    @property
    def is_healthy(self) -> bool:
        return self.leader is not None and not self.missing


@dataclass(frozen=True, slots=True)
class _Answers:
    by_node: dict[int, pb.NodeStatus]
    address: dict[int, str]  # where each of them was asked
    silent: dict[str, str]  # what is wrong, by address
    refusals: list[RefusedError]


async def look(cluster: Cluster, *, patience_s: float, only: bool = False) -> Report:
    """Ask these nodes, and (unless `only` these matter) those that they know. UnreachableError: nobody."""
    async with cluster.client(patience_s) as client:
        answers = _Answers({}, {}, {}, [])
        await _ask(client, cluster.addresses, answers)
        if not only:
            await _ask(client, _unasked(answers), answers)
    if not answers.by_node:
        if answers.refusals:
            raise answers.refusals[0]
        problems = "; ".join(f"{address}: {why}" for address, why in answers.silent.items())
        raise UnreachableError(
            f"no node of the coordinator answers ({problems})",
            "see that the nodes run, and that these are their addresses (--at HOST:PORT)",
        )
    return _report(answers, only=only)


async def _ask(client: Client, addresses: Iterable[str], answers: _Answers) -> None:
    asked = list(addresses)
    found = await asyncio.gather(*(_ask_one(client, address) for address in asked))
    for address, answer in zip(asked, found, strict=True):
        if isinstance(answer, pb.NodeStatus):
            answers.by_node[answer.node] = answer
            answers.address[answer.node] = address
        elif isinstance(answer, RefusedError):
            answers.refusals.append(answer)
            answers.silent[address] = answer.what
        else:
            answers.silent[address] = answer


async def _ask_one(client: Client, address: str) -> pb.NodeStatus | RefusedError | str:
    try:
        return await client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() not in FAILED:
            return refused(error)
        return why_silent(error)


def why_silent(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it does not answer in time"
    details = (error.details() or error.code().name).partition("\n")[0]
    # gRPC tells the whole way: failed to connect to all addresses; last error: UNKNOWN: ipv4:…: refused
    return details.rpartition(": ")[2] if "last error: " in details else details


def _unasked(answers: _Answers) -> list[str]:
    known = {
        peer.address
        for status in answers.by_node.values()
        for peer in status.peers
        if peer.node not in answers.by_node and peer.address
    }
    return sorted(known - answers.silent.keys())


def _report(answers: _Answers, *, only: bool) -> Report:
    newest = _newest(answers.by_node.values())
    names = sorted({status.cluster for status in answers.by_node.values()})
    if len(names) > 1:
        what = f"these addresses belong to different clusters: {', '.join(names)}"
        raise ClusterWishError([Problem(what, "name the nodes of one cluster", "--at")])
    peers = {peer.node: peer for peer in newest.peers}
    shown = set(answers.by_node) if only else {*peers, *answers.by_node}
    lines = [_line(node, answers, newest, peers.get(node)) for node in sorted(shown)]
    known = {line.address for line in lines}
    strangers = [
        NodeLine(node=None, address=address, role=SILENT, problem=why)
        for address, why in answers.silent.items()
        if address not in known
    ]
    return Report(
        cluster=newest.cluster,
        version=newest.version,
        leader=newest.node if newest.role == LEADER else None,
        term=newest.term,
        nodes=(*lines, *strangers),
        sessions=newest.sessions,
        leases=newest.leases,
    )


def _newest(answers: Iterable[pb.NodeStatus]) -> pb.NodeStatus:
    """The leader of the highest term, else whoever knows most: only it knows how far the others are."""
    return max(answers, key=lambda s: (s.role == LEADER, s.term, s.commit, -s.node))


def _line(node: int, answers: _Answers, newest: pb.NodeStatus, peer: pb.PeerStatus | None) -> NodeLine:
    status = answers.by_node.get(node)
    address = peer.address if peer is not None else answers.address[node]
    is_voter = peer is not None and peer.is_voter
    role = SILENT if status is None else status.role
    if peer is None:
        role = OUTSIDE
    elif status is not None and not is_voter:
        role = LEARNER
    found = NodeLine(node=node, address=address, role=role, is_voter=is_voter)
    if peer is not None and newest.role == LEADER:
        found = replace(found, lag=peer.lag, is_connected=peer.is_connected)
    if status is None:
        return replace(found, problem=answers.silent.get(address, ""))
    return replace(
        found,
        term=status.term,
        commit=status.commit,
        applied=status.applied,
        snapshot=status.snapshot_index,
        up_s=status.up_ms / 1000,
    )

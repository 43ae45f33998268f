"""Status of a coordinator group: every node reports its own view, and the views are merged.

No consensus is needed for this, so it also works when the group has no leader. `CoordinatorProbe`
samples the same status while a run trains, as rows for the run's event log.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from paceline.coordinator import run_endpoint
from paceline.coordinator.client.aio import (
    FAILED,
    Client,
    RefusedError,
    UnreachableError,
    UntrustedError,
    handshake_error,
    refused,
)
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import Endpoints, open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import monotonic_s
from paceline.core.disk import SecretError
from paceline.core.errors import ClusterOptionError, PacelineError, Problem
from paceline.events.schema import CoordinatorRow, Timings

LEADER = "leader"
LEARNER = "learner"
NOT_A_MEMBER = "outside"
UNREACHABLE = "no response"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node, by its own status, and by the leader's for what only the leader tracks."""

    node: int | None  # None: no response from this address, and no other node lists it
    address: str
    role: str
    is_voter: bool = False
    term: int | None = None  # in this and the next fields None means unknown
    commit: int | None = None
    applied: int | None = None
    snapshot: int | None = None
    up_s: float | None = None
    lag: int | None = None  # entries that it lacks, according to the leader
    is_connected: bool | None = None  # connection to the leader, as reported by the leader
    problem: str = ""

    @property
    def answers(self) -> bool:
        return self.term is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    cluster: str
    version: str
    leader: int | None
    term: int
    nodes: tuple[NodeRow, ...]
    sessions: int
    leases: int  # leases of live workers, as reported by the leader

    @property
    def missing(self) -> list[int]:
        """Voters that do not answer, or that the leader cannot reach."""
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
    address: dict[int, str]  # at which each of them answered
    silent: dict[str, str]  # the problem, by address
    refusals: list[RefusedError | UntrustedError]


async def fetch_status(cluster: Endpoints, *, patience_s: float, only: bool = False) -> StatusReport:
    """Query these nodes, and (without `only`) their peers. UnreachableError: none answers."""
    async with cluster.client(patience_s) as client:
        answers = _Answers({}, {}, {}, [])
        await _query(client, cluster.addresses, answers)
        if not only:
            await _query(client, _unqueried(answers), answers)
    if not answers.by_node:
        if answers.refusals:
            raise answers.refusals[0]
        problems = "; ".join(f"{address}: {why}" for address, why in answers.silent.items())
        raise UnreachableError(
            f"no node of the coordinator responds ({problems})",
            "check that the nodes are running at these addresses (--at HOST:PORT)",
        )
    return _report(answers, only=only)


async def _query(client: Client, addresses: Iterable[str], answers: _Answers) -> None:
    queried = list(addresses)
    responses = await asyncio.gather(*(_query_node(client, address) for address in queried))
    for address, answer in zip(queried, responses, strict=True):
        if isinstance(answer, pb.NodeStatus):
            answers.by_node[answer.node] = answer
            answers.address[answer.node] = address
        elif isinstance(answer, RefusedError | UntrustedError):
            answers.refusals.append(answer)
            answers.silent[address] = answer.what
        else:
            answers.silent[address] = answer


async def _query_node(client: Client, address: str) -> pb.NodeStatus | RefusedError | UntrustedError | str:
    try:
        return await client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() not in FAILED:
            return refused(error)
        return handshake_error(address, error.details() or "") or describe_failure(error)


def describe_failure(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it does not respond in time"
    details = (error.details() or error.code().name).partition("\n")[0]
    # gRPC reports the whole chain: failed to connect to all addresses; last error: UNKNOWN: ipv4:…: refused
    return details.rpartition(": ")[2] if "last error: " in details else details


def _unqueried(answers: _Answers) -> list[str]:
    known = {
        peer.address
        for status in answers.by_node.values()
        for peer in status.peers
        if peer.node not in answers.by_node and peer.address
    }
    return sorted(known - answers.silent.keys())


def _report(answers: _Answers, *, only: bool) -> StatusReport:
    newest = _newest(answers.by_node.values())
    names = sorted({status.cluster for status in answers.by_node.values()})
    if len(names) > 1:
        message = f"these addresses belong to different clusters: {', '.join(names)}"
        raise ClusterOptionError([Problem(message, "name the nodes of one cluster", "--at")])
    peers = {peer.node: peer for peer in newest.peers}
    shown = set(answers.by_node) if only else {*peers, *answers.by_node}
    lines = [_node_row(node, answers, newest, peers.get(node)) for node in sorted(shown)]
    known = {line.address for line in lines}
    strangers = [
        NodeRow(node=None, address=address, role=UNREACHABLE, problem=why)
        for address, why in answers.silent.items()
        if address not in known
    ]
    return StatusReport(
        cluster=newest.cluster,
        version=newest.version,
        leader=newest.node if newest.role == LEADER else None,
        term=newest.term,
        nodes=(*lines, *strangers),
        sessions=newest.sessions,
        leases=newest.leases,
    )


def _newest(answers: Iterable[pb.NodeStatus]) -> pb.NodeStatus:
    """The leader of the highest term, which tracks the others' progress; else the most advanced node."""
    return max(answers, key=lambda s: (s.role == LEADER, s.term, s.commit, -s.node))


def _node_row(node: int, answers: _Answers, newest: pb.NodeStatus, peer: pb.PeerStatus | None) -> NodeRow:
    status = answers.by_node.get(node)
    address = peer.address if peer is not None else answers.address[node]
    is_voter = peer is not None and peer.is_voter
    role = UNREACHABLE if status is None else status.role
    if peer is None:
        role = NOT_A_MEMBER
    elif status is not None and not is_voter:
        role = LEARNER
    row = NodeRow(node=node, address=address, role=role, is_voter=is_voter)
    if peer is not None and newest.role == LEADER:
        row = replace(row, lag=peer.lag, is_connected=peer.is_connected)
    if status is None:
        return replace(row, problem=answers.silent.get(address, ""))
    return replace(
        row,
        term=status.term,
        commit=status.commit,
        applied=status.applied,
        snapshot=status.snapshot_index,
        up_s=status.up_ms / 1000,
    )


PROBE_TIMEOUT_S = 1.0


class CoordinatorProbe:
    """Samples the coordinator of a run, once its endpoint is in the run's folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._client: BlockingClient | None = None
        self._addresses: list[str] = []

    def rows(self, at_ns: int) -> list[CoordinatorRow]:
        client = self._connect()
        if client is None:
            return []
        rows = self._sample(client, at_ns)
        # A coordinator may end with its run: its silence is not an outage then.
        return rows if self._is_published() else []

    def _sample(self, client: BlockingClient, at_ns: int) -> list[CoordinatorRow]:
        answers = {address: self._query_status(client, address) for address in self._addresses}
        statuses = [status for status, _ in answers.values() if status is not None]
        newest = max(statuses, key=lambda s: (s.role == LEADER, s.term, s.commit), default=None)
        peers = {} if newest is None else {peer.node: peer for peer in newest.peers}
        self._addresses += sorted({p.address for p in peers.values() if p.address} - set(self._addresses))
        by_address = {peer.address: peer for peer in peers.values()}
        return [
            _sample_row(at_ns, address, status, took_s, by_address.get(address), newest)
            for address, (status, took_s) in answers.items()
        ]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> BlockingClient | None:
        if self._client is None and self._is_published():
            # Half written, or already gone with the run: retried at the next sample.
            with suppress(PacelineError, SecretError, json.JSONDecodeError, OSError):
                endpoint = run_endpoint.find_endpoint(self._run_dir)
                target = open_coordinators(endpoint.coordinators)
                self._client = target.blocking_client(PROBE_TIMEOUT_S)
                self._addresses = list(target.addresses)
        return self._client

    def _is_published(self) -> bool:
        """A training run has its coordinator's endpoint in its folder."""
        return (self._run_dir / run_endpoint.FILE_NAME).exists()

    @staticmethod
    def _query_status(client: BlockingClient, address: str) -> tuple[pb.NodeStatus | None, float | None]:
        began_s = monotonic_s()
        try:
            status = client.of_node(address, "Status", pb.StatusRequest())
        except (grpc.aio.AioRpcError, RefusedError, UnreachableError):
            return None, None
        return status, monotonic_s() - began_s


def _sample_row(
    at_ns: int,
    address: str,
    status: pb.NodeStatus | None,
    took_s: float | None,
    peer: pb.PeerStatus | None,
    newest: pb.NodeStatus | None,
) -> CoordinatorRow:
    is_voter = peer is None or peer.is_voter
    by_leader = peer is not None and newest is not None and newest.role == LEADER
    lag, is_connected = (peer.lag, peer.is_connected) if by_leader and peer is not None else (None, None)
    if status is None:
        return CoordinatorRow(
            at_ns, address, None, UNREACHABLE, is_voter, None, None, None, None, lag, False, None
        )
    role = status.role if is_voter else LEARNER
    leader = status.leader or (status.node if status.role == LEADER else None)
    return CoordinatorRow(
        at_ns,
        address,
        status.node,
        role,
        is_voter,
        leader,
        status.term,
        status.commit,
        status.applied,
        lag,
        is_connected,
        took_s,
        _encode_timings(status.commit_timings),
        _encode_timings(status.fsync_timings),
        _encode_round_trips(status),
        status.elections,
        status.proposals_failed,
    )


def _encode_timings(timings: pb.Timings) -> str | None:
    """None: other bounds, or an older version without timings."""
    parsed = Timings.of(timings.counts, timings.total_s)
    return None if parsed is None else parsed.word()


def _encode_round_trips(status: pb.NodeStatus) -> str | None:
    encoded = [(peer.node, _encode_timings(peer.round_trip_timings)) for peer in status.peers]
    return ";".join(f"{node}={word}" for node, word in encoded if word is not None) or None

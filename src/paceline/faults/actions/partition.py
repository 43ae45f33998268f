"""Network partitions of a running run: nodes are sent which peers and workers to ignore.

A node ends a partition by its own clock (coordinator/server/partitions.py), so it ends on time even when the
process that requested it is gone. The outcome is read from the nodes' status and the run's log.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc.aio

from paceline.coordinator import run_endpoint
from paceline.coordinator.client.aio import RefusedError, UnreachableError, refused
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token
from paceline.core.clock import SystemClock, monotonic_s
from paceline.faults.actions.request import PartitionGroup, block_rules, why_too_few_left
from paceline.faults.actions.run_state import RunState

LOCK_TIMEOUT_S = 20.0  # the holder may be calling nodes one after another, or starting a process
LOCK_POLL_S = 0.02


class NamedLock:
    """Lock file of this machine, by the name of a coordinator or of a worker of a run.

    Checking the nodes and partitioning them are two steps, so two executors must not do them at once.
    Executors are processes or threads of this machine.
    """

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{digest}.turn"
        self._fd: int | None = None

    def acquire(self, within_s: float = LOCK_TIMEOUT_S) -> bool:
        """False: it is held elsewhere."""
        assert self._fd is None, "a lock is acquired once"
        fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        until_s = monotonic_s() + within_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic_s() >= until_s:
                    os.close(fd)
                    return False
                SystemClock().sleep(LOCK_POLL_S)
            else:
                self._fd = fd
                return True

    def release(self) -> None:
        """Does nothing if the lock is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


PATIENCE_S = 2.0  # for one node to reply
PROBE_S = 0.5


@dataclass(slots=True)
class NetworkPartition:
    """A partition between the nodes of a run's coordinator and its workers."""

    run: str
    min_workers: int
    addresses: Mapping[int, str]  # of all nodes
    voters: frozenset[int]
    cluster: str
    leader: int  # 0: no leader
    _client: BlockingClient
    _access: Token | Certificate
    lock: NamedLock  # of partitions of this coordinator
    _blocking: dict[int, str] = field(default_factory=dict)  # nodes that block peers for this partition

    @classmethod
    def of(cls, run_dir: Path) -> Self:
        endpoint = run_endpoint.find_endpoint(run_dir)
        coordinator = open_coordinators(endpoint.coordinators)
        client = coordinator.blocking_client(PATIENCE_S)
        try:
            statuses = [status for at in coordinator.addresses if (status := _status(client, at)) is not None]
            if not statuses:
                raise UnreachableError(
                    "no node of the run's coordinator responds", "check that it is running"
                )
            newest = max(statuses, key=lambda status: status.term)
            return cls(
                run=endpoint.run,
                min_workers=endpoint.elastic.min_workers,
                addresses={peer.node: peer.address for peer in newest.peers},
                voters=frozenset(peer.node for peer in newest.peers if peer.is_voter),
                cluster=newest.cluster,
                leader=newest.leader,
                _client=client,
                _access=coordinator.access,
                lock=NamedLock(newest.cluster),
            )
        except BaseException:
            client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
        self._client.close()

    def why_not(self, group: PartitionGroup, workers: Mapping[str, int], *, is_forced: bool) -> str:
        if missing := [node for node in group.nodes if node not in self.addresses]:
            listed = ", ".join(f"node-{node}" for node in sorted(self.addresses))
            return f"there is no node-{missing[0]}; there are: {listed}"
        statuses = self._statuses()
        if busy := [node for node, status in statuses.items() if status.cut_ms]:
            left_s = statuses[busy[0]].cut_ms / 1000
            return f"node-{busy[0]} is partitioned already, for {left_s:.0f} s; heal it first"
        if silent := [node for node in group.nodes if node not in statuses]:
            return f"node-{silent[0]} does not respond and cannot be partitioned"
        why = why_too_few_left(
            group,
            voters=self.voters,
            answering=list(statuses),
            workers=list(workers),
            min_workers=self.min_workers,
        )
        return "" if not why or is_forced else f"{why}; use --force to do it anyway"

    def start(self, group: PartitionGroup, workers: Mapping[str, int], for_s: float) -> str:
        """Start it on all nodes, or on none; describes what was done."""
        try:
            for node, rule in block_rules(group, sorted(self.addresses), workers).items():
                self._blocking[node] = self.addresses[node]
                self._send(
                    node,
                    pb.CutRequest(
                        cluster=self.cluster,
                        for_ms=round(for_s * 1000),
                        nodes=rule.nodes,
                        pids=rule.pids,
                        others=rule.others,
                    ),
                )
        except BaseException:
            self.heal()
            raise
        blocking = ", ".join(f"node-{node}" for node in self._blocking)
        return f"{' and '.join(group.names)} partitioned for {for_s:g} s, by {blocking}"

    def heal(self) -> list[int]:
        """Heal now. Returns the nodes that did not reply; they heal when their time is over."""
        missed = []
        for node in sorted(self.addresses):
            try:
                self._send(node, pb.CutRequest(cluster=self.cluster))
            except (RefusedError, UnreachableError):
                missed.append(node)
        return missed

    def is_healed(self) -> bool:
        return not any(status.cut_ms for status in self._statuses().values())

    def observed_effect(self, group: PartitionGroup, state: RunState, since_ns: int, generation: int) -> str:
        """Description of the effect; empty: none yet."""
        of_nodes = self._of_nodes(group) if group.nodes else "the coordinator is unaffected"
        if not of_nodes:
            return ""
        if not group.workers or self._is_lost(group):
            return of_nodes
        of_workers = self._of_workers(group, state, since_ns, generation)
        if of_workers and group.nodes:
            return f"{of_workers}; {of_nodes}"
        return of_workers

    def _of_nodes(self, group: PartitionGroup) -> str:
        statuses = self._statuses()
        rest = [node for node in self.addresses if node not in group.nodes]
        if any(statuses[node].leader in rest for node in group.nodes if node in statuses):
            return ""  # its view of the leader is still the old one
        if self._is_lost(group):
            if rest:
                is_so = all(statuses[node].leader == 0 for node in rest if node in statuses)
                return "there is no leader: no side has quorum" if is_so else ""
            return (
                ""
                if self._is_reachable(list(self.addresses.values()))
                else "the coordinator does not respond"
            )
        leading = [statuses[node] for node in rest if node in statuses and statuses[node].leader in rest]
        if not leading:
            return ""
        now = max(leading, key=lambda status: status.term)
        before = f"instead of node-{self.leader}" if self.leader in group.nodes else "as before"
        alone = ", ".join(f"node-{node}" for node in group.nodes)
        return (
            f"node-{now.leader} leads in term {now.term}, {before}; {alone} receives nothing from the others"
        )

    def _of_workers(self, group: PartitionGroup, state: RunState, since_ns: int, generation: int) -> str:
        entered = state.since("generation_entered", since_ns)
        for event in entered:
            workers = str(event.fields["workers"]).split(",")
            if int(str(event.fields["number"])) > generation and not set(workers) & set(group.workers):
                took_s = (event.at_ns - since_ns) / 1e9
                names = " and ".join(group.workers)
                return (
                    f"generation {event.fields['number']} with {len(workers)} workers, without {names}, "
                    f"after {took_s:.2f} s"
                )
        return "" if generation else self._of_members(group)

    def _of_members(self, group: PartitionGroup) -> str:
        """For runs without generations, which have parameter servers."""
        try:
            view = self._client.read("Runs.Get", pb.GetRun(run=self.run), pb.RunView)
        except (RefusedError, UnreachableError):
            return ""
        living = {w.worker for w in view.workers if w.phase in (pb.WORKER_JOINED, pb.WORKER_ACTIVE)}
        names = " and ".join(group.workers)
        return "" if living & set(group.workers) else f"the coordinator counts {names} as lost"

    def _is_lost(self, group: PartitionGroup) -> bool:
        """Whether the quorum is lost."""
        return len(self.voters - set(group.nodes)) < len(self.voters) // 2 + 1

    def _is_reachable(self, addresses: list[str]) -> bool:
        with BlockingClient(addresses, self._access, patience_s=PROBE_S) as client:
            try:
                client.find_leader()
            except UnreachableError:
                return False
            return True

    def _statuses(self) -> dict[int, pb.NodeStatus]:
        statuses = {node: _status(self._client, address) for node, address in self.addresses.items()}
        return {node: status for node, status in statuses.items() if status is not None}

    def _send(self, node: int, request: pb.CutRequest) -> None:
        try:
            self._client.of_node(self.addresses[node], "Cut", request)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                message = f"node-{node} does not respond"
                raise UnreachableError(message, "check the nodes: `paceline coordinator status`") from error
            raise refused(error) from error


def _status(client: BlockingClient, address: str) -> pb.NodeStatus | None:
    """None: no reply."""
    try:
        return client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError:
        return None

"""Network partitions of a running run: nodes are told which peers and workers to ignore.

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
from paceline.coordinator.client import endpoints
from paceline.coordinator.client.aio import RefusedError, UnreachableError, refused
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token
from paceline.core.clock import SystemClock, monotonic_s
from paceline.faults.actions.request import PartitionGroup, block_rules, why_too_few_left
from paceline.faults.actions.run_state import RunState

# Whether a cut may be made is seen on the nodes, and then it is made: two who looked at the same instant
# would both see that nobody is cut off. Of two who hold one worker, one would never be found again. All are
# processes or threads of this machine, so they find the same file, by the name of what they want: a cluster,
# or a worker of a run.

LOCK_TIMEOUT_S = 20.0  # somebody else asks nodes, one after another, or waits for a process to begin
LOCK_POLL_S = 0.02


class NamedLock:
    def __init__(self, what: str) -> None:
        name = hashlib.sha256(what.encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{name}.turn"
        self._fd: int | None = None

    def take(self, within_s: float = LOCK_TIMEOUT_S) -> bool:
        """False: somebody else has it."""
        assert self._fd is None, "it is taken once"
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

    def end(self) -> None:
        """Also one that nobody has."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


PATIENCE_S = 2.0  # for one node to answer
PROBE_S = 0.5


@dataclass(slots=True)
class NetworkPartition:
    """The nodes of a run's coordinator, as one who breaks the lines between them sees them."""

    run: str
    fewest: int
    addresses: Mapping[int, str]  # of all nodes
    voters: frozenset[int]
    cluster: str
    leader: int  # 0: nobody leads
    _client: BlockingClient
    _access: Token | Certificate
    turn: NamedLock  # of all who cut or mend nodes of this cluster
    _cut: dict[int, str] = field(default_factory=dict)  # whom we asked

    @classmethod
    def of(cls, run_dir: Path) -> Self:
        seat = run_endpoint.find_endpoint(run_dir)
        where = endpoints.EndpointOptions(usual_folder=run_dir, at=seat.addresses, token_file=seat.token_file)
        found = endpoints.find_endpoints(where)
        client = BlockingClient(found.addresses, found.access, patience_s=PATIENCE_S)
        try:
            told = [status for at in found.addresses if (status := _status(client, at)) is not None]
            if not told:
                raise UnreachableError("no node of the run's coordinator answers", "look whether it lives")
            newest = max(told, key=lambda status: status.term)
            return cls(
                run=seat.run,
                fewest=seat.elastic.min_workers,
                addresses={peer.node: peer.address for peer in newest.peers},
                voters=frozenset(peer.node for peer in newest.peers if peer.is_voter),
                cluster=newest.cluster,
                leader=newest.leader,
                _client=client,
                _access=found.access,
                turn=NamedLock(newest.cluster),
            )
        except BaseException:
            client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.turn.end()
        self._client.close()

    def why_not(self, sides: PartitionGroup, workers: Mapping[str, int], *, is_forced: bool) -> str:
        if missing := [node for node in sides.nodes if node not in self.addresses]:
            there = ", ".join(f"node-{node}" for node in sorted(self.addresses))
            return f"there is no node-{missing[0]}; there are: {there}"
        told = self._statuses()
        if busy := [node for node, status in told.items() if status.cut_ms]:
            return (
                f"node-{busy[0]} is cut off already, for {told[busy[0]].cut_ms / 1000:.0f} s; heal it first"
            )
        if silent := [node for node in sides.nodes if node not in told]:
            return f"node-{silent[0]} does not answer: nobody can ask it to be silent"
        why = why_too_few_left(
            sides, voters=self.voters, answering=list(told), workers=list(workers), fewest=self.fewest
        )
        return "" if not why or is_forced else f"{why}; say force to do it nevertheless"

    def cut(self, sides: PartitionGroup, workers: Mapping[str, int], for_s: float) -> str:
        """What is so now, in words. All of it, or nothing."""
        try:
            for node, order in block_rules(sides, sorted(self.addresses), workers).items():
                self._cut[node] = self.addresses[node]
                self._ask(
                    node,
                    pb.CutRequest(
                        cluster=self.cluster,
                        for_ms=round(for_s * 1000),
                        nodes=order.nodes,
                        pids=order.pids,
                        others=order.others,
                    ),
                )
        except BaseException:
            self.mend()
            raise
        asked = ", ".join(f"node-{node}" for node in self._cut)
        return f"{' and '.join(sides.names)} cut off for {for_s:g} s, by {asked}"

    def mend(self) -> list[int]:
        """All of it, now; the nodes that could not be asked, and mend it by themselves."""
        missed = []
        for node in sorted(self.addresses):
            try:
                self._ask(node, pb.CutRequest(cluster=self.cluster))
            except (RefusedError, UnreachableError):
                missed.append(node)
        return missed

    def is_whole(self) -> bool:
        return not any(status.cut_ms for status in self._statuses().values())

    def seen(self, sides: PartitionGroup, look: RunState, since_ns: int, generation: int) -> str:
        """What came of it, in words; empty: nothing yet."""
        of_nodes = self._of_nodes(sides) if sides.nodes else "the coordinator is as it was"
        if not of_nodes:
            return ""
        if not sides.workers or self._is_lost(sides):
            return of_nodes
        of_workers = self._of_workers(sides, look, since_ns, generation)
        if of_workers and sides.nodes:
            return f"{of_workers}; {of_nodes}"
        return of_workers

    def _of_nodes(self, sides: PartitionGroup) -> str:
        told = self._statuses()
        rest = [node for node in self.addresses if node not in sides.nodes]
        if any(told[node].leader in rest for node in sides.nodes if node in told):
            return ""  # it still believes what it heard last
        if self._is_lost(sides):
            if rest:
                is_so = all(told[node].leader == 0 for node in rest if node in told)
                return "nobody leads: too few nodes are left together" if is_so else ""
            return "" if self._answers(list(self.addresses.values())) else "the coordinator answers nobody"
        leading = [told[node] for node in rest if node in told and told[node].leader in rest]
        if not leading:
            return ""
        now = max(leading, key=lambda status: status.term)
        before = f"instead of node-{self.leader}" if self.leader in sides.nodes else "as before"
        alone = ", ".join(f"node-{node}" for node in sides.nodes)
        return f"node-{now.leader} leads in term {now.term}, {before}; {alone} hears none of the others"

    def _of_workers(self, sides: PartitionGroup, look: RunState, since_ns: int, generation: int) -> str:
        entered = look.since("generation_entered", since_ns)
        for event in entered:
            workers = str(event.fields["workers"]).split(",")
            if int(str(event.fields["number"])) > generation and not set(workers) & set(sides.workers):
                took_s = (event.at_ns - since_ns) / 1e9
                who = " and ".join(sides.workers)
                return (
                    f"generation {event.fields['number']} with {len(workers)} workers, without {who}, "
                    f"after {took_s:.2f} s"
                )
        return "" if generation else self._of_members(sides)

    def _of_members(self, sides: PartitionGroup) -> str:
        """Where there are no generations: behind parameter servers."""
        try:
            view = self._client.read("Runs.Get", pb.GetRun(run=self.run), pb.RunView)
        except (RefusedError, UnreachableError):
            return ""
        living = {w.worker for w in view.workers if w.phase in (pb.WORKER_JOINED, pb.WORKER_ACTIVE)}
        who = " and ".join(sides.workers)
        return "" if living & set(sides.workers) else f"the coordinator counts {who} as lost"

    def _is_lost(self, sides: PartitionGroup) -> bool:
        """Was the quorum?"""
        return len(self.voters - set(sides.nodes)) < len(self.voters) // 2 + 1

    def _answers(self, addresses: list[str]) -> bool:
        with BlockingClient(addresses, self._access, patience_s=PROBE_S) as client:
            try:
                client.find_leader()
            except UnreachableError:
                return False
            return True

    def _statuses(self) -> dict[int, pb.NodeStatus]:
        told = {node: _status(self._client, address) for node, address in self.addresses.items()}
        return {node: status for node, status in told.items() if status is not None}

    def _ask(self, node: int, request: pb.CutRequest) -> None:
        try:
            self._client.of_node(self.addresses[node], "Cut", request)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                what = f"node-{node} does not answer"
                raise UnreachableError(what, "look at `paceline coordinator status`") from error
            raise refused(error) from error


def _status(client: BlockingClient, address: str) -> pb.NodeStatus | None:
    """None: it does not answer."""
    try:
        return client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError:
        return None

"""Operations on a coordinator group: add and remove nodes, step down, take snapshots, kill a node.

Membership changes and leadership transfer go to the leader. Snapshots are taken by each node.

Only nodes that `paceline coordinator up` started on this machine can be killed: it writes their
process ids into the data folder. Each kill, and the leader at that time, is appended to kills.jsonl.
"""

import asyncio
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc.aio

from paceline.coordinator.admin import status
from paceline.coordinator.admin.status import StatusReport, describe_failure
from paceline.coordinator.client.aio import FAILED, Client, UnreachableError, refused
from paceline.coordinator.client.endpoints import Endpoints
from paceline.coordinator.client.nodes_file import KILLS_NAME, pid_file
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import ClusterOptionError, ExitCode, NotReadyError, PacelineError, Problem

STATUS_TIMEOUT_S = 2.0  # timeout per node


class NoLeaderError(PacelineError):
    """Nodes answer, but there is no leader: too few voters run."""

    exit_code = ExitCode.DEGRADED
    code = "E505"


class NotCaughtUpError(PacelineError):
    """A node was added, but does not vote yet."""

    exit_code = ExitCode.DEGRADED
    code = "E506"


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A snapshot of one node."""

    node: int
    index: int


async def add_node(cluster: Endpoints, node: int, address: str, *, patience_s: float) -> pb.NodeStatus:
    """The leader's status once the new node votes. Idempotent: a retry continues."""
    async with cluster.client(patience_s) as client:
        await _check_joiner(client, cluster, node, address)
        return await _manage(client, cluster, pb.AddNode(node=node, address=address), patience_s)


async def _check_joiner(client: Client, cluster: Endpoints, node: int, address: str) -> None:
    """The new node must already answer: a voter that never does makes a quorum harder to reach."""
    try:
        joiner = await client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() not in FAILED:
            raise refused(error) from error
        raise UnreachableError(
            f"cannot connect to {address} ({describe_failure(error)})",
            f"start the new node first: paceline coordinator start --id {node} --join --listen {address} "
            "--peers … --data-dir …",
        ) from error
    report = await status.fetch_status(cluster, patience_s=STATUS_TIMEOUT_S)
    if joiner.node != node or joiner.cluster != report.cluster:
        actual = f"at {address} is node {joiner.node} of cluster {joiner.cluster}"
        message = f"{actual}, not node {node} of {report.cluster}"
        raise ClusterOptionError([Problem(message, "correct the number or the address", "NODE")])
    _check_number(report, node, address)


def _check_number(report: StatusReport, node: int, address: str) -> None:
    known = next((line for line in report.nodes if line.node == node and line.is_voter), None)
    if known is not None and known.address != address:
        message = f"node {node} is already a member, at {known.address}"
        raise ClusterOptionError([Problem(message, "give the new node a number that was never used", "NODE")])


async def remove_node(cluster: Endpoints, node: int, *, patience_s: float) -> pb.NodeStatus:
    async with cluster.client(patience_s) as client:
        return await _manage(client, cluster, pb.RemoveNode(node=node), patience_s)


async def step_down(cluster: Endpoints, to: int | None, *, patience_s: float) -> pb.NodeStatus:
    """The status of the former leader, which names the new one."""
    async with cluster.client(patience_s) as client:
        return await _manage(client, cluster, pb.StepDownRequest(to=to or 0), patience_s)


Change = pb.AddNode | pb.RemoveNode | pb.StepDownRequest
_METHODS: dict[type[Change], str] = {
    pb.AddNode: "Add",
    pb.RemoveNode: "Remove",
    pb.StepDownRequest: "StepDown",
}


async def _manage(client: Client, cluster: Endpoints, change: Change, patience_s: float) -> pb.NodeStatus:
    """Send the change to the leader; if that fails in time, find out why."""
    try:
        return await client.manage(_METHODS[type(change)], change)
    except UnreachableError as error:
        report = await status.fetch_status(cluster, patience_s=STATUS_TIMEOUT_S)
        if report.leader is None:
            voters = [line for line in report.nodes if line.is_voter]
            raise NoLeaderError(
                f"there is no leader: {sum(line.answers for line in voters)} of {len(voters)} voters respond",
                "restart the other nodes: more than half of the voters must run",
            ) from error
        line = next((line for line in report.nodes if line.node == getattr(change, "node", None)), None)
        if isinstance(change, pb.AddNode) and line is not None and line.role == status.LEARNER:
            raise NotCaughtUpError(
                f"node {line.node} has not caught up within {patience_s:g} s: it lacks {line.lag} entries",
                "run the command again to wait longer, with a longer --timeout-s if the state is large",
            ) from error
        raise


async def take_snapshots(cluster: Endpoints, node: int | None, *, patience_s: float) -> list[NodeSnapshot]:
    """Snapshots of one node, or of all members."""
    report = await status.fetch_status(cluster, patience_s=STATUS_TIMEOUT_S)
    lines = [line for line in report.nodes if line.node is not None and node in (None, line.node)]
    if not lines:
        numbers = [line.node for line in report.nodes if line.node is not None]
        message = f"node {node} is not a member; members are {numbers}"
        raise ClusterOptionError([Problem(message, "name one of them, or all", "--node")])
    async with cluster.client(patience_s) as client:
        snapshots = []
        for line in lines:
            try:
                node_status = await client.of_node(line.address, "Snapshot", pb.SnapshotRequest())
            except grpc.aio.AioRpcError as error:
                if error.code() not in FAILED:
                    raise refused(error) from error
                raise UnreachableError(
                    f"node {line.node} at {line.address} wrote no snapshot ({describe_failure(error)})",
                    "start it again, or name the others one by one with --node ID",
                ) from error
            snapshots.append(NodeSnapshot(node_status.node, node_status.snapshot_index))
        return snapshots


KILL_STATUS_TIMEOUT_S = 1.0
KILL_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    node: int
    was_leader: bool
    term: int  # at the time of the kill
    at_unix_s: float
    leader: int | None  # the new leader; None: too few voters are left
    new_term: int | None


async def kill_node(folder: Path, cluster: Endpoints, node: int | None, *, patience_s: float) -> Killed:
    """Kill `node`, else the leader, else the first live node; return once there is a leader, or cannot be."""
    report = await status.fetch_status(cluster, patience_s=KILL_STATUS_TIMEOUT_S)
    victim = _victim(report, node)
    pid = _pid(folder, victim)
    at_unix_s = unix_now_s()
    os.kill(pid, signal.SIGKILL)
    leader, term = await _next_leader(cluster, victim, patience_s)
    killed = Killed(
        node=victim,
        was_leader=victim == report.leader,
        term=report.term,
        at_unix_s=at_unix_s,
        leader=leader,
        new_term=term,
    )
    with (folder / KILLS_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(killed)) + "\n")
    return killed


def _victim(report: StatusReport, node: int | None) -> int:
    living = [line.node for line in report.nodes if line.answers and line.node is not None]
    if node is not None:
        if node not in living:
            known = ", ".join(map(str, living))
            raise ClusterOptionError(
                [Problem(f"node {node} does not respond", f"there are: {known}", "NODE")]
            )
        return node
    return report.leader if report.leader in living else living[0]


def _pid(folder: Path, node: int) -> int:
    try:
        pid = int(pid_file(folder, node).read_text(encoding="utf-8"))
        argv = Path("/proc", str(pid), "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except (OSError, ValueError):
        pid = 0
        argv = []
    # The pid may have been reused by another process.
    if "coordinator" not in argv or f"node-{node}" not in {Path(argument).name for argument in argv}:
        raise NotReadyError(
            f"{folder} does not record the process of node {node}",
            "only nodes of `paceline coordinator up` on this machine can be killed; name its folder: --dir",
        )
    return pid


async def _next_leader(cluster: Endpoints, dead: int, patience_s: float) -> tuple[int | None, int | None]:
    """The next leader and its term; None once fewer than a majority answer."""
    until_s = monotonic_s() + patience_s
    while True:
        try:
            report = await status.fetch_status(cluster, patience_s=KILL_STATUS_TIMEOUT_S)
        except UnreachableError:
            return None, None
        living = [line for line in report.nodes if line.is_voter and line.answers and line.node != dead]
        voters = [line for line in report.nodes if line.is_voter]
        if 2 * len(living) <= len(voters):
            return None, None
        if report.leader is not None and report.leader != dead:
            return report.leader, report.term
        if monotonic_s() > until_s:
            raise NotReadyError(
                f"there is no leader {patience_s:g} s after node {dead} was killed",
                "check the other nodes: paceline coordinator status",
            )
        await asyncio.sleep(KILL_POLL_S)

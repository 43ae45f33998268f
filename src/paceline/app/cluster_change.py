"""How does one change a cluster of coordinators? By asking its leader, or for a snapshot each node."""

from dataclasses import dataclass

import grpc.aio

from paceline.app import cluster_status
from paceline.app.cluster_access import Cluster
from paceline.app.cluster_status import Report, why_silent
from paceline.coordinator.client import FAILED, Client, UnreachableError, refused
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import ClusterWishError, ExitCode, PacelineError, Problem

LOOK_S = 2.0  # for a node to say how it is


class NoLeaderError(PacelineError):
    """Nodes answer, but nobody leads them: too few of them are there to agree."""

    exit_code = ExitCode.DEGRADED
    code = "E505"


class NotCaughtUpError(PacelineError):
    """A node was taken in, but does not vote yet."""

    exit_code = ExitCode.DEGRADED
    code = "E506"


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot of one node."""

    node: int
    index: int


async def add(cluster: Cluster, node: int, address: str, *, patience_s: float) -> pb.NodeStatus:
    """The leader's view once the new node votes; asking again goes on where it stood."""
    async with cluster.client(patience_s) as client:
        await _check_joiner(client, cluster, node, address)
        return await _manage(client, cluster, pb.AddNode(node=node, address=address), patience_s)


async def _check_joiner(client: Client, cluster: Cluster, node: int, address: str) -> None:
    """Nobody is taken in who is not there: a voter that never answers makes agreement harder."""
    try:
        found = await client.of_node(address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() not in FAILED:
            raise refused(error) from error
        raise UnreachableError(
            f"nobody answers at {address} ({why_silent(error)})",
            f"start the new node first: paceline coordinator start --id {node} --join --listen {address} "
            "--peers … --data-dir …",
        ) from error
    report = await cluster_status.look(cluster, patience_s=LOOK_S)
    if found.node != node or found.cluster != report.cluster:
        there = f"at {address} is node {found.node} of cluster {found.cluster}"
        what = f"{there}, not node {node} of {report.cluster}"
        raise ClusterWishError([Problem(what, "correct the number or the address", "NODE")])
    _check_number(report, node, address)


def _check_number(report: Report, node: int, address: str) -> None:
    known = next((line for line in report.nodes if line.node == node and line.is_voter), None)
    if known is not None and known.address != address:
        what = f"node {node} takes part already, at {known.address}"
        raise ClusterWishError([Problem(what, "give the new node a number that was never used", "NODE")])


async def remove(cluster: Cluster, node: int, *, patience_s: float) -> pb.NodeStatus:
    async with cluster.client(patience_s) as client:
        return await _manage(client, cluster, pb.RemoveNode(node=node), patience_s)


async def step_down(cluster: Cluster, to: int | None, *, patience_s: float) -> pb.NodeStatus:
    """The view of the node that led: it knows who leads now."""
    async with cluster.client(patience_s) as client:
        return await _manage(client, cluster, pb.StepDownRequest(to=to or 0), patience_s)


Change = pb.AddNode | pb.RemoveNode | pb.StepDownRequest
_METHODS: dict[type[Change], str] = {
    pb.AddNode: "Add",
    pb.RemoveNode: "Remove",
    pb.StepDownRequest: "StepDown",
}


async def _manage(client: Client, cluster: Cluster, change: Change, patience_s: float) -> pb.NodeStatus:
    """Ask the leader; if none could do it in time, find out why."""
    try:
        return await client.manage(_METHODS[type(change)], change)
    except UnreachableError as error:
        report = await cluster_status.look(cluster, patience_s=LOOK_S)
        if report.leader is None:
            voters = [line for line in report.nodes if line.is_voter]
            raise NoLeaderError(
                f"nobody leads: {sum(line.answers for line in voters)} of {len(voters)} voters answer",
                "start the others again: more than half of the voters must run",
            ) from error
        line = next((line for line in report.nodes if line.node == getattr(change, "node", None)), None)
        if isinstance(change, pb.AddNode) and line is not None and line.role == cluster_status.LEARNER:
            raise NotCaughtUpError(
                f"node {line.node} has not caught up within {patience_s:g} s: it lacks {line.lag} entries",
                "say the same again to go on waiting, with a longer --timeout-s if the state is large",
            ) from error
        raise


async def snapshot(cluster: Cluster, node: int | None, *, patience_s: float) -> list[Taken]:
    """Of one node, or of all that take part."""
    report = await cluster_status.look(cluster, patience_s=LOOK_S)
    lines = [line for line in report.nodes if line.node is not None and node in (None, line.node)]
    if not lines:
        numbers = [line.node for line in report.nodes if line.node is not None]
        what = f"node {node} does not take part; these do: {numbers}"
        raise ClusterWishError([Problem(what, "name one of them, or all", "--node")])
    async with cluster.client(patience_s) as client:
        found = []
        for line in lines:
            try:
                status = await client.of_node(line.address, "Snapshot", pb.SnapshotRequest())
            except grpc.aio.AioRpcError as error:
                if error.code() not in FAILED:
                    raise refused(error) from error
                raise UnreachableError(
                    f"node {line.node} at {line.address} took no snapshot ({why_silent(error)})",
                    "start it again, or name the others one by one with --node ID",
                ) from error
            found.append(Taken(status.node, status.snapshot_index))
        return found

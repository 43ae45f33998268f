"""What happens when a coordinator node is killed? It is struck by kill -9, and the others are watched.

Only nodes that `paceline coordinator up` started on this machine: it writes their
processes beside their data. What was killed, and who led then, is kept in kills.jsonl.
"""

import asyncio
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.app import cluster_status
from paceline.app.cluster_access import Cluster
from paceline.app.cluster_status import Report
from paceline.clock import monotonic_s, unix_now_s
from paceline.coordinator.client import UnreachableError
from paceline.coordinator.cluster_file import KILLS_NAME, pid_file
from paceline.errors import ClusterWishError, NotReadyError, Problem

LOOK_S, LOOK_AGAIN_S = 1.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    node: int
    was_leader: bool
    term: int  # when it was struck
    at_unix_s: float
    leader: int | None  # who leads now; None: nobody can
    new_term: int | None


async def kill(folder: Path, cluster: Cluster, node: int | None, *, patience_s: float) -> Killed:
    """`node`, else whoever leads, else the first that lives; returns once somebody leads, or nobody can."""
    report = await cluster_status.look(cluster, patience_s=LOOK_S)
    victim = _victim(report, node)
    pid = _pid(folder, victim)
    at_unix_s = unix_now_s()
    os.kill(pid, signal.SIGKILL)
    leader, term = await _next(cluster, victim, patience_s)
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


def _victim(report: Report, said: int | None) -> int:
    living = [line.node for line in report.nodes if line.answers and line.node is not None]
    if said is not None:
        if said not in living:
            known = ", ".join(map(str, living))
            raise ClusterWishError([Problem(f"node {said} does not answer", f"there are: {known}", "NODE")])
        return said
    return report.leader if report.leader in living else living[0]


def _pid(folder: Path, node: int) -> int:
    try:
        pid = int(pid_file(folder, node).read_text(encoding="utf-8"))
        line = Path("/proc", str(pid), "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except (OSError, ValueError):
        pid, line = 0, []
    # A number may have been given to somebody else meanwhile.
    if "coordinator" not in line or f"node-{node}" not in {Path(word).name for word in line}:
        raise NotReadyError(
            f"{folder} does not say which process node {node} is",
            "only nodes of `paceline coordinator up` on this machine can be killed; name its folder: --dir",
        )
    return pid


async def _next(cluster: Cluster, dead: int, patience_s: float) -> tuple[int | None, int | None]:
    """Who leads without it; nobody once fewer than a majority answer."""
    until_s = monotonic_s() + patience_s
    while True:
        try:
            report = await cluster_status.look(cluster, patience_s=LOOK_S)
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
                f"nobody leads {patience_s:g} s after node {dead} was killed",
                "see how the others are: paceline coordinator status",
            )
        await asyncio.sleep(LOOK_AGAIN_S)

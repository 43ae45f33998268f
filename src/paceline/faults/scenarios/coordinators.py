"""Scenarios of coordinator failures: kill-leader, quorum-lost, lose-node and full-disk.

Training continues through all of them; only membership changes wait for a quorum.
"""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.errors import ExitCode
from paceline.events.read import History
from paceline.faults.scenarios.coordinator_nodes import CoordinatorNodes, nodes
from paceline.faults.scenarios.expectations import (
    Expectation,
    ScenarioReporter,
    at_least,
    at_most,
    exactly,
    not_judged,
)
from paceline.faults.scenarios.measurements import not_delayed, proofs
from paceline.faults.scenarios.training import TrainingRun, commits_ns, default_plan, events_of, training
from paceline.faults.scenarios.workers import gaps_s

WORKERS = 3
NODES = 3
KILL_LEADER_TIMES = 5
WATCH_S = 1.0  # training continues for this long after each kill


def kill_leader(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    kills_ns: list[int] = []
    with (
        nodes(run_dir / "coordinators", NODES) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        run.until_in(WORKERS, 0)
        run.wait(WATCH_S)
        for number in range(times):
            leader = cluster.leader()
            kills_ns.append(run.now_ns())
            cluster.kill(leader)
            new = cluster.leader()
            run.wait(WATCH_S)
            cluster.start(leader)
            reporter(f"kill {number + 1} of {times}: node {leader} led, node {new} leads now")
            reporter.so_far(_judge(run.history(), kills_ns, run.now_ns()))
        watched_ns = run.now_ns()
        history = run.finish(30, early=True)
    return [*reporter.settled(_judge(history, kills_ns, watched_ns)), *proofs(run_dir, history, reporter)]


def _judge(history: History, kills_ns: list[int], until_ns: int) -> list[Expectation]:
    return [
        # From the first kill to the end, not only near each: an election also ends later than its cause.
        not_delayed(history, kills_ns[0], until_ns, "after the loss of the leader"),
        exactly(
            "the run stays in one generation",
            len({e.fields["number"] for e in events_of(history, "generation_entered")}),
            1,
        ),
    ]


QUORUM_LOST_TIMES = 1
WITHOUT_S = 3.0  # after the message
AFTER_S = 4.0  # longer than a lease: a worker declared lost by mistake would be removed
SILENT = "the coordinator does not answer"
BACK = "the coordinator answers again"


def quorum_lost(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    longest_s = 0.0
    with (
        nodes(run_dir / "coordinators", NODES) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        run.until_in(WORKERS, 0)
        for number in range(times):
            leader = cluster.leader()
            victims = [leader, next(node for node in cluster.addresses if node != leader)]
            struck_ns = run.now_ns()
            for node in victims:
                cluster.kill(node)
            _until_warned(run, SILENT, number + 1)
            run.wait(WITHOUT_S)
            longest_s = max(longest_s, _longest_gap_s(run.history(), struck_ns))
            for node in victims:
                cluster.start(node)
            _until_warned(run, BACK, number + 1)
            run.wait(AFTER_S)
            reporter(f"loss {number + 1} of {times}: nodes {victims} died, and are back")
            reporter.so_far(_quorum_lost_judge(run.history(), longest_s, number + 1))
        history = run.finish(30, early=True)
    return [
        *reporter.settled(_quorum_lost_judge(history, longest_s, times)),
        *proofs(run_dir, history, reporter),
    ]


def _quorum_lost_judge(history: History, longest_s: float, times: int) -> list[Expectation]:
    numbers = {event.fields["number"] for event in events_of(history, "generation_entered")}
    return [
        at_most("steps are committed without a quorum, longest pause", longest_s, 1.0, "s"),
        exactly(
            "loss and return of the quorum are reported",
            (_warnings(history, SILENT), _warnings(history, BACK)),
            (times, times),
        ),
        exactly("the run stays in one generation", len(numbers), 1),
    ]


def _until_warned(run: TrainingRun, text: str, times: int) -> None:
    run.until(lambda history: _warnings(history, text) >= times, f"it is said that {text}")


def _warnings(history: History, text: str) -> int:
    return sum(text in str(event.fields["decision"]) for event in events_of(history, "supervision"))


def _longest_gap_s(history: History, since_ns: int) -> float:
    """Between two commits of any worker, until its log was last written."""
    longest_gap_s = 0.0
    for rank in history.steps:
        commits = [since_ns, *(at for at in commits_ns(history, rank) if at > since_ns)]
        gaps = [later - sooner for sooner, later in pairwise(commits)]
        longest_gap_s = max([longest_gap_s, *(gap / 1e9 for gap in gaps)])
    return longest_gap_s


# The node stays away until the others have put a snapshot in the place of the log
# that it would need: it must be brought up to date by that.

LOSE_NODE_WORKERS = 4
LOSE_NODE_NODES = 3
LOSE_NODE_TIMES = 3
ENTRIES = 30  # that are written while the node is away


@dataclass(slots=True)
class _Loss:
    victims: set[int]
    at_ns: int
    whole_s: float  # until all workers train together again
    had: int  # entries that the node had when it was lost
    snapshot: int  # the index that the snapshot has which it was given


def lose_node(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=LOSE_NODE_WORKERS, steps=1_000_000)
    losses: list[_Loss] = []
    with (
        nodes(run_dir / "coordinators", LOSE_NODE_NODES) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        generation = run.until_in(LOSE_NODE_WORKERS, 0)
        cluster.client.write("Runs.Create", pb.CreateRun(run="notes", min_workers=1), pb.Run)
        for number in range(times):
            # In turn the leader and a follower.
            node = cluster.leader() if number % 2 == 0 else cluster.others(cluster.leader())[0]
            victims = {number % LOSE_NODE_WORKERS, (number + 2) % LOSE_NODE_WORKERS}
            loss = _lose(cluster, run, node, victims, generation)
            losses.append(loss)
            generation = run.until_in(LOSE_NODE_WORKERS, 0)
            reporter(
                f"loss {number + 1} of {times}: node {node} was behind at {loss.had}, "
                f"got a snapshot up to {loss.snapshot}; all workers were back after {loss.whole_s:.1f} s"
            )
            reporter.so_far(_lose_node_judge(run.history(), losses))
        history = run.finish(30, early=True)
    return [*reporter.settled(_lose_node_judge(history, losses)), *proofs(run_dir, history, reporter)]


def _lose_node_judge(history: History, losses: list[_Loss]) -> list[Expectation]:
    gaps = [gap for loss in losses for gap in gaps_s(history, loss.victims, loss.at_ns, LOSE_NODE_WORKERS)]
    return [
        at_most("survivors commit their next step after the loss, maximum", max(gaps), 1.0, "s"),
        at_most("all workers train together again, maximum", max(x.whole_s for x in losses), 5.0, "s"),
        at_least("the node returns from a snapshot", sum(x.snapshot > x.had for x in losses), len(losses)),
    ]


def _lose(
    cluster: CoordinatorNodes, run: TrainingRun, node: int, victims: set[int], generation: int
) -> _Loss:
    had = cluster.status(node).last_index
    cluster.kill(node)
    at_ns = max(run.signal(f"worker-{victim}", signal.SIGKILL) for victim in sorted(victims))
    run.until_in(LOSE_NODE_WORKERS, generation)
    whole_s = (run.now_ns() - at_ns) / 1e9
    for number in range(ENTRIES):
        note = pb.AcknowledgeAlert(run="notes", alert=f"note-{number}", note="x")
        cluster.client.write("Actions.Acknowledge", note, pb.AlertMark)
    for other in cluster.others(node):
        cluster.client.of_node(cluster.addresses[other], "Snapshot", pb.SnapshotRequest())
    cluster.start(node)
    run.until(lambda _: cluster.is_up_to_date(node), f"node {node} takes part again")
    return _Loss(victims, at_ns, whole_s, had, cluster.status(node).snapshot_index)


# With root the node's folder is a small separate file system (tmpfs); without,
# the kernel limits the size of that node's files (RLIMIT_FSIZE), which causes
# the same error at the same place.

FULL_DISK_TIMES = 2
LARGE = "64m"
ROOM_BYTES = 40_000  # that are left when it is to become full
MAX_WRITES = 2000


def full_disk(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    folder = run_dir / "coordinators"
    codes: list[int] = []
    reasons: list[bool] = []
    with _small_disk(folder / "node-1") as is_tmpfs:
        how = "a small tmpfs" if is_tmpfs else "RLIMIT_FSIZE, because mounting a tmpfs is not allowed here"
        reporter(f"node 1 gets a full disk by {how}")
        with nodes(folder, NODES) as cluster, training(plan, run_dir, cluster.coordinators) as run:
            run.until_in(WORKERS, 0)
            began_ns = run.now_ns()
            cluster.client.write("Runs.Create", pb.CreateRun(run="notes", min_workers=1), pb.Run)
            for number in range(times):
                size = cluster.log_of(1).stat().st_size
                codes.append(_fill(cluster, run, is_tmpfs))
                reasons.append("cannot write" in cluster.log_of(1).read_text()[size:])
                _give_room(cluster, is_tmpfs)
                cluster.start(1)
                run.until(lambda _: cluster.is_up_to_date(1), "node 1 takes part again")
                reporter(
                    f"full disk {number + 1} of {times}: node 1 ended with exit code {codes[-1]}, and is back"
                )
                reporter.so_far(_full_disk_judge(run.history(), codes, reasons, began_ns, run.now_ns()))
            ended_ns = run.now_ns()
            history = run.finish(30, early=True)
    expectations = [
        not_judged("how the disk was filled", how),
        *_full_disk_judge(history, codes, reasons, began_ns, ended_ns),
    ]
    return [*reporter.settled(expectations), *proofs(run_dir, history, reporter)]


def _full_disk_judge(
    history: History, codes: list[int], reasons: list[bool], began_ns: int, ended_ns: int
) -> list[Expectation]:
    return [
        exactly(
            "the node with the full disk exits with this code", sorted(set(codes)), [int(ExitCode.NOT_READY)]
        ),
        exactly("the node reports the reason", sum(reasons), len(reasons)),
        not_delayed(history, began_ns, ended_ns, "with a full disk"),
        exactly(
            "the run stays in one generation",
            len({e.fields["number"] for e in events_of(history, "generation_entered")}),
            1,
        ),
    ]


def _fill(cluster: CoordinatorNodes, run: TrainingRun, is_tmpfs: bool) -> int:
    """Let others write until node 1 cannot; its exit code."""
    folder = cluster.data_dir(1)
    if is_tmpfs:
        disk = os.statvfs(folder)
        _remount(folder, str((disk.f_blocks - disk.f_bfree) * disk.f_frsize + ROOM_BYTES))
    else:
        largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        _, hard = resource.prlimit(cluster.pid(1), resource.RLIMIT_FSIZE)
        resource.prlimit(cluster.pid(1), resource.RLIMIT_FSIZE, (largest + ROOM_BYTES, hard))
    for number in range(MAX_WRITES):
        if cluster.has_ended(1):
            break
        note = pb.AcknowledgeAlert(run="notes", alert=f"long-{number % 10}", note="x" * 8000)
        cluster.client.write("Actions.Acknowledge", note, pb.AlertMark)
    run.until(lambda _: cluster.has_ended(1), "node 1 stops")
    return cluster.wait(1)


def _give_room(cluster: CoordinatorNodes, is_tmpfs: bool) -> None:
    if is_tmpfs:
        _remount(cluster.data_dir(1), LARGE)


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Whether the folder is now a separate file system."""
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or shutil.which("mount") is None or not _mount(folder):
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "paceline-lab", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _remount(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

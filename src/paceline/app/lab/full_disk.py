"""Scenario full-disk: a coordinator's disk is full. That node stops and says so, the others go on.

With root the node's folder is a small file system of its own (tmpfs); without,
the kernel is told that files of that node may not grow any further
(RLIMIT_FSIZE), and it meets the same error at the same place.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.app.lab.delays import not_delayed
from paceline.app.lab.expect import Expectation, exactly, told
from paceline.app.lab.nodes import Nodes, nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, events_of, training, usual_plan
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import ExitCode
from paceline.events.read import History

WORKERS, NODES = 3, 3
USUAL_TIMES = 2
LARGE = "64m"
ROOM_BYTES = 40_000  # that are left when it is to become full
MOST_WRITES = 2000


def full_disk(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    folder = run_dir / "coordinators"
    codes: list[int] = []
    reasons: list[bool] = []
    with _small_disk(folder / "node-1") as is_tmpfs:
        how = "a small tmpfs" if is_tmpfs else "RLIMIT_FSIZE, because mounting a tmpfs is not allowed here"
        say(f"node 1 gets a full disk by {how}")
        with nodes(folder, NODES) as cluster, training(plan, run_dir, cluster.place) as run:
            run.until_in(WORKERS, 0)
            began_ns = run.now_ns()
            cluster.client.write("Runs.Create", pb.CreateRun(run="notes", min_workers=1), pb.Run)
            for number in range(times):
                said = cluster.log_of(1).stat().st_size
                codes.append(_fill(cluster, run, is_tmpfs))
                reasons.append("cannot write" in cluster.log_of(1).read_text()[said:])
                _give_room(cluster, is_tmpfs)
                cluster.start(1)
                run.until(lambda _: cluster.is_up_to_date(1), "node 1 takes part again")
                say(
                    f"full disk {number + 1} of {times}: node 1 ended with exit code {codes[-1]}, and is back"
                )
                say.so_far(_judge(run.history(), codes, reasons, began_ns, run.now_ns()))
            ended_ns = run.now_ns()
            history = run.finish(30, early=True)
    found = [told("how the disk was made full", how), *_judge(history, codes, reasons, began_ns, ended_ns)]
    return [*say.settled(found), *proofs(run_dir, history, say)]


def _judge(
    history: History, codes: list[int], reasons: list[bool], began_ns: int, ended_ns: int
) -> list[Expectation]:
    return [
        exactly("exit codes of the node whose disk is full", sorted(set(codes)), [int(ExitCode.NOT_READY)]),
        exactly("times it said why", sum(reasons), len(reasons)),
        not_delayed(history, began_ns, ended_ns, "by a full disk"),
        exactly(
            "generations", len({e.fields["number"] for e in events_of(history, "generation_entered")}), 1
        ),
    ]


def _fill(cluster: Nodes, run: Training, is_tmpfs: bool) -> int:
    """Let others write until node 1 cannot; its exit code."""
    folder = cluster.data_dir(1)
    if is_tmpfs:
        disk = os.statvfs(folder)
        _remount(folder, str((disk.f_blocks - disk.f_bfree) * disk.f_frsize + ROOM_BYTES))
    else:
        largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        _, hard = resource.prlimit(cluster.pid(1), resource.RLIMIT_FSIZE)
        resource.prlimit(cluster.pid(1), resource.RLIMIT_FSIZE, (largest + ROOM_BYTES, hard))
    for number in range(MOST_WRITES):
        if cluster.has_ended(1):
            break
        note = pb.AcknowledgeAlert(run="notes", alert=f"long-{number % 10}", note="x" * 8000)
        cluster.client.write("Actions.Acknowledge", note, pb.AlertMark)
    run.until(lambda _: cluster.has_ended(1), "node 1 stops")
    return cluster.wait(1)


def _give_room(cluster: Nodes, is_tmpfs: bool) -> None:
    if is_tmpfs:
        _remount(cluster.data_dir(1), LARGE)


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Whether the folder is a file system of its own now."""
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

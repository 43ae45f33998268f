"""Scenario partition-coordinators: the leader is cut off with one worker. The others elect, and go on."""

from dataclasses import dataclass
from pathlib import Path

from paceline.app.lab.delays import longest_pause_s
from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.left_out import fenced_and_alive, until_left_out
from paceline.app.lab.nodes import Nodes, nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, training, usual_plan
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.client import UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.identity import Role
from paceline.events.read import History

WORKERS, NODES = 4, 3
USUAL_TIMES = 2
LONER = "worker-0"  # on the side of the minority
ASK_S = 1.5  # so long is the minority begged for an answer


@dataclass(slots=True)
class _Seen:
    left_out_s: float
    left_ns: int
    back_s: float
    minority_answers: int
    minority_commits: int


def partition_coordinators(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    seen: list[_Seen] = []
    with (
        nodes(run_dir / "coordinators", NODES, with_doors=True) as cluster,
        training(plan, run_dir, cluster.place) as run,
    ):
        run.until_in(WORKERS, 0)
        begun_ns = run.now_ns()
        for number in range(times):
            alone = cluster.leader()
            seen.append(_cut(cluster, run, alone))
            say(f"partition {number + 1} of {times}: node {alone} and {LONER} were cut off, and are back")
            say.so_far(_judge(run.history(), seen, begun_ns))
        leaders = {cluster.status(node).leader for node in cluster.addresses}
        history = run.finish(30, early=True)
    # Who follows whom is asked before the run ends, and judged with the rest.
    found = _judge(history, seen, begun_ns)
    found.insert(6, exactly("leaders that the nodes follow in the end", len(leaders), 1))
    return [*say.settled(found), *proofs(run_dir, history, say)]


def _judge(history: History, seen: list[_Seen], begun_ns: int) -> list[Expectation]:
    return [
        exactly("requests that the minority answered", sum(one.minority_answers for one in seen), 0),
        exactly("entries that the minority committed", sum(one.minority_commits for one in seen), 0),
        at_most(
            "the minority's worker is left out, at the latest", max(s.left_out_s for s in seen), 6.0, "s"
        ),
        at_most("the longest time without a committed step", longest_pause_s(history, begun_ns), 1.0, "s"),
        at_most("all are back after it is mended, at the latest", max(s.back_s for s in seen), 3.0, "s"),
        *fenced_and_alive(history, [(LONER, one.left_ns) for one in seen], WORKERS),
    ]


def _cut(cluster: Nodes, run: Training, alone: int) -> _Seen:
    assert cluster.lines is not None, "there are doors"
    others, pids = cluster.others(alone), run.pids()
    generation = run.until_in(WORKERS, 0)
    many = [cluster.pid(other) for other in others] + [pids[who] for who in pids if who != LONER]
    cut_ns = run.now_ns()
    cluster.lines.cut(many, [alone])
    cluster.lines.cut([cluster.pid(alone), pids[LONER]], others)
    before = cluster.status(alone).commit
    answers = _beg(cluster, alone)
    left_ns = until_left_out(run, LONER, generation)
    commits = cluster.status(alone).commit - before
    mended_ns = run.now_ns()
    cluster.lines.mend()
    run.until_in(WORKERS, generation)
    cluster.leader()
    return _Seen((left_ns - cut_ns) / 1e9, left_ns, (run.now_ns() - mended_ns) / 1e9, answers, commits)


def _beg(cluster: Nodes, node: int) -> int:
    """Ask the minority, and nobody else, to write something; how many answers came."""
    address = [cluster.addresses[node]]
    with BlockingClient(address, cluster.proof.of(Role.ADMIN), patience_s=ASK_S) as client:
        try:
            client.write("Runs.Create", pb.CreateRun(run=f"asked-of-{node}", min_workers=1), pb.Run)
        except UnreachableError:
            return 0
        return 1

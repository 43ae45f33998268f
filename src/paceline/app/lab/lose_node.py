"""Scenario lose-node-and-rejoin: half the workers and a coordinator node are gone at once, and come back.

The node stays away until the others have put a snapshot in the place of the log
that it would need: it must be brought up to date by that.
"""

import signal
from dataclasses import dataclass
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_least, at_most
from paceline.app.lab.kill_worker import gaps_s
from paceline.app.lab.nodes import Nodes, nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, training, usual_plan
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.events.read import History

WORKERS, NODES = 4, 3
USUAL_TIMES = 3
ENTRIES = 30  # that are written while the node is away


@dataclass(slots=True)
class _Loss:
    victims: set[int]
    at_ns: int
    whole_s: float  # until all workers train together again
    had: int  # entries that the node had when it was lost
    snapshot: int  # the index that the snapshot has which it was given


def lose_node(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    losses: list[_Loss] = []
    with nodes(run_dir / "coordinators", NODES) as cluster, training(plan, run_dir, cluster.place) as run:
        generation = run.until_in(WORKERS, 0)
        cluster.client.write("Runs.Create", pb.CreateRun(run="notes", min_workers=1), pb.Run)
        for number in range(times):
            # In turn the leader and a follower.
            node = cluster.leader() if number % 2 == 0 else cluster.others(cluster.leader())[0]
            victims = {number % WORKERS, (number + 2) % WORKERS}
            loss = _lose(cluster, run, node, victims, generation)
            losses.append(loss)
            generation = run.until_in(WORKERS, 0)
            say(
                f"loss {number + 1} of {times}: node {node} was behind at {loss.had}, "
                f"got a snapshot up to {loss.snapshot}; all workers were back after {loss.whole_s:.1f} s"
            )
            say.so_far(_judge(run.history(), losses))
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, losses)), *proofs(run_dir, history, say)]


def _judge(history: History, losses: list[_Loss]) -> list[Expectation]:
    gaps = [gap for loss in losses for gap in gaps_s(history, loss.victims, loss.at_ns, WORKERS)]
    return [
        at_most("survivors commit their next step after the loss, at the latest", max(gaps), 1.0, "s"),
        at_most("all workers train together again, at the latest", max(x.whole_s for x in losses), 5.0, "s"),
        at_least(
            "times the node came back by a snapshot", sum(x.snapshot > x.had for x in losses), len(losses)
        ),
    ]


def _lose(cluster: Nodes, run: Training, node: int, victims: set[int], generation: int) -> _Loss:
    had = cluster.status(node).last_index
    cluster.kill(node)
    at_ns = max(run.signal(f"worker-{victim}", signal.SIGKILL) for victim in sorted(victims))
    run.until_in(WORKERS, generation)
    whole_s = (run.now_ns() - at_ns) / 1e9
    for number in range(ENTRIES):
        note = pb.AcknowledgeAlert(run="notes", alert=f"note-{number}", note="x")
        cluster.client.write("Actions.Acknowledge", note, pb.AlertMark)
    for other in cluster.others(node):
        cluster.client.of_node(cluster.addresses[other], "Snapshot", pb.SnapshotRequest())
    cluster.start(node)
    run.until(lambda _: cluster.is_up_to_date(node), f"node {node} takes part again")
    return _Loss(victims, at_ns, whole_s, had, cluster.status(node).snapshot_index)

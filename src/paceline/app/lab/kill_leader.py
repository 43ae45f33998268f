"""Scenario kill-leader: `kill -9` of the node that leads the coordinators. Training does not notice."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly, percentile
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import commits_ns, events_of, training, usual_plan
from paceline.events.read import History

WORKERS, NODES = 3, 3
USUAL_TIMES = 5
WATCH_S = 1.0  # so long is training watched after each kill


def kill_leader(run_dir: Path, times: int, say: Callable[[str], None]) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    kills_ns: list[int] = []
    with nodes(run_dir / "coordinators", NODES) as cluster, training(plan, run_dir, cluster.place) as run:
        run.until_in(WORKERS, 0)
        run.wait(WATCH_S)
        for number in range(times):
            leader = cluster.leader()
            kills_ns.append(run.now_ns())
            cluster.kill(leader)
            new = cluster.leader()
            run.wait(WATCH_S)
            cluster.start(leader)
            say(f"kill {number + 1} of {times}: node {leader} led, node {new} leads now")
        history = run.finish(30, early=True)
    delays_s = [delay for at_ns in kills_ns for delay in _delays_s(history, at_ns)]
    return [
        at_most("a training step is delayed after a kill by, at the latest", max(delays_s), 0.25, "s"),
        exactly(
            "generations", len({e.fields["number"] for e in events_of(history, "generation_entered")}), 1
        ),
        *proofs(run_dir, history),
    ]


def _delays_s(history: History, at_ns: int) -> list[float]:
    """For each worker: the longest time between two commits near the kill, beyond the usual one."""
    found = []
    for rank in history.steps:
        gaps = [(later, (later - sooner) / 1e9) for sooner, later in pairwise(commits_ns(history, rank))]
        usual_s = percentile([gap for _, gap in gaps], 0.5)
        near = [gap for later, gap in gaps if at_ns <= later <= at_ns + WATCH_S * 1e9]
        found.append(max(near, default=float("inf")) - usual_s)
    return found

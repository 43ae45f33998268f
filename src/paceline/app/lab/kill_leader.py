"""Scenario kill-leader: `kill -9` of the node that leads the coordinators. Training does not notice."""

from collections.abc import Callable
from pathlib import Path

from paceline.app.lab.delays import not_delayed
from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import events_of, training, usual_plan

WORKERS, NODES = 3, 3
USUAL_TIMES = 5
WATCH_S = 1.0  # so long is training let go on after each kill


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
        watched_ns = run.now_ns()
        history = run.finish(30, early=True)
    return [
        # From the first kill to the end, not only near each: an election also ends later than its cause.
        not_delayed(history, kills_ns[0], watched_ns, f"after {times} kills"),
        exactly(
            "generations", len({e.fields["number"] for e in events_of(history, "generation_entered")}), 1
        ),
        *proofs(run_dir, history),
    ]

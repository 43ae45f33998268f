"""Scenario kill-leader: `kill -9` of the node that leads the coordinators. Training does not notice."""

from pathlib import Path

from paceline.app.lab.delays import not_delayed
from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import events_of, training, usual_plan
from paceline.events.read import History

WORKERS, NODES = 3, 3
USUAL_TIMES = 5
WATCH_S = 1.0  # so long is training let go on after each kill


def kill_leader(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
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
            say.so_far(_judge(run.history(), kills_ns, run.now_ns()))
        watched_ns = run.now_ns()
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, kills_ns, watched_ns)), *proofs(run_dir, history, say)]


def _judge(history: History, kills_ns: list[int], until_ns: int) -> list[Expectation]:
    return [
        # From the first kill to the end, not only near each: an election also ends later than its cause.
        not_delayed(history, kills_ns[0], until_ns, "by the loss of the leader"),
        exactly(
            "generations", len({e.fields["number"] for e in events_of(history, "generation_entered")}), 1
        ),
    ]

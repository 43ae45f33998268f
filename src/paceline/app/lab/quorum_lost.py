"""Scenario quorum-lost: two of three coordinators die. Training goes on, says so, and nothing is undone."""

from itertools import pairwise
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, commits_ns, events_of, training, usual_plan
from paceline.events.read import History

WORKERS, NODES = 3, 3
USUAL_TIMES = 1
WITHOUT_S = 3.0  # after it was said
AFTER_S = 4.0  # longer than a lease: whoever was given up by mistake would be gone
SILENT, BACK = "the coordinator does not answer", "the coordinator answers again"


def quorum_lost(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    longest_s = 0.0
    with nodes(run_dir / "coordinators", NODES) as cluster, training(plan, run_dir, cluster.place) as run:
        run.until_in(WORKERS, 0)
        for number in range(times):
            leader = cluster.leader()
            victims = [leader, next(node for node in cluster.addresses if node != leader)]
            struck_ns = run.now_ns()
            for node in victims:
                cluster.kill(node)
            _until_said(run, SILENT, number + 1)
            run.wait(WITHOUT_S)
            longest_s = max(longest_s, _longest_gap_s(run.history(), struck_ns))
            for node in victims:
                cluster.start(node)
            _until_said(run, BACK, number + 1)
            run.wait(AFTER_S)
            say(f"loss {number + 1} of {times}: nodes {victims} died, and are back")
            say.so_far(_judge(run.history(), longest_s, number + 1))
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, longest_s, times)), *proofs(run_dir, history, say)]


def _judge(history: History, longest_s: float, times: int) -> list[Expectation]:
    numbers = {event.fields["number"] for event in events_of(history, "generation_entered")}
    return [
        at_most("the longest time without a committed step meanwhile", longest_s, 1.0, "s"),
        exactly("times that it was said", (_said(history, SILENT), _said(history, BACK)), (times, times)),
        exactly("generations", len(numbers), 1),
    ]


def _until_said(run: Training, text: str, times: int) -> None:
    run.until(lambda history: _said(history, text) >= times, f"it is said that {text}")


def _said(history: History, text: str) -> int:
    return sum(text in str(event.fields["decision"]) for event in events_of(history, "supervision"))


def _longest_gap_s(history: History, since_ns: int) -> float:
    """Between two commits of any worker, until its log was last written."""
    found = 0.0
    for rank in history.steps:
        commits = [since_ns, *(at for at in commits_ns(history, rank) if at > since_ns)]
        gaps = [later - sooner for sooner, later in pairwise(commits)]
        found = max([found, *(gap / 1e9 for gap in gaps)])
    return found

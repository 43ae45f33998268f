"""Scenario partition-workers: a worker reaches no coordinator. Left out, fenced, and back when it does."""

from collections.abc import Callable
from pathlib import Path

from paceline.app.lab.delays import longest_pause_s
from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.left_out import fenced_commits, until_left_out
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import events_of, training, usual_plan

WORKERS, NODES = 4, 3
USUAL_TIMES = 3
ALONE_S = 0.5  # so long it stays cut off after the others have gone on


def partition_workers(run_dir: Path, times: int, say: Callable[[str], None]) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    left: list[tuple[str, int]] = []
    noticed_s, back_s = [], []
    with (
        nodes(run_dir / "coordinators", NODES, with_doors=True) as cluster,
        training(plan, run_dir, cluster.place) as run,
    ):
        assert cluster.lines is not None, "there are doors"
        generation = run.until_in(WORKERS, 0)
        begun_ns = run.now_ns()
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            cut_ns = run.now_ns()
            cluster.lines.cut([run.pids()[victim]], cluster.addresses)
            left.append((victim, until_left_out(run, victim, generation)))
            noticed_s.append((left[-1][1] - cut_ns) / 1e9)
            run.wait(ALONE_S)
            mended_ns = run.now_ns()
            cluster.lines.mend()
            generation = run.until_in(WORKERS, generation)
            back_s.append((run.now_ns() - mended_ns) / 1e9)
            say(f"cut {number + 1} of {times}: {victim} was left out and is back")
        history = run.finish(30, early=True)
    return [
        at_most("a worker that is cut off is left out, at the latest", max(noticed_s), 5.0, "s"),
        at_most("it is back after its line is mended, at the latest", max(back_s), 3.0, "s"),
        at_most("the longest time without a committed step", longest_pause_s(history, begun_ns), 1.0, "s"),
        exactly(
            "steps that it committed while left out", sum(fenced_commits(history, *one) for one in left), 0
        ),
        exactly("processes that were restarted", len(events_of(history, "worker_started")) - WORKERS, 0),
        *proofs(run_dir, history),
    ]

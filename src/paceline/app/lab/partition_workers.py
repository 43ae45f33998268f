"""Scenario partition-workers: a worker reaches no coordinator. Left out, fenced, and back when it does."""

from pathlib import Path

from paceline.app.lab.delays import longest_pause_s
from paceline.app.lab.expect import Expectation, at_most
from paceline.app.lab.left_out import LeftOut, fenced_and_alive, until_left_out
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import training, usual_plan
from paceline.events.read import History

WORKERS, NODES = 4, 3
USUAL_TIMES = 3
ALONE_S = 0.5  # so long it stays cut off after the others have gone on


def partition_workers(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    seen: list[LeftOut] = []
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
            left_ns = until_left_out(run, victim, generation)
            run.wait(ALONE_S)
            mended_ns = run.now_ns()
            cluster.lines.mend()
            generation = run.until_in(WORKERS, generation)
            back_s = (run.now_ns() - mended_ns) / 1e9
            seen.append(LeftOut(victim, left_ns, (left_ns - cut_ns) / 1e9, back_s))
            say(f"cut {number + 1} of {times}: {victim} was left out and is back")
            say.so_far(_judge(run.history(), seen, begun_ns))
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, seen, begun_ns)), *proofs(run_dir, history, say)]


def _judge(history: History, seen: list[LeftOut], begun_ns: int) -> list[Expectation]:
    noticed_s, back_s = max(s.noticed_s for s in seen), max(s.back_s for s in seen)
    return [
        at_most("a worker that is cut off is left out, at the latest", noticed_s, 5.0, "s"),
        at_most("it is back after its line is mended, at the latest", back_s, 3.0, "s"),
        at_most("the longest time without a committed step", longest_pause_s(history, begun_ns), 1.0, "s"),
        *fenced_and_alive(history, [(s.victim, s.left_ns) for s in seen], WORKERS),
    ]

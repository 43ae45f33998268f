"""Scenario kill-two: two workers die in the same instant; the others go on, and both are replaced."""

import signal
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most
from paceline.app.lab.kill_worker import gaps_s
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import training, usual_plan
from paceline.events.read import History

WORKERS = 4
USUAL_TIMES = 3


def kill_two(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    kills: list[tuple[set[int], int]] = []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victims = {number % WORKERS, (number + 1) % WORKERS}
            at_ns = [run.signal(f"worker-{victim}", signal.SIGKILL) for victim in victims]
            kills.append((victims, max(at_ns)))
            generation = run.until_in(WORKERS, generation)
            say(f"double kill {number + 1} of {times}: both were replaced")
            say.so_far(_judge(run.history(), kills))
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, kills)), *proofs(run_dir, history, say)]


def _judge(history: History, kills: list[tuple[set[int], int]]) -> list[Expectation]:
    gaps = [gap for victims, at_ns in kills for gap in gaps_s(history, victims, at_ns, WORKERS)]
    return [
        at_most(
            "survivors commit their next step after two kills at once, at the latest", max(gaps), 1.0, "s"
        )
    ]

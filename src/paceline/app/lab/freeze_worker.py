"""Scenario freeze-worker: SIGSTOP, as a hanging machine would. Left out, fenced, and back when it wakes."""

import signal
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most
from paceline.app.lab.left_out import LeftOut, fenced_and_alive, until_left_out
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import training, usual_plan
from paceline.events.read import History

WORKERS = 4
USUAL_TIMES = 2


def freeze_worker(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    seen: list[LeftOut] = []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            frozen_ns = run.signal(victim, signal.SIGSTOP)
            left_ns = until_left_out(run, victim, generation)
            woken_ns = run.signal(victim, signal.SIGCONT)
            generation = run.until_in(WORKERS, generation)
            back_s = (run.now_ns() - woken_ns) / 1e9
            seen.append(LeftOut(victim, left_ns, (left_ns - frozen_ns) / 1e9, back_s))
            say(f"freeze {number + 1} of {times}: {victim} was left out and is back")
            say.so_far(_judge(run.history(), seen))
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, seen)), *proofs(run_dir, history, say)]


def _judge(history: History, seen: list[LeftOut]) -> list[Expectation]:
    return [
        at_most("a frozen worker is left out, at the latest", max(s.noticed_s for s in seen), 5.0, "s"),
        at_most("it is back after it wakes, at the latest", max(s.back_s for s in seen), 3.0, "s"),
        *fenced_and_alive(history, [(s.victim, s.left_ns) for s in seen], WORKERS),
    ]

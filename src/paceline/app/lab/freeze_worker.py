"""Scenario freeze-worker: SIGSTOP, as a hanging machine would. Left out, fenced, and back when it wakes."""

import signal
from collections.abc import Callable
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.left_out import fenced_commits, until_left_out
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import events_of, training, usual_plan

WORKERS = 4
USUAL_TIMES = 2


def freeze_worker(run_dir: Path, times: int, say: Callable[[str], None]) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    noticed_s, back_s = [], []
    left: list[tuple[str, int]] = []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            frozen_ns = run.signal(victim, signal.SIGSTOP)
            left.append((victim, until_left_out(run, victim, generation)))
            noticed_s.append((left[-1][1] - frozen_ns) / 1e9)
            woken_ns = run.signal(victim, signal.SIGCONT)
            generation = run.until_in(WORKERS, generation)
            back_s.append((run.now_ns() - woken_ns) / 1e9)
            say(f"freeze {number + 1} of {times}: {victim} was left out and is back")
        history = run.finish(30, early=True)
    return [
        at_most("a frozen worker is left out, at the latest", max(noticed_s), 5.0, "s"),
        at_most("it is back after it wakes, at the latest", max(back_s), 3.0, "s"),
        exactly(
            "steps that it committed while left out", sum(fenced_commits(history, *one) for one in left), 0
        ),
        exactly("processes that were restarted", len(events_of(history, "worker_started")) - WORKERS, 0),
        *proofs(run_dir, history),
    ]

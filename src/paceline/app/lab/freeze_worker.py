"""Scenario freeze-worker: SIGSTOP, as a hanging machine would. Left out, fenced, and back when it wakes."""

import signal
from collections.abc import Callable
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import Training, events_of, training, usual_plan
from paceline.events.read import History

WORKERS = 4
USUAL_TIMES = 2


def freeze_worker(run_dir: Path, times: int, say: Callable[[str], None]) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    noticed_s, back_s = [], []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            frozen_ns = run.signal(victim, signal.SIGSTOP)
            noticed_s.append((_until_left_out(run, victim, generation) - frozen_ns) / 1e9)
            woken_ns = run.signal(victim, signal.SIGCONT)
            generation = run.until_in(WORKERS, generation)
            back_s.append((run.now_ns() - woken_ns) / 1e9)
            say(f"freeze {number + 1} of {times}: {victim} was left out and is back")
        history = run.finish(30, early=True)
    return [
        at_most("a frozen worker is left out, at the latest", max(noticed_s), 5.0, "s"),
        at_most("it is back after it wakes, at the latest", max(back_s), 3.0, "s"),
        exactly("processes that were restarted", len(events_of(history, "worker_started")) - WORKERS, 0),
        *proofs(run_dir, history),
    ]


def _until_left_out(run: Training, victim: str, after: int) -> int:
    """When that was."""
    run.until(lambda history: _without(history, victim, after) is not None, f"{victim} is left out")
    noticed_ns = _without(run.history(), victim, after)
    assert noticed_ns is not None, "it was just seen"
    return noticed_ns


def _without(history: History, victim: str, after: int) -> int | None:
    """When the others entered a generation without it."""
    found = [
        event.at_ns
        for event in events_of(history, "generation_entered")
        if int(str(event.fields["number"])) > after and victim not in str(event.fields["workers"]).split(",")
    ]
    return min(found, default=None)

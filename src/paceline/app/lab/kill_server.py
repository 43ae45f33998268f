"""Scenario kill-server: `kill -9` of the primary parameter server; its backup takes over."""

import math
import signal
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly, percentile
from paceline.app.lab.proof import proofs
from paceline.app.lab.served import applied_ns, is_guarded, primary
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, events_of, training, usual_plan
from paceline.events.read import History

WORKERS = 3
USUAL_TIMES = 6
BETWEEN_S = 0.3


def kill_server(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000, pace_s=0.02, mode="asgd")
    with training(plan, run_dir) as run:
        kills_ns = _kill(run, times, say)
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, kills_ns)), *proofs(run_dir, history, say)]


def _judge(history: History, kills_ns: list[int]) -> list[Expectation]:
    applied = applied_ns(history)
    gaps_s = [min((at - kill for at in applied if at > kill), default=math.inf) / 1e9 for kill in kills_ns]
    return [
        at_most("the next update after a kill of the primary, p95", percentile(gaps_s, 0.95), 1.0, "s"),
        exactly("promotions", len(events_of(history, "server_promoted")), len(kills_ns)),
        exactly("workers that were restarted", _workers_started(history) - WORKERS, 0),
    ]


def _kill(run: Training, times: int, say: Telling) -> list[int]:
    kills_ns: list[int] = []
    for number in range(times):
        run.until(is_guarded, "a primary has a backup")
        run.wait(BETWEEN_S)
        who = primary(run.live())
        kills_ns.append(run.signal(who, signal.SIGKILL))
        run.until(lambda history: _promotions(history) == len(kills_ns), "the backup takes over")
        say(f"kill {number + 1} of {times}: {who}, and {primary(run.live())} took over")
        say.so_far(_judge(run.history(), kills_ns))
    run.until(is_guarded, "a primary has a backup")
    run.wait(BETWEEN_S)
    return kills_ns


def _promotions(history: History) -> int:
    return len(events_of(history, "server_promoted"))


def _workers_started(history: History) -> int:
    return sum(event.who.startswith("worker-") for event in events_of(history, "worker_started"))

"""Scenario kill-worker: `kill -9` of one worker after another; the others go on within a blink."""

import signal
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly, percentile
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import Training, commits_ns, events_of, training, usual_plan
from paceline.events.read import History

WORKERS = 4
USUAL_TIMES = 8
BETWEEN_S = 0.3


def kill_worker(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    with training(plan, run_dir) as run:
        kills = _kill(run, times, say)
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, kills)), *proofs(run_dir, history, say)]


def _judge(history: History, kills: list[tuple[int, int]]) -> list[Expectation]:
    gaps = [gap for victim, at_ns in kills for gap in gaps_s(history, {victim}, at_ns, WORKERS)]
    return [
        at_most("survivors commit their next step after a kill, p95", percentile(gaps, 0.95), 0.25, "s"),
        at_most("the same, p99", percentile(gaps, 0.99), 1.0, "s"),
        exactly("survivors that were restarted", _restarted(history) - len(kills), 0),
        at_most("steps that a survivor computed again after a kill", _repeated(history), 1, "steps"),
        exactly("generations that were entered with different bits", _different(history), 0),
    ]


def _kill(run: Training, times: int, say: Telling) -> list[tuple[int, int]]:
    """Each worker in turn; (whom, when)."""
    kills, generation = [], run.until_in(WORKERS, 0)
    for number in range(times):
        victim = number % WORKERS
        run.wait(BETWEEN_S)
        kills.append((victim, run.signal(f"worker-{victim}", signal.SIGKILL)))
        generation = run.until_in(WORKERS, generation)
        say(f"kill {number + 1} of {times}: worker-{victim} was replaced")
        say.so_far(_judge(run.history(), kills))
    return kills


def gaps_s(history: History, victims: set[int], at_ns: int, workers: int) -> list[float]:
    """For each survivor, from the kill to its next commit; infinity when there was none."""
    found = []
    for rank in set(range(workers)) - victims:
        later = [end for end in commits_ns(history, rank) if end > at_ns]
        found.append((later[0] - at_ns) / 1e9 if later else float("inf"))
    return found


def _different(history: History) -> int:
    """Whoever joins has taken the state from another, and must have it to the last bit."""
    states: dict[str, set[str]] = {}
    for event in events_of(history, "generation_entered"):
        states.setdefault(str(event.fields["number"]), set()).add(str(event.fields["state"]))
    return sum(len(found) > 1 for found in states.values())


def _restarted(history: History) -> int:
    return len(events_of(history, "worker_started")) - WORKERS


def _repeated(history: History) -> int:
    """At most how many steps one worker made again in one generation."""
    most = 0
    for rank, rows in history.steps.items():
        lost = [e for e in events_of(history, "generation_lost") if e.who == f"worker-{rank}"]
        for event in lost:
            committed = int(str(event.fields["committed"]))
            before = {row.position // WORKERS for row in rows if row.start_ns < event.at_ns}
            most = max(most, len([step for step in before if step >= committed]))
    return most

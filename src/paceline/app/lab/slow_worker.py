"""Scenario slow-worker: one worker gets slower and slower. It is found, and given less to do."""

from dataclasses import replace
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import commits_ns, end_ns, events_of, training, usual_plan
from paceline.events.read import History
from paceline.plan.plan import Elastic, OnSlow, Plan
from paceline.sync.stragglers import StragglerRule

WORKERS, SHARDS = 5, 20
PACE_S = 0.02  # for a shard: sleeping, so that five workers are as fast as five machines
SLOW, FACTOR = 2, 10.0
FROM, OVER = 40, 30  # steps in good health, and steps until it is so slow
SETTLED_S = 3.0  # once it is as slow as can be
WATCH_S = 8.0
USUAL_TIMES = 1


def slow_worker(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    found: list[Expectation] = []
    for number in range(times):
        folder = run_dir if times == 1 else run_dir / str(number + 1)
        found += _once(folder, say)
        say(f"slow worker {number + 1} of {times}")
    return found


def slow_plan() -> Plan:
    elastic = Elastic(workers=WORKERS, min_workers=1, max_workers=WORKERS, on_slow=OnSlow.REBALANCE)
    rule = StragglerRule(worker=SLOW, factor=FACTOR, first_step=FROM, ramp=OVER)
    usual = usual_plan(workers=SHARDS, steps=1_000_000, pace_s=PACE_S)
    return replace(usual, elastic=elastic, stragglers=(rule,))


def _once(run_dir: Path, say: Telling) -> list[Expectation]:
    with training(slow_plan(), run_dir) as run:
        run.until_in(WORKERS, 0)
        run.until(_is_flagged, f"worker-{SLOW} is found")
        history = run.history()
        say(str(events_of(history, "slow_worker")[0].fields["reason"]))
        if _is_slowed(history):  # its rows come a moment later than that it was found
            say.so_far(_flagged(history))
        run.until(lambda history: _furthest(history) > FROM + OVER, "it is as slow as can be")
        run.wait(SETTLED_S + WATCH_S)
        history = run.finish(30, early=True)
    began_ns = _began_ns(history)
    soon, wrong = _flagged(history)
    share = _rate(history, *_last_ns(history)) / _rate(history, *_healthy_ns(history, began_ns))
    found = [
        soon,
        at_least("throughput afterwards, of what it was in good health", share, 0.7),
        wrong,
        exactly("workers that were restarted", len(events_of(history, "worker_started")) - WORKERS, 0),
    ]
    return [*say.settled(found), *proofs(run_dir, history, say)]


def _flagged(history: History) -> list[Expectation]:
    """Who was found slow, and how soon."""
    flagged = events_of(history, "slow_worker")
    took_s = _s(flagged[0].at_ns - _began_ns(history))
    wrong = [event.fields["worker"] for event in flagged if event.fields["worker"] != f"worker-{SLOW}"]
    return [
        at_most("the slow worker is found after it begins to be slow", took_s, 5.0, "s"),
        exactly("workers that were found slow and are not", len(wrong), 0),
    ]


def at_least(what: str, measured: float, limit: float) -> Expectation:
    return Expectation(what, f"at least {limit:g}", f"{measured:.3g}", measured >= limit)


def _is_flagged(history: History) -> bool:
    return any(event.fields["worker"] == f"worker-{SLOW}" for event in events_of(history, "slow_worker"))


def _is_slowed(history: History) -> bool:
    return any(row.position >= FROM * SHARDS for row in history.steps.get(SLOW, []))


def _began_ns(history: History) -> int:
    """When the slow worker began its first slowed gradient."""
    return next(row.start_ns for row in history.steps[SLOW] if row.position >= FROM * SHARDS)


def _furthest(history: History) -> int:
    return max((row.position // SHARDS for row in history.steps.get(0, [])), default=0)


def _healthy_ns(history: History, began_ns: int) -> tuple[int, int]:
    """The second half of the time before: the first steps of a process are slower."""
    first = min(end_ns(row) for rows in history.steps.values() for row in rows)
    return (first + began_ns) // 2, began_ns


def _last_ns(history: History) -> tuple[int, int]:
    last = max(commits_ns(history, 0))
    return last - int(WATCH_S * 1e9), last


def _rate(history: History, start_ns: int, end: int) -> float:
    """Steps in a second, by the commits of a worker that is not slow."""
    commits = [at for at in commits_ns(history, 0) if start_ns <= at <= end]
    return (len(commits) - 1) / _s(commits[-1] - commits[0])


def _s(duration_ns: int) -> float:
    return duration_ns / 1e9

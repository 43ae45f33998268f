"""Scenarios of worker and server failures: kill-worker, kill-two, freeze-worker, kill-server, slow-worker."""

import math
import signal
from dataclasses import replace
from pathlib import Path

from paceline.events.read import History
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, at_most, exactly, percentile
from paceline.faults.scenarios.measurements import (
    Exclusion,
    applied_ns,
    fenced_and_alive,
    is_guarded,
    primary,
    proofs,
    wait_until_excluded,
)
from paceline.faults.scenarios.training import (
    TrainingRun,
    commits_ns,
    default_plan,
    end_ns,
    events_of,
    training,
)
from paceline.plan.plan import Elastic, OnSlow, Plan
from paceline.sync.fault_rules import StragglerRule

WORKERS = 4
KILL_WORKER_TIMES = 8
BETWEEN_S = 0.3


def kill_worker(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    with training(plan, run_dir) as run:
        kills = _kill(run, times, reporter)
        history = run.finish(30, early=True)
    return [*reporter.settled(_judge(history, kills)), *proofs(run_dir, history, reporter)]


def _judge(history: History, kills: list[tuple[int, int]]) -> list[Expectation]:
    gaps = [gap for victim, at_ns in kills for gap in gaps_s(history, {victim}, at_ns, WORKERS)]
    return [
        at_most("survivors commit their next step after a kill, p95", percentile(gaps, 0.95), 0.25, "s"),
        at_most("the same, p99", percentile(gaps, 0.99), 1.0, "s"),
        exactly("no survivor is restarted", _restarted(history) - len(kills), 0),
        at_most("a survivor repeats at most one step after a kill", _repeated(history), 1, "steps"),
        exactly("all workers enter a generation with equal parameters", _different(history), 0),
    ]


def _kill(run: TrainingRun, times: int, reporter: ScenarioReporter) -> list[tuple[int, int]]:
    """Kill the workers one after another; returns (worker, time)."""
    kills = []
    generation = run.until_in(WORKERS, 0)
    for number in range(times):
        victim = number % WORKERS
        run.wait(BETWEEN_S)
        kills.append((victim, run.signal(f"worker-{victim}", signal.SIGKILL)))
        generation = run.until_in(WORKERS, generation)
        reporter(f"kill {number + 1} of {times}: worker-{victim} was replaced")
        reporter.so_far(_judge(run.history(), kills))
    return kills


def gaps_s(history: History, victims: set[int], at_ns: int, workers: int) -> list[float]:
    """For each survivor, from the kill to its next commit; infinity when there was none."""
    gaps = []
    for rank in set(range(workers)) - victims:
        later = [end for end in commits_ns(history, rank) if end > at_ns]
        gaps.append((later[0] - at_ns) / 1e9 if later else float("inf"))
    return gaps


def _different(history: History) -> int:
    """Generations whose members differ: a joiner must have copied the state exactly."""
    states: dict[str, set[str]] = {}
    for event in events_of(history, "generation_entered"):
        states.setdefault(str(event.fields["number"]), set()).add(str(event.fields["state"]))
    return sum(len(hashes) > 1 for hashes in states.values())


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


KILL_TWO_TIMES = 3


def kill_two(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    kills: list[tuple[set[int], int]] = []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victims = {number % WORKERS, (number + 1) % WORKERS}
            at_ns = [run.signal(f"worker-{victim}", signal.SIGKILL) for victim in victims]
            kills.append((victims, max(at_ns)))
            generation = run.until_in(WORKERS, generation)
            reporter(f"double kill {number + 1} of {times}: both were replaced")
            reporter.so_far(_kill_two_judge(run.history(), kills))
        history = run.finish(30, early=True)
    return [*reporter.settled(_kill_two_judge(history, kills)), *proofs(run_dir, history, reporter)]


def _kill_two_judge(history: History, kills: list[tuple[set[int], int]]) -> list[Expectation]:
    gaps = [gap for victims, at_ns in kills for gap in gaps_s(history, victims, at_ns, WORKERS)]
    return [at_most("survivors commit their next step after two kills at once, maximum", max(gaps), 1.0, "s")]


FREEZE_WORKER_TIMES = 2


def freeze_worker(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    seen: list[Exclusion] = []
    with training(plan, run_dir) as run:
        generation = run.until_in(WORKERS, 0)
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            frozen_ns = run.signal(victim, signal.SIGSTOP)
            left_ns = wait_until_excluded(run, victim, generation)
            woken_ns = run.signal(victim, signal.SIGCONT)
            generation = run.until_in(WORKERS, generation)
            back_s = (run.now_ns() - woken_ns) / 1e9
            seen.append(Exclusion(victim, left_ns, (left_ns - frozen_ns) / 1e9, back_s))
            reporter(f"freeze {number + 1} of {times}: {victim} was left out and is back")
            reporter.so_far(_freeze_worker_judge(run.history(), seen))
        history = run.finish(30, early=True)
    return [*reporter.settled(_freeze_worker_judge(history, seen)), *proofs(run_dir, history, reporter)]


def _freeze_worker_judge(history: History, seen: list[Exclusion]) -> list[Expectation]:
    return [
        at_most("a frozen worker is excluded, maximum", max(s.noticed_s for s in seen), 5.0, "s"),
        at_most("it is back after it resumes, maximum", max(s.back_s for s in seen), 3.0, "s"),
        *fenced_and_alive(history, [(s.victim, s.left_ns) for s in seen], WORKERS),
    ]


KILL_SERVER_WORKERS = 3
KILL_SERVER_TIMES = 6


def kill_server(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=KILL_SERVER_WORKERS, steps=1_000_000, pace_s=0.02, mode="asgd")
    with training(plan, run_dir) as run:
        kills_ns = _kill_server_kill(run, times, reporter)
        history = run.finish(30, early=True)
    return [*reporter.settled(_kill_server_judge(history, kills_ns)), *proofs(run_dir, history, reporter)]


def _kill_server_judge(history: History, kills_ns: list[int]) -> list[Expectation]:
    applied = applied_ns(history)
    gaps_s = [min((at - kill for at in applied if at > kill), default=math.inf) / 1e9 for kill in kills_ns]
    return [
        at_most("updates continue after a kill of the primary, p95", percentile(gaps_s, 0.95), 1.0, "s"),
        exactly(
            "every kill leads to one promotion", len(events_of(history, "server_promoted")), len(kills_ns)
        ),
        exactly("no worker is restarted", _workers_started(history) - KILL_SERVER_WORKERS, 0),
    ]


def _kill_server_kill(run: TrainingRun, times: int, reporter: ScenarioReporter) -> list[int]:
    kills_ns: list[int] = []
    for number in range(times):
        run.until(is_guarded, "a primary has a backup")
        run.wait(BETWEEN_S)
        victim = primary(run.live())
        kills_ns.append(run.signal(victim, signal.SIGKILL))
        run.until(lambda history: _promotions(history) == len(kills_ns), "the backup takes over")
        reporter(f"kill {number + 1} of {times}: {victim}, and {primary(run.live())} took over")
        reporter.so_far(_kill_server_judge(run.history(), kills_ns))
    run.until(is_guarded, "a primary has a backup")
    run.wait(BETWEEN_S)
    return kills_ns


def _promotions(history: History) -> int:
    return len(events_of(history, "server_promoted"))


def _workers_started(history: History) -> int:
    return sum(event.who.startswith("worker-") for event in events_of(history, "worker_started"))


SLOW_WORKERS = 5
SHARDS = 20
PACE_S = 0.02  # for a shard: sleeping, so that five workers are as fast as five machines
SLOW = 2
FACTOR = 10.0
FROM = 40  # steps at full speed
OVER = 30  # steps until the worker is slow by FACTOR
SETTLED_S = 3.0  # once it is as slow as can be
WATCH_S = 8.0
SLOW_WORKER_TIMES = 1


def slow_worker(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    expectations: list[Expectation] = []
    for number in range(times):
        folder = run_dir if times == 1 else run_dir / str(number + 1)
        expectations += _once(folder, reporter)
        reporter(f"slow worker {number + 1} of {times}")
    return expectations


def slow_plan() -> Plan:
    elastic = Elastic(workers=SLOW_WORKERS, min_workers=1, max_workers=SLOW_WORKERS, on_slow=OnSlow.REBALANCE)
    rule = StragglerRule(worker=SLOW, factor=FACTOR, first_step=FROM, ramp=OVER)
    default = default_plan(workers=SHARDS, steps=1_000_000, pace_s=PACE_S)
    return replace(default, elastic=elastic, stragglers=(rule,))


def _once(run_dir: Path, reporter: ScenarioReporter) -> list[Expectation]:
    with training(slow_plan(), run_dir) as run:
        run.until_in(SLOW_WORKERS, 0)
        run.until(_is_flagged, f"worker-{SLOW} is found")
        history = run.history()
        reporter(str(events_of(history, "slow_worker")[0].fields["reason"]))
        if _is_slowed(history):  # its rows come a moment later than that it was found
            reporter.so_far(_flagged(history))
        run.until(lambda history: _furthest(history) > FROM + OVER, "it is as slow as can be")
        run.wait(SETTLED_S + WATCH_S)
        history = run.finish(30, early=True)
    began_ns = _began_ns(history)
    soon, wrong = _flagged(history)
    share = _rate(history, *_last_ns(history)) / _rate(history, *_healthy_ns(history, began_ns))
    expectations = [
        soon,
        share_at_least("throughput recovers, share of the throughput before", share, 0.7),
        wrong,
        exactly("no worker is restarted", len(events_of(history, "worker_started")) - SLOW_WORKERS, 0),
    ]
    return [*reporter.settled(expectations), *proofs(run_dir, history, reporter)]


def _flagged(history: History) -> list[Expectation]:
    """Who was found slow, and how soon."""
    flagged = events_of(history, "slow_worker")
    took_s = _s(flagged[0].at_ns - _began_ns(history))
    wrong = [event.fields["worker"] for event in flagged if event.fields["worker"] != f"worker-{SLOW}"]
    return [
        at_most("the slow worker is detected", took_s, 5.0, "s"),
        exactly("no other worker is reported as slow", len(wrong), 0),
    ]


def share_at_least(promise: str, measured: float, limit: float) -> Expectation:
    return Expectation(promise, f"at least {limit:g}", f"{measured:.3g}", measured >= limit)


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

"""Throughput with uneven workers against the theoretical limit: eight that mostly sleep, really run.

asgd: no worker waits, so the rate is at most the sum of 1/t_i. ssgd: all workers
wait for the slowest of each step, so it is at most N / E[max t_i]. Worker i
sleeps t_i per step, between one and two times the pace.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio
from paceline.events.read import History, read_history
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan, Transport
from paceline.sync.fault_rules import StragglerRule, Stragglers
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

WORKERS, PACE_S, STEPS = 8, 0.1, 60


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    steady = tuple(StragglerRule(worker=r, factor=1 + r / WORKERS) for r in range(WORKERS))
    random = (StragglerRule(probability=0.1, factor=3.0),)
    asgd = tuple(_asgd(launcher, steady) for _ in range(rounds))
    text = f"{WORKERS} workers, {PACE_S * 1e3:.0f} ms pace"
    yield Ratio(
        name="asgd rate ÷ Σ 1/tᵢ", goal=0.98, at_least=True, rounds=asgd, detail=f"{text}, factors 1 … 1.9"
    )
    ssgd = tuple(_ssgd(launcher, random, seed) for seed in range(rounds))
    yield Ratio(
        name="ssgd rate ÷ N/E[max]", goal=0.98, at_least=True, rounds=ssgd, detail=f"{text}, 10 % of steps 3x"
    )


def _asgd(launcher: LocalLauncher, rules: tuple[StragglerRule, ...]) -> float:
    history = _run(launcher, "asgd", rules, seed=0)
    # Only while all workers train: the fastest ends first.
    start = max(rows[0].start_ns for rows in history.steps.values())
    end = min(end_ns(rows[-1]) for rows in history.steps.values())
    result = 0.0
    for rows in history.steps.values():
        spans = [(r.start_ns, end_ns(r)) for r in rows]
        result += sum(max(0, min(e, end) - max(s, start)) / (e - s) for s, e in spans)
    limit = sum(1 / (PACE_S * rule.factor) for rule in rules)
    return result / ((end - start) / 1e9) / limit


def _ssgd(launcher: LocalLauncher, rules: tuple[StragglerRule, ...], seed: int) -> float:
    history = _run(launcher, "ssgd", rules, seed=seed)
    rng = Stragglers(rules, seed=seed)
    slowest = [max(rng.at(w, s).duration_s(0, PACE_S) for w in range(WORKERS)) for s in range(STEPS)]
    rows = [r for mine in history.steps.values() for r in mine]
    took = (max(map(end_ns, rows)) - min(r.start_ns for r in rows)) / 1e9
    return sum(slowest) / took


def _run(launcher: LocalLauncher, mode: str, rules: tuple[StragglerRule, ...], *, seed: int) -> History:
    plan = Plan(
        run="bench",
        task="xor",
        mode=mode,
        num_workers=WORKERS,
        steps=STEPS,
        batch_sizes=(8,) * WORKERS,
        transport=Transport.SHM,
        lr_scale=1 / WORKERS if mode == "asgd" else 1.0,
        stragglers=rules,
        pace_s=PACE_S,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder), SilentWatcher(), warm=launcher)
        return read_history(Path(folder) / "events.jsonl")

"""Speed and accuracy of the simulator (`python -m benchmarks.simulator`).

Events are gradients, counted or abandoned, of eight workers; the time is that
which one core spent on them. The prediction error is that of the wall clock of
real runs of eight processes that mostly sleep: once predicted from the plan
alone, once from the run's own recording. Updates behind a server must also
come in the predicted order; they are run with schedules that keep them further
apart than a machine's noise. Like the other benchmarks, it passes or fails
nothing.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.report import Ratio, tell_and_write
from benchmarks.runs import TRIED, plan_for, processors, really_run
from paceline.config.train_config import TrainConfig
from paceline.core.errors import PacelineError
from paceline.events.read import History
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.laws.performance import sleeping_plan, slotted_plan
from paceline.plan.plan import Plan, StrategyOptions, Transport
from paceline.simulate.predict import outline, predict
from paceline.simulate.prediction import Outline
from paceline.simulate.profile import Exponential, Profile, default_costs, profile_from_plan
from paceline.simulate.recording import profile_of
from paceline.simulate.strategy_models import (
    Adaptive,
    Asynchronous,
    BackupWorkers,
    StrategyModel,
    candidates,
    strategy_model_of,
)
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule

RESULTS = Path(__file__).parent / "results" / "simulator.json"
WORKERS, EVENTS, PACE_S, STEPS = 8, 400_000, 0.04, 60


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    yield from _speeds(rounds)
    for mode in TRIED:
        yield from _errors(launcher, mode, rounds)
    for mode in ("asgd", "ssp"):
        yield from _order(launcher, mode, rounds)


def _speeds(rounds: int) -> Iterator[Ratio]:
    plain = _profile(())
    cases: list[tuple[str, Profile, StrategyModel]] = [
        (candidate.label, plain, candidate.model)
        for candidate in candidates(StrategyOptions(staleness=3, sync_every=8), WORKERS)
    ]
    slowed = _profile((StragglerRule(probability=0.1, factor=4.0),))
    costly = replace(plain, costs=default_costs(Transport.SHM))
    for label, bound in (("asgd", None), ("ssp (bound 3)", 3)):
        cases.append((f"{label}, random stragglers", slowed, Asynchronous(bound)))
        cases.append((f"{label}, a server's costs", costly, Asynchronous(bound)))
    cases += [(f"ssp (bound {bound})", plain, Asynchronous(bound)) for bound in (0, 64)]
    cases += [(f"backup (all but {spare})", plain, BackupWorkers(spare)) for spare in (1, 2)]
    cases.append(("backup (all but 1), a server's costs", costly, BackupWorkers(1)))
    lasting = replace(_profile((StragglerRule(worker=1, factor=3.0),)), batch_sizes=(8,) * WORKERS)
    cases += [(f"adaptive ({way.value}), one 3x", lasting, Adaptive(way, 8)) for way in Allowed]
    for name, profile, way in cases:
        speeds = tuple(_million_events_per_s(profile, way) for _ in range(rounds))
        detail = f"{WORKERS} workers, {EVENTS:,} gradients"
        yield Ratio(name=f"{name}: M events/s", goal=1.0, at_least=True, rounds=speeds, detail=detail)


def _profile(rules: tuple[StragglerRule, ...]) -> Profile:
    models = (Exponential(PACE_S),) * WORKERS
    return Profile(num_workers=WORKERS, step_times=models, batch_sizes=(1,) * WORKERS, stragglers=rules)


def _million_events_per_s(profile: Profile, way: StrategyModel) -> float:
    started_s = time.process_time()
    prediction = predict(profile, way, steps=EVENTS // WORKERS, seed=1)
    return prediction.events / (time.process_time() - started_s) / 1e6


def _errors(launcher: LocalLauncher, mode: str, rounds: int) -> Iterator[Ratio]:
    """Absolute errors of the predicted time, from the plan and from the recording."""
    rules = (StragglerRule(probability=0.1, factor=3.0), StragglerRule(worker=1, factor=1.5))
    errors: dict[str, list[float]] = {}
    for seed in range(rounds):
        plan = plan_for(mode, _config(straggler=rules, seed=seed))
        history = really_run(launcher, plan)
        took_s = summarise(history).training_s
        for source, result in _predictions(plan, history).items():
            errors.setdefault(source, []).append(abs(result.total_ns / 1e9 / took_s - 1))
    for source, each in errors.items():
        yield Ratio(
            name=f"{mode}: time error, from the {source}",
            goal=0.05,
            at_least=False,
            rounds=tuple(each),
            detail=f"{WORKERS} workers, {STEPS} steps of {PACE_S * 1e3:.0f} ms, 10 % 3x, one 1.5x",
        )


def _order(launcher: LocalLauncher, mode: str, rounds: int) -> Iterator[Ratio]:
    plan = plan_for(mode, _config())
    plan = sleeping_plan(plan) if mode == "ssp" else slotted_plan(plan)
    misplaced: dict[str, list[float]] = {}
    for _ in range(rounds):
        history = really_run(launcher, plan)
        applied = [row.rank for row in history.server if row.op == "apply"]
        for source, result in _predictions(plan, history).items():
            pairs = zip(result.trace.ranks.tolist(), applied, strict=True)
            misplaced.setdefault(source, []).append(sum(a != b for a, b in pairs) / len(applied))
    for source, each in misplaced.items():
        yield Ratio(
            name=f"{mode}: updates out of order, from the {source}",
            goal=0.0,
            at_least=False,
            rounds=tuple(each),
            detail=f"{WORKERS} workers, {plan.total_gradients} updates, share in another place",
        )


def _config(*, straggler: tuple[StragglerRule, ...] = (), seed: int = 0) -> TrainConfig:
    return TrainConfig(
        num_workers=WORKERS, steps=STEPS, batch_size=8, pace=PACE_S, straggler=straggler, seed=seed
    )


def _predictions(plan: Plan, history: History) -> dict[str, Outline]:
    """Predictions by source; recordings of some modes cannot be used."""
    profiles = {"plan": profile_from_plan(plan, processors=processors())}
    with suppress(PacelineError):
        profiles["recording"] = profile_of(history, plan)
    way = strategy_model_of(plan.mode, plan.strategy)
    return {
        source: outline(profile, way, steps=plan.steps, seed=plan.seed)
        for source, profile in profiles.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with LocalLauncher() as launcher:
        tell_and_write(measure(launcher, options.rounds), options.output)


if __name__ == "__main__":
    main()

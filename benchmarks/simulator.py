"""How fast does the simulator simulate, and how far off is it? `python -m benchmarks.simulator`.

Events are gradients that reach a server. The prediction error is that of the
wall clock of a real run: once predicted from the plan alone, once from the
run's own recording. Like the other benchmarks, it passes or fails nothing.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.report import Ratio, write
from paceline.app.demo import demo_plans
from paceline.app.progress import SilentWatcher
from paceline.app.train import train
from paceline.clock import SystemClock
from paceline.events.read import read_history
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.simulate.predict import outline
from paceline.simulate.profile import Profile, profile_from_plan
from paceline.simulate.recording import profile_of
from paceline.simulate.step_times import Exponential
from paceline.simulate.ways import Apart, Way, way_of
from paceline.sync.stragglers import StragglerRule

RESULTS = Path(__file__).parent / "results" / "simulator.json"
WORKERS, EVENTS, PACE_S, STEPS = 8, 400_000, 0.04, 40
MODES = ("ssgd", "ps", "asgd", "ssp", "localsgd")


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    random = (StragglerRule(probability=0.1, factor=4.0),)
    plain, slowed = _profile(()), _profile(random)
    for name, profile, way in (
        ("asgd", plain, Apart(None)),
        ("asgd, random stragglers", slowed, Apart(None)),
        ("ssp, bound 3", plain, Apart(3)),
        ("ssp, bound 64", plain, Apart(64)),
    ):
        speeds = tuple(_million_events_per_s(profile, way) for _ in range(rounds))
        detail = f"{WORKERS} workers, {EVENTS:,} events"
        yield Ratio(name=f"{name}: M events/s", goal=1.0, at_least=True, rounds=speeds, detail=detail)
    for plan in demo_plans():
        if plan.mode in MODES:
            errors = [_errors(launcher, _sleepy(plan, seed)) for seed in range(rounds)]
            for number, source in enumerate(("plan", "recording")):
                yield Ratio(
                    name=f"{plan.mode}: time error, from the {source}",
                    goal=0.05,
                    at_least=False,
                    rounds=tuple(error[number] for error in errors),
                    detail=f"{plan.num_workers} workers, {STEPS} steps of {PACE_S * 1e3:.0f} ms, 10 % 3x",
                )


def _profile(rules: tuple[StragglerRule, ...]) -> Profile:
    models = (Exponential(PACE_S),) * WORKERS
    return Profile(num_workers=WORKERS, step_times=models, batch_sizes=(1,) * WORKERS, stragglers=rules)


def _million_events_per_s(profile: Profile, way: Way) -> float:
    clock = SystemClock()
    started_ns = clock.now_ns()
    found = outline(profile, way, steps=EVENTS // WORKERS, seed=1)
    return sum(found.steps) / ((clock.now_ns() - started_ns) / 1e9) / 1e6


def _sleepy(plan: Plan, seed: int) -> Plan:
    rules = (StragglerRule(probability=0.1, factor=3.0), StragglerRule(worker=1, factor=1.5))
    return replace(plan, steps=STEPS, pace_s=PACE_S, stragglers=rules, seed=seed)


def _errors(launcher: LocalLauncher, plan: Plan) -> tuple[float, float]:
    """Of the predicted time, from the plan and from the recording; without a sign."""
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder), SilentWatcher(), warm=launcher)
        history = read_history(Path(folder) / "events.jsonl")
    took_s, way = summarise(history).training_s, way_of(plan.mode, plan.strategy)

    def error(profile: Profile) -> float:
        found = outline(profile, way, steps=plan.steps, seed=plan.seed)
        return abs(found.total_ns / 1e9 / took_s - 1)

    return error(profile_from_plan(plan)), error(profile_of(history, plan))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    ratios: list[Ratio] = []
    with LocalLauncher() as launcher:
        for ratio in measure(launcher, options.rounds):
            ratios.append(ratio)
            print(ratio.line(), flush=True)
    write(ratios, options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()

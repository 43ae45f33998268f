"""What-if use cases: simulate every mode, or advise one, from a plan or a recorded run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.config.fault_rules import straggler_text
from paceline.core.errors import ConfigError, NoSuchRunError, Problem
from paceline.events.read import read_history
from paceline.plan.codec import read
from paceline.plan.plan import Plan
from paceline.simulate.advice import REPEATS, Advice, advise
from paceline.simulate.predict import predict
from paceline.simulate.prediction import Prediction
from paceline.simulate.profile import (
    Link,
    Profile,
    network_costs,
    profile_from_plan,
    spread_around,
    with_step_times,
    with_workers,
)
from paceline.simulate.recording import profile_of
from paceline.simulate.strategy_models import candidates, default_options, flags_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Inputs of a prediction in addition to the plan."""

    spread: str = "constant"  # one of simulate.profile.SPREADS, with the pace as its mean
    latency_s: float | None = None  # of one message; None: as on one host
    bytes_per_s: float | None = None
    parameter_bytes: int = 0
    processors: int | None = None  # that workers of one host share; None: each has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationInput:
    """The input of a prediction."""

    profile: Profile
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRow:
    mode: str
    label: str  # the mode with its settings
    num_workers: int
    versus_ssgd: float  # times as fast, with as many workers
    prediction: Prediction


def _refuse_compression(plan: Plan) -> None:
    if plan.compress is not None:
        message = (
            "a prediction does not model compression: its bytes would be those of an uncompressed all-reduce"
        )
        hint = "leave compress out; measure its effect with paceline train --compress"
        raise ConfigError([Problem(message, hint, "--compress")])


def input_from_plan(plan: Plan, conditions: Conditions) -> SimulationInput:
    _refuse_compression(plan)
    if plan.pace_s <= 0 and all(rule.delay_s <= 0 for rule in plan.stragglers):
        message = "pace is 0, so a step would take no time, and there is nothing to predict"
        raise ConfigError([Problem(message, "give the duration of a step, such as --pace 10ms", "--pace")])
    costs = None
    if conditions.latency_s is not None or conditions.bytes_per_s is not None:
        costs = network_costs(Link(latency_s=conditions.latency_s or 0.0, bytes_per_s=conditions.bytes_per_s))
    profile = profile_from_plan(
        plan, costs=costs, parameter_bytes=conditions.parameter_bytes, processors=conditions.processors
    )
    if conditions.spread != "constant":
        model = spread_around(conditions.spread, plan.pace_s)
        profile = with_step_times(profile, (model,) * plan.num_workers)
    return SimulationInput(profile=profile, plan=plan)


def input_from_run(run_dir: Path) -> SimulationInput:
    plan = read(run_dir / "plan.json")
    _refuse_compression(plan)
    if not (run_dir / "events.jsonl").exists():
        raise NoSuchRunError(
            f"{run_dir} has no events.jsonl, so the speed of its workers is unknown",
            "name the folder of a run that has started, such as runs/xor-ssgd",
        )
    return SimulationInput(profile=profile_of(read_history(run_dir / "events.jsonl"), plan), plan=plan)


def simulate_modes(source: SimulationInput, worker_counts: Sequence[int] = ()) -> list[SimulatedRow]:
    """A row for every mode and number of workers, on the same total number of gradients."""
    rows: list[SimulatedRow] = []
    for num_workers in worker_counts or (source.plan.num_workers,):
        rows += _rows(source, num_workers)
    return rows


def _rows(source: SimulationInput, num_workers: int) -> list[SimulatedRow]:
    plan = source.plan
    profile = source.profile
    if num_workers != profile.num_workers:
        profile = with_workers(profile, num_workers)
    steps = -(-plan.total_gradients // num_workers)
    modes = candidates(default_options(plan, num_workers), num_workers)
    predictions = [predict(profile, c.model, steps=steps, seed=plan.seed) for c in modes]
    ssgd_s = next(p.total_s for c, p in zip(modes, predictions, strict=True) if c.mode == "ssgd")
    return [
        SimulatedRow(
            mode=candidate.mode,
            label=candidate.label,
            num_workers=num_workers,
            versus_ssgd=ssgd_s / prediction.total_s if prediction.total_s else 1.0,
            prediction=prediction,
        )
        for candidate, prediction in zip(modes, predictions, strict=True)
    ]


def advise_on(source: SimulationInput, *, repeats: int = REPEATS) -> Advice:
    """Advice for equal work under every mode; the plan's own seed first, then others."""
    plan = source.plan
    modes = candidates(default_options(plan), plan.num_workers)
    seeds = range(plan.seed, plan.seed + max(REPEATS, repeats))
    return advise(source.profile, modes, steps=plan.steps, seeds=seeds)


def command_for(source: SimulationInput, advice: Advice) -> str:
    """The command that tries the advice on the same work."""
    plan = source.plan
    candidate = advice.advised.candidate
    workers = "" if candidate.mode == "single" else f" --num-workers {plan.num_workers}"
    # A recorded trace has no flag, so it is left out.
    slow = [straggler_text(rule) for rule in plan.stragglers if rule.steps is None]
    conditions = [f"--pace {1000 * plan.pace_s:g}ms"] if plan.pace_s else []
    conditions += [f"--straggler {text}" for text in slow]
    argv = ["paceline train --task", plan.task, f"{flags_of(candidate)}{workers}", f"--steps {plan.steps}"]
    return " ".join([*argv, *conditions])

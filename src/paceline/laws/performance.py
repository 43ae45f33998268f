"""M: the performance model, what the simulator predicts against theory and against real runs."""

import math
from dataclasses import replace

from paceline.events.read import History
from paceline.events.summary import summarise
from paceline.laws.lab import RANDOM_SPEEDS, Finding, Lab, Law, run
from paceline.plan.plan import Plan, StrategyOptions
from paceline.simulate.predict import outline, predict
from paceline.simulate.prediction import Outline
from paceline.simulate.profile import (
    FREE,
    Exponential,
    Lognormal,
    Profile,
    StepTimes,
    Uniform,
    mean_s,
    profile_from_plan,
)
from paceline.simulate.recording import profile_of
from paceline.simulate.strategy_models import BackupWorkers, candidates, strategy_model_of
from paceline.sync.fault_rules import StragglerRule

WORKERS = 8
MEAN_S = 0.01
ROUNDS = 20_000
UPDATE_ERROR = 0.03  # of a recorded run
PLAN_ERROR = 0.01  # clocks of sleeping processes
SLEEPERS = 8
SLEEPS_S = 0.04
SLEEPER_STEPS = 16
SLEEPER_SEED = 100
SLOT_S = 0.06
ROUND_S = 0.72
ROUNDS_EACH = 10


def m1_exponential_step_times_have_a_closed_form(_: Lab) -> Finding:
    """The K-th of N exponential times is expected at (H_N - H_{N-K})·mean; ssgd waits for all N."""
    profile = _profile((Exponential(MEAN_S),) * WORKERS)
    deviations = []
    ok = True
    for needed in (WORKERS, WORKERS - 1, WORKERS - 2, WORKERS // 2):
        # Enough work for so many rounds, whatever is abandoned in each.
        steps = ROUNDS * needed // WORKERS
        prediction = outline(profile, BackupWorkers(WORKERS - needed), steps=steps, seed=11)
        spacings = range(WORKERS - needed + 1, WORKERS + 1)
        expected_s = MEAN_S * sum(1 / i for i in spacings)
        error_s = MEAN_S * math.sqrt(sum(1 / i**2 for i in spacings) / prediction.syncs)
        off = (prediction.total_ns / 1e9 / prediction.syncs - expected_s) / error_s
        ok &= abs(off) <= 3
        deviations.append(f"K={needed} {off:+.1f} SE")
    ssgd = predict(profile, strategy_model_of("ssgd", StrategyOptions()), steps=ROUNDS, seed=11)
    share = ssgd.gradients_per_s * MEAN_S / WORKERS
    limit = 1 / sum(1 / i for i in range(1, WORKERS + 1))
    ok &= abs(share / limit - 1) <= 0.02
    return Finding(ok, f"{', '.join(deviations)}; ssgd at {share:.3f} of the optimum, 1/H_N = {limit:.3f}")


def m2_no_mode_beats_the_sum_of_the_rates(_: Lab) -> Finding:
    """Σ 1/E[tᵢ] is the limit unless gradients may be abandoned; asgd reaches it."""
    mixed = (Exponential(0.01), Uniform(0.005, 0.02), Lognormal(0.01, 0.7), Exponential(0.03))
    rates = [1 / mean_s(model) for model in mixed]
    optimum = sum(rates)
    predictions = {
        c.mode: predict(_profile(mixed), c.model, steps=5000, seed=5)
        for c in candidates(StrategyOptions(staleness=3, sync_every=8), len(mixed))
        if not isinstance(c.model, BackupWorkers)
    }
    shares = {mode: prediction.gradients_per_s / optimum for mode, prediction in predictions.items()}
    # The means that were drawn differ from the expected ones; no model here varies more than its mean.
    drawn = zip(rates, predictions["asgd"].steps, strict=True)
    error = math.sqrt(sum(rate**2 / steps for rate, steps in drawn)) / optimum
    ok = max(shares.values()) <= 1 + 3 * error and shares["asgd"] >= 1 - 3 * error
    listed = ", ".join(f"{mode} {share:.3f}" for mode, share in shares.items())
    return Finding(ok, f"of Σ 1/E[tᵢ], ± {error:.3f}: {listed}")


def m3_virtual_runs_are_predicted_to_the_nanosecond(lab: Lab) -> Finding:
    wrong = []
    updates = 0
    for seed in range(4):
        plan = lab.plan(steps=24, stragglers=RANDOM_SPEEDS, seed=seed)
        done = run(plan)
        prediction = _predicted(plan, lab.mode)
        updates += sum(prediction.steps)
        same_order = not done.history.server or _applied(done.history) == _foretold(prediction)
        if not same_order or round(done.elapsed_s * 1e9) != prediction.total_ns:
            wrong.append(f"seed {seed}: {done.elapsed_s} s, predicted {prediction.total_ns / 1e9} s")
    return Finding(not wrong, "; ".join(wrong) or f"{updates} gradients of 4 schedules, every time equal")


def m3_a_real_run_is_predicted(lab: Lab) -> Finding:
    """Independent of the machine's load: that lengthens steps, and the recorded step times contain it.

    From the times of the steps alone, the simulator must find when each update was made, which the
    admission rule decides: with another bound the updates are off by 6 % of the run and more. A loaded
    machine swaps updates that nearly tie, so their times are compared, and not their order.
    """
    plan = sleeping_plan(lab.plan(num_workers=SLEEPERS))
    history = lab.really_run(plan).history
    off = update_error(history, plan, plan.strategy)
    planned_s = _predicted(plan, lab.mode).total_ns / 1e9
    took_s = summarise(history).training_s
    updates = len(_applied(history))
    measured = f"{updates} updates of {SLEEPERS} processes, off by {off:.2%} of the run on average"
    measured += f"; {took_s:.2f} s, at least {planned_s:.2f} s by the plan"
    return Finding(off <= UPDATE_ERROR and took_s >= (1 - PLAN_ERROR) * planned_s, measured)


def update_error(history: History, plan: Plan, strategy: StrategyOptions) -> float:
    """Mean distance between recorded and simulated updates, worker by worker, as a share of the run."""
    prediction = outline(
        profile_of(history, plan), strategy_model_of(plan.mode, strategy), steps=plan.steps, seed=plan.seed
    )
    began_ns = min(rows[0].start_ns + rows[0].wait_ns for rows in history.steps.values())
    recorded = _by_worker([(rank, at_ns - began_ns) for rank, at_ns in _applied(history)])
    simulated = _by_worker(_foretold(prediction))
    distances = [
        abs(mine_ns - theirs_ns)
        for rank, times_ns in simulated.items()
        for mine_ns, theirs_ns in zip(times_ns, recorded.get(rank, []), strict=True)
    ]
    return sum(distances) / len(distances) / prediction.total_ns


def _by_worker(updates: list[tuple[int, int]]) -> dict[int, list[int]]:
    times_ns: dict[int, list[int]] = {}
    for rank, at_ns in updates:
        times_ns.setdefault(rank, []).append(at_ns)
    return times_ns


def sleeping_plan(plan: Plan) -> Plan:
    """Eight workers that mostly sleep, so far apart that some milliseconds of noise change no order.

    Worker 0 starts first and takes longest, the others one after another: when it first pushes, all are held,
    and it no longer matters when each process came up. The seed was chosen by simulating with up to 16 ms of
    noise per step: with most seeds some pushes nearly tie, and then no model can tell who comes first.
    """
    rules = (
        *(StragglerRule(worker=r, delay_s=0.009 * r) for r in range(1, SLEEPERS)),
        *(StragglerRule(worker=r, delay_s=0.06 * r, steps=(0,)) for r in range(1, SLEEPERS)),
        StragglerRule(worker=0, delay_s=0.9, steps=(0,)),
        StragglerRule(probability=0.25, delay_s=0.12, first_step=1),
        StragglerRule(probability=0.1, delay_s=0.24, first_step=1),
        StragglerRule(delay_s=SLEEPS_S),
    )
    options = StrategyOptions(staleness=1)
    return replace(
        plan, steps=SLEEPER_STEPS, seed=SLEEPER_SEED, stragglers=rules, strategy=options, pace_s=0.0
    )


def slotted_plan(plan: Plan) -> Plan:
    """The same for workers that never wait for each other: they push in slots, far apart for ever.

    Each step takes one round, or two, so who pushes next is random, but no two ever come close. The slots
    fill seven twelfths of a round, so that processes that came up late still keep their order.
    """
    rules = (
        *(StragglerRule(worker=r, delay_s=r * SLOT_S, steps=(0,)) for r in range(1, SLEEPERS)),
        StragglerRule(delay_s=ROUND_S - SLEEPS_S, first_step=1),
        StragglerRule(probability=0.25, delay_s=ROUND_S, first_step=1),
    )
    return replace(plan, steps=ROUNDS_EACH, stragglers=rules, pace_s=SLEEPS_S)


def _profile(models: tuple[StepTimes, ...]) -> Profile:
    return Profile(num_workers=len(models), step_times=models, batch_sizes=(1,) * len(models), costs=FREE)


def _predicted(plan: Plan, mode: str) -> Outline:
    profile = profile_from_plan(plan, costs=FREE)
    return outline(profile, strategy_model_of(mode, plan.strategy), steps=plan.steps, seed=plan.seed)


def _applied(history: History) -> list[tuple[int, int]]:
    return [(row.rank, row.at_ns) for row in history.server if row.op == "apply"]


def _foretold(prediction: Outline) -> list[tuple[int, int]]:
    return list(zip(prediction.trace.ranks.tolist(), prediction.trace.at_ns.tolist(), strict=True))


LAWS = (
    Law(
        "M1",
        "exponential step times: K of N take (H_N - H_{N-K})·mean, so ssgd runs at 1/H_N of the optimum",
        ("ssgd",),
        m1_exponential_step_times_have_a_closed_form,
    ),
    Law(
        "M2",
        "the optimum is the sum of 1/E[tᵢ]; no mode exceeds it, and asgd reaches it",
        ("asgd",),
        m2_no_mode_beats_the_sum_of_the_rates,
    ),
    Law(
        "M3",
        "the simulator predicts a run in virtual time to the nanosecond, in the same order",
        ("single", "ssgd", "ps", "backup", "asgd", "ssp", "localsgd", "adaptive", "dssp", "diloco"),
        m3_virtual_runs_are_predicted_to_the_nanosecond,
        per_mode=True,
    ),
    Law(
        "M3.local",
        "the simulator finds the updates of real processes from their step times, within 3 % of the run, "
        "and none is faster than its plan",
        ("ssp",),
        m3_a_real_run_is_predicted,
        starts_processes=True,
    ),
)

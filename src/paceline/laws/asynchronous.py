"""A: asynchronous SGD, nobody waits."""

import torch

from paceline.laws.lab import PACE_S, RANDOM_SPEEDS, Lab, final_hash, run, sequential
from paceline.laws.law import Finding, Law, bit_equal
from paceline.laws.witness import Witness
from paceline.plan.plan import OptimizerChoice
from paceline.sync.stragglers import StragglerRule
from paceline.worker.participant import state_hash
from paceline.worker.replay import replay

SEEDS = range(6)


def a1_one_worker_is_sequential_adam(lab: Lab) -> Finding:
    plan = lab.plan(num_workers=1, lr_scale=1.0, optimizer=OptimizerChoice(name="adam", lr=0.01))
    return bit_equal(
        final_hash(plan), state_hash(sequential(plan, torch.optim.Adam, lr=0.01)), of="asgd, Adam"
    )


def a2_staleness_sums_to_t_times_n_minus_1(lab: Lab) -> Finding:
    """After T updates, with all N at work: applied staleness + ages in flight = T·(N-1), exactly."""
    checked, wrong = 0, []
    for seed in SEEDS:
        plan = lab.plan(num_workers=4, steps=25, stragglers=RANDOM_SPEEDS, seed=seed)
        version, applied, read = 0, 0, dict[int, int]()
        for row in run(plan).history.server:
            if row.op == "apply":
                version, applied = row.version, applied + row.staleness
                del read[row.rank]
            if row.op != "read":
                continue
            read[row.rank] = row.version
            if len(read) == 4:
                checked += 1
                in_flight = sum(version - v for v in read.values())
                wrong += [(seed, version)] if applied + in_flight != version * 3 else []
    return Finding(not wrong, f"{checked} moments of {len(SEEDS)} runs; wrong: {wrong[:3]}")


def a3_the_log_has_no_gap(lab: Lab) -> Finding:
    """Staleness is never negative, a worker's versions never go back, every version is made once."""
    witness = Witness.of(3)
    history = run(lab.plan(steps=30, stragglers=RANDOM_SPEEDS), wrap_store=witness.wrap).history
    applied = [r for r in history.server if r.op == "apply"]
    versions = [r.version for r in applied]
    read = {
        rank: [a.version for a in witness.acts if a.what == "pull" and a.rank == rank] for rank in range(3)
    }
    ok = (
        versions == list(range(1, len(applied) + 1))
        and all(r.staleness >= 0 and r.staleness == r.version - 1 - r.read_version for r in applied)
        and all(mine == sorted(mine) for mine in read.values())
        and len(applied) == sum(a.what == "push" for a in witness.acts)
    )
    return Finding(ok, f"{len(applied)} updates, versions {versions[0]} … {versions[-1]}")


def a4_the_log_replays_to_the_same_bits(lab: Lab) -> Finding:
    for seed in SEEDS:
        plan = lab.plan(steps=20, stragglers=RANDOM_SPEEDS, seed=seed)
        done = run(plan)
        verdict = replay(plan, done.history, state_hash(done.final_state()))
        if not verdict.is_equal:
            return Finding(False, f"seed {seed}: {verdict.parted}")
    return Finding(True, f"{len(SEEDS)} schedules replayed bit by bit")


def a5_the_rate_is_the_sum_of_the_workers_rates(lab: Lab) -> Finding:
    factors = (1.0, 1.5, 2.0, 3.0)
    rules = tuple(StragglerRule(worker=w, factor=f) for w, f in enumerate(factors))
    history = run(lab.plan(num_workers=4, steps=400, stragglers=rules)).history
    end_ns = history.steps[0][-1].start_ns  # while the fastest still works, all do
    done = sum(1 for r in history.server if r.op == "apply" and r.at_ns <= end_ns)
    rate, limit = done / (end_ns / 1e9), sum(1 / (PACE_S * f) for f in factors)
    return Finding(0.98 <= rate / limit <= 1.001, f"{rate / limit:.4f} of Σ 1/tᵢ")


def a6_equal_speeds_give_staleness_n_minus_1(lab: Lab) -> Finding:
    history = run(lab.plan(num_workers=4, steps=10)).history
    staleness = [r.staleness for r in history.server if r.op == "apply"]
    return Finding(
        staleness[:3] == [0, 1, 2] and set(staleness[3:]) == {3}, f"staleness {staleness[:6]} … for N = 4"
    )


ONLY = ("asgd",)
LAWS = (
    Law(
        "A1",
        "with one worker asgd is the sequential optimizer, also for Adam",
        ONLY,
        a1_one_worker_is_sequential_adam,
    ),
    Law(
        "A2",
        "applied staleness plus ages in flight is exactly T·(N-1)",
        ONLY,
        a2_staleness_sums_to_t_times_n_minus_1,
    ),
    Law(
        "A3",
        "versions have no gap, staleness is never negative, pushes equal updates",
        ONLY,
        a3_the_log_has_no_gap,
    ),
    Law(
        "A4",
        "replaying the log in sequence reproduces the parameters bit by bit",
        ONLY,
        a4_the_log_replays_to_the_same_bits,
    ),
    Law(
        "A5",
        "the rate is at least 0.98 of, and never above, the sum of the workers' rates",
        ONLY,
        a5_the_rate_is_the_sum_of_the_workers_rates,
    ),
    Law(
        "A6",
        "equal speeds in turn give every update staleness N-1",
        ONLY,
        a6_equal_speeds_give_staleness_n_minus_1,
    ),
)

"""W: work shared out by measured speed."""

from itertools import pairwise

import torch

from paceline.laws.lab import (
    LEDGER,
    PACE_S,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    bit_equal,
    distance,
    final_hash,
    run,
)
from paceline.plan.plan import Dtype, OptimizerChoice, StrategyOptions
from paceline.sync.adaptive_policy import DECIDE_EVERY
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica

BATCH = StrategyOptions(sync_every=4, adaptive=Allowed.BATCH)
LOCAL = StrategyOptions(sync_every=16, adaptive=Allowed.LOCAL_STEPS)
ONE_OF_EIGHT = (1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0)
ONE_SLOW = (StragglerRule(worker=3, factor=3.0),)
MOVING = (
    StragglerRule(worker=0, factor=3.0, end_step=40),
    StragglerRule(worker=2, factor=2.0, first_step=40),
    StragglerRule(probability=0.1, factor=2.0),
)
SPEEDS = {"one slow": (StragglerRule(worker=1, factor=3.0),), "moving": MOVING, "random": RANDOM_SPEEDS}
LIMITS = {Dtype.FLOAT64: 1e-12, Dtype.FLOAT32: 1e-6}


def w1_samples_by_speed_compute_what_ssgd_computes(lab: Lab) -> Finding:
    """With equal and with unequal planned batches; only runs in which the cut moved count."""
    worst = dict.fromkeys(LIMITS, 0.0)
    moves = 0
    for rules in SPEEDS.values():
        for sizes in ((8, 8, 8), (3, 12, 6)):
            for dtype in LIMITS:
                work = {"steps": 80, "batch_sizes": sizes, "stragglers": rules, "dtype": dtype}
                ours = run(lab.plan(strategy=BATCH, **work))
                moves += len(_adapted(ours))
                worst[dtype] = max(worst[dtype], distance(ours, run(lab.other("ssgd", **work))))
    differences = ", ".join(f"{dtype.value} {difference:.1e}" for dtype, difference in worst.items())
    ok = all(worst[dtype] <= limit for dtype, limit in LIMITS.items()) and moves >= len(SPEEDS)
    return Finding(ok, f"largest difference: {differences}; {moves} changes of the batch sizes")


def w2_a_lasting_straggler_costs_almost_nothing(lab: Lab) -> Finding:
    """The first steps, before anything is known, are part of the count."""
    plan = lab.plan(num_workers=8, steps=600, batch_sizes=(32,) * 8, stragglers=ONE_SLOW)
    share = plan.total_gradients / run(plan).elapsed_s / _optimum(ONE_OF_EIGHT)
    ssgd = len(ONE_OF_EIGHT) / (PACE_S * max(ONE_OF_EIGHT)) / _optimum(ONE_OF_EIGHT)
    return Finding(share >= 0.95, f"{share:.3f} of Σ 1/tᵢ over 600 steps, where ssgd has {ssgd:.3f}")


def w3_every_sample_counts_once_whatever_is_decided(lab: Lab) -> Finding:
    decisions = []
    ok = True
    for allowed in Allowed:
        decided = set()
        for seed in range(4):
            plan = lab.plan(
                num_workers=4,
                steps=70,
                batch_sizes=(4,) * 4,
                seed=seed,
                stragglers=MOVING,
                task=LEDGER,
                task_options={"num_samples": 70 * 16},
                strategy=StrategyOptions(sync_every=5, adaptive=allowed),
            )
            done = run(plan)
            entries = done.final_state()["entries"]
            # Each of the 16 samples of a step has the same weight, whichever worker saw it, and when.
            ok &= torch.allclose(entries, torch.full_like(entries, -1 / 16), rtol=1e-14, atol=0)
            rows = [row for own in done.history.steps.values() for row in own]
            ok &= sorted(row.position for row in rows) == list(range(plan.total_gradients))
            ok &= sum(row.samples for row in rows) == plan.total_samples
            decided |= {str(event["to"]) for event in _adapted(done)}
        decisions.append(f"{allowed.value}: {', '.join(sorted(decided)) or 'nothing'}")
    return Finding(
        ok, f"1120 samples, each used once with the same weight; decided for {'; '.join(decisions)}"
    )


def w4_speeds_that_flip_do_not_make_it_flip(lab: Lab) -> Finding:
    """Worker 0 and worker 1 are slow in turn, for as long as it takes to decide."""
    windows = 24
    flipping = tuple(
        StragglerRule(worker=k % 2, factor=3.0, first_step=k * DECIDE_EVERY, end_step=(k + 1) * DECIDE_EVERY)
        for k in range(windows)
    )
    steps = windows * DECIDE_EVERY
    plan = lab.plan(num_workers=4, steps=steps, batch_sizes=(16,) * 4, stragglers=flipping)
    changes = _adapted(run(plan))
    steady = run(lab.plan(num_workers=4, steps=steps, batch_sizes=(16,) * 4, stragglers=ONE_SLOW))
    logged = [int(str(event["step"])) for event in _adapted(steady)]
    seen = _changes_of_the_cut(steady)
    reasons = [str(event["reason"]) for event in _adapted(steady)]
    is_logged = logged == seen and all("ms instead of" in reason for reason in reasons)
    return Finding(
        len(changes) <= 1 and is_logged and 1 <= len(logged) <= 2,
        f"{len(changes)} changes in {windows} windows that alternate; in as many steady ones after steps "
        f"{logged}, as recorded in the log: {seen == logged}",
    )


def w5_local_steps_follow_the_speeds(lab: Lab) -> Finding:
    """Counted from the first decision on: the round before it is long, and nothing is known yet."""
    shares = []
    ok = True
    for factors in ((1.0, 1.5, 2.0, 3.0), ONE_OF_EIGHT):
        workers = len(factors)
        rules = tuple(StragglerRule(worker=w, factor=f) for w, f in enumerate(factors))
        plan = lab.plan(num_workers=workers, steps=400, stragglers=rules, strategy=LOCAL)
        done = run(plan)
        (dealt,) = (event for event in done.history.plain if event.kind == "adapted")
        rest_s = done.elapsed_s - dealt.at_ns / 1e9
        gradients = (plan.steps - int(str(dealt.fields["step"]))) * workers
        share = gradients / rest_s / _optimum(factors)
        runs = [int(own) for own in str(dealt.fields["shares"]).split(",")]
        exact = [16 * workers / f / sum(1 / g for g in factors) for f in factors]
        ok &= share >= 0.95 and all(
            abs(steps_taken - due) <= 1 for steps_taken, due in zip(runs, exact, strict=True)
        )
        shares.append(f"{share:.3f} of Σ 1/tᵢ with local steps {runs}")
    return Finding(ok, "; ".join(shares))


def w6_equal_workers_stay_with_ssgd(lab: Lab) -> Finding:
    work = {"steps": 100, "task_options": {"batch_norm": True}}
    done = run(lab.plan(**work))
    if changes := _adapted(done):
        return Finding(False, f"{len(changes)} changes although all are equally fast: {changes[0]['reason']}")
    return bit_equal(
        state_hash(done.final_state()), final_hash(lab.other("ssgd", **work)), of="equal speeds, and ssgd"
    )


def w7_after_every_meeting_all_are_equal(lab: Lab) -> Finding:
    """Also when local steps end and Adam's moments, which were apart, must be one again."""
    plan = lab.plan(
        num_workers=4,
        steps=200,
        batch_sizes=(16,) * 4,
        stragglers=(StragglerRule(probability=0.3, factor=5.0, end_step=80),),
        optimizer=OptimizerChoice(name="adam", lr=0.01),
        task_options={"batch_norm": True},
        strategy=StrategyOptions(sync_every=8),
    )
    states: dict[tuple[int, int], str] = {}

    def note(rank: int, steps: int, replica: Replica) -> None:
        states[rank, steps] = state_hash({"state": replica.arena.state.detach().clone()})

    done = run(plan, after_step=note)
    met = {
        rank: [states[rank, row.step + 1] for row in rows if row.synced]
        for rank, rows in done.history.steps.items()
    }
    meetings = list(zip(*met.values(), strict=True))
    differing = [number for number, hashes in enumerate(meetings) if len(set(hashes)) > 1]
    ways = [str(event["to"]) for event in _adapted(done)]
    left = any(a == "local-steps" != b for a, b in pairwise(ways))
    return Finding(
        not differing and left,
        f"{len(meetings)} synchronizations, ssgd → {' → '.join(ways)}; differing: {differing[:3]}",
    )


def _adapted(done: VirtualRun) -> list[dict[str, object]]:
    return [dict(event.fields) for event in done.history.plain if event.kind == "adapted"]


def _changes_of_the_cut(done: VirtualRun) -> list[int]:
    """After how many steps some worker's number of samples changed, as its rows say."""
    cuts = {
        later.step
        for rows in done.history.steps.values()
        for earlier, later in pairwise(rows)
        if later.samples != earlier.samples
    }
    return sorted(cuts)


def _optimum(factors: tuple[float, ...]) -> float:
    """Gradients per second of all workers together, if no worker ever waited."""
    return sum(1 / (PACE_S * factor) for factor in factors)


ONLY = ("adaptive",)
LAWS = (
    Law(
        "W1",
        "with samples in proportion to speed the parameters are those of ssgd on the union batch",
        ONLY,
        w1_samples_by_speed_compute_what_ssgd_computes,
    ),
    Law(
        "W2",
        "one worker of eight, always 3x slower, leaves at least 0.95 of the no-wait optimum",
        ONLY,
        w2_a_lasting_straggler_costs_almost_nothing,
    ),
    Law(
        "W3",
        "every sample is used once with the same weight, whatever policy is chosen",
        ONLY,
        w3_every_sample_counts_once_whatever_is_decided,
    ),
    Law(
        "W4",
        "alternating speeds do not cause oscillation, and every change is an event with its reason",
        ONLY,
        w4_speeds_that_flip_do_not_make_it_flip,
    ),
    Law(
        "W5",
        "local steps are assigned in proportion to speed, at 0.95 of the optimum or more",
        ONLY,
        w5_local_steps_follow_the_speeds,
    ),
    Law("W6", "equally fast workers stay with ssgd, bitwise equal", ONLY, w6_equal_workers_stay_with_ssgd),
    Law(
        "W7",
        "after every synchronization all replicas are equal, also when local steps end",
        ONLY,
        w7_after_every_meeting_all_are_equal,
    ),
)

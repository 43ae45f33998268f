"""B: backup workers, the first K of N gradients count and nobody waits for the rest."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from paceline.laws.lab import PACE_S, RANDOM_SPEEDS, Lab, final_hash, ledger, run
from paceline.laws.law import Finding, Law, bit_equal
from paceline.laws.witness import Witness
from paceline.plan.plan import Plan, StrategyOptions
from paceline.sync.dice import draw_uniform
from paceline.sync.stragglers import StragglerRule
from paceline.worker.virtual import VirtualRun

NONE_SPARE = StrategyOptions(backup_workers=0)
SEEDS = range(6)
WORKERS, SPARE, ROUNDS, MEAN_S = 5, 2, 200, 0.01


def b1_without_spares_it_is_ps(lab: Lab) -> Finding:
    return _equals(lab, "ps", task_options={"batch_norm": True})


def b1_without_spares_it_is_ssgd(lab: Lab) -> Finding:
    return _equals(lab, "ssgd")


def _equals(lab: Lab, mode: str, **changes: object) -> Finding:
    """Also when workers join in another order, so that another one does each share."""
    work = {"steps": 20, "batch_sizes": (2, 3, 5), **changes}
    mine = lab.plan(strategy=NONE_SPARE, stragglers=RANDOM_SPEEDS, **work)
    one = final_hash(mine, starts_at_s={0: 0.3, 1: 0.1})
    return bit_equal(one, final_hash(lab.other(mode, **work)), of=f"b = 0, and {mode}")


def b2_an_update_is_the_mean_of_k_fresh_gradients(lab: Lab) -> Finding:
    """Counted from what went over the store; the ledger shows with what weight, and that nothing is lost."""
    odd, updates, weighed = list[str](), 0, True
    for seed in SEEDS:
        for spare in (1, 2):
            plan = _sharing(lab, seed, spare)
            witness = Witness.of(plan.num_workers)
            done = run(plan, wrap_store=witness.wrap)
            found = _contributors(witness)
            updates += len(found)
            odd += [
                f"seed {seed}, version {version}: {sorted(ranks)}"
                for version, ranks in found.items()
                if len(ranks) != plan.gradients_per_update or len(set(ranks)) != len(ranks)
            ]
            weighed &= _is_fresh_and_whole(plan, done)
    return Finding(
        not odd and weighed,
        f"{updates} updates; not of K distinct workers: {odd[:3]}; each share once, fresh, as 1/K: {weighed}",
    )


def _sharing(lab: Lab, seed: int, spare: int) -> Plan:
    """Five workers, and K divides the work: so every update, also the last, has K contributors."""
    options = StrategyOptions(backup_workers=spare)
    return ledger(lab.plan(num_workers=5, steps=12, seed=seed, stragglers=RANDOM_SPEEDS, strategy=options))


def _contributors(witness: Witness) -> dict[int, list[int]]:
    """Who pushed a gradient of each version."""
    read: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for act in witness.acts:
        if act.what == "pull":
            read[act.rank] = act.version
        elif act.what == "push":
            found.setdefault(read[act.rank], []).append(act.rank)
    return found


def _is_fresh_and_whole(plan: Plan, done: VirtualRun) -> bool:
    applied = [row for row in done.history.server if row.op == "apply"]
    each_once = sorted(row.position for row in applied) == list(range(plan.total_gradients))
    as_a_mean = bool((done.final_state()["entries"] == -1.0 / plan.gradients_per_update).all())
    return each_once and as_a_mean and all(row.staleness == 0 for row in applied)


def b3_an_update_takes_as_long_as_the_kth_fastest(lab: Lab) -> Finding:
    """Exponential step times: exactly the K-th of those drawn, and (H_N - H_b)·mean on average."""
    drawn_s = [[_exponential(rank, step) for step in range(ROUNDS)] for rank in range(WORKERS)]
    rules = [
        StragglerRule(worker=rank, delay_s=delay_s, steps=(step,))
        for rank, own in enumerate(drawn_s)
        for step, delay_s in enumerate(own)
    ]
    needed = WORKERS - SPARE
    plan = lab.plan(
        num_workers=WORKERS,
        steps=ROUNDS * needed // WORKERS,
        pace_s=0.0,
        stragglers=tuple(rules),
        strategy=StrategyOptions(backup_workers=SPARE),
    )
    # Of the last one fewer take part: no share is left for the late.
    took_ns = _rounds_ns(run(plan))[:-1]
    orders = [sorted(own[number] for own in drawn_s)[needed - 1] for number in range(len(took_ns))]
    exact = took_ns == [round(seconds * 1e9) for seconds in orders]
    spacings = range(SPARE + 1, WORKERS + 1)
    expected_s = MEAN_S * sum(1 / i for i in spacings)
    error_s = MEAN_S * math.sqrt(sum(1 / i**2 for i in spacings) / len(took_ns))
    off = (sum(took_ns) / 1e9 / len(took_ns) - expected_s) / error_s
    return Finding(
        exact and abs(off) <= 3,
        f"{len(took_ns)} updates of {needed} of {WORKERS}: each the order statistic drawn: {exact}; "
        f"mean {off:+.1f} SE from (H_N - H_b)·mean",
    )


def _exponential(rank: int, step: int) -> float:
    return -MEAN_S * math.log(1.0 - draw_uniform(23, rank, step))


def _rounds_ns(done: VirtualRun) -> list[int]:
    """How long each update took, from the one before."""
    times = {row.version: row.at_ns for row in done.history.server if row.op == "apply"}
    return [later - earlier for earlier, later in pairwise([0, *(times[v] for v in sorted(times))])]


def b4_a_persistent_straggler_slows_nobody(lab: Lab) -> Finding:
    """Time is that of the other three alone, and the straggler's samples are used all the same."""
    rules = (StragglerRule(worker=1, factor=10.0),)
    plan = ledger(lab.plan(num_workers=4, steps=30, stragglers=rules))
    done = run(plan)
    updates = -(-plan.total_gradients // 3)
    told = Counter(row.rank for row in done.history.server if row.op == "abandon")
    ended = _ends_early(done, rank=1)
    entries = done.final_state()["entries"]
    ok = _same(done.elapsed_s, updates * PACE_S) and bool((entries != 0).all()) and ended
    return Finding(
        ok,
        f"{plan.total_gradients} shares in {done.elapsed_s:.3f} s, {updates} updates of {PACE_S:g} s; "
        f"abandoned by worker {dict(told)}, each within a step of the others: {ended}",
    )


def _ends_early(done: VirtualRun, *, rank: int) -> bool:
    lasted: Sequence[int] = [row.lasted_ns - row.wait_ns for row in done.history.abandoned.get(rank, [])]
    return bool(lasted) and all(ns <= round(PACE_S * 1e9) for ns in lasted)


def _same(one_s: float, other_s: float) -> bool:
    return round(one_s * 1e9) == round(other_s * 1e9)


ONLY = ("backup",)
LAWS = (
    Law("B1", "without backup workers it is ps, bit by bit", ONLY, b1_without_spares_it_is_ps),
    Law("B1.ssgd", "without backup workers it is ssgd, bit by bit", ONLY, b1_without_spares_it_is_ssgd),
    Law(
        "B2",
        "every update is the mean of exactly K distinct workers' gradients, none stale, and no share is lost",
        ONLY,
        b2_an_update_is_the_mean_of_k_fresh_gradients,
    ),
    Law(
        "B3",
        "an update takes as long as the K-th fastest worker; exponential times: (H_N - H_b)·mean",
        ONLY,
        b3_an_update_takes_as_long_as_the_kth_fastest,
    ),
    Law(
        "B4",
        "a persistent straggler slows nobody, abandons its steps at once, and its samples are still used",
        ONLY,
        b4_a_persistent_straggler_slows_nobody,
    ),
)

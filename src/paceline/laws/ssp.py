"""P: stale synchronous parallel, no worker runs further ahead than the bound."""

from dataclasses import replace

from paceline.laws.lab import (
    PACE_S,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    distance,
    ledger,
    ledger_places,
    run,
    within,
)
from paceline.laws.witness import Witness
from paceline.plan.explain import explain
from paceline.plan.plan import Plan, StrategyOptions
from paceline.sync.fault_rules import StragglerRule
from paceline.transport.ports import Slots
from paceline.worker.entry.virtual import run_virtual
from paceline.worker.participant import state_hash

BOUNDS = (0, 1, 3)
SEEDS = range(8)
RANGE = 2  # of a bound that moves


def p1_gaps_stay_within_the_bound(lab: Lab) -> Finding:
    worst: dict[int, tuple[int, int]] = {}
    for plan, bound in _schedules(lab):
        witness = Witness.of(plan.num_workers)
        started = [0]
        completed = [0]

        def on_pull(rank: int, _: Slots, w: Witness = witness, seen: list[int] = started) -> None:
            seen.append(w.clocks[rank] - min(w.active().values()))

        def on_push(_: int, w: Witness = witness, seen: list[int] = completed) -> None:
            seen.append(w.gap())

        witness.on_pull = on_pull
        witness.on_push = on_push
        run(plan, wrap_store=witness.wrap, starts_at_s={plan.seed % 4: 0.2})
        before = worst.get(bound, (0, 0))
        worst[bound] = max(before[0], *started), max(before[1], *completed)
    ok = all(started <= s and completed <= s + 1 for s, (started, completed) in worst.items())
    return Finding(ok, "largest (started, completed) gap by bound: " + str(worst))


def p2_a_read_contains_what_it_must(lab: Lab) -> Finding:
    """Read at clock c: every update up to c-s-1, and all of the reader's own."""
    missing = []
    reads = 0
    for schedule, bound in _schedules(lab):
        plan = ledger(schedule)
        witness = Witness.of(plan.num_workers)
        places = ledger_places(plan)

        def on_pull(
            rank: int,
            slots: Slots,
            w: Witness = witness,
            at: dict[tuple[int, int], int] = places,
            s: int = bound,
        ) -> None:
            nonlocal reads
            reads += 1
            clock = w.clocks[rank]
            for (other, step), place in at.items():
                owed = step < clock if other == rank else step <= clock - s - 1
                if owed and float(slots.parameters[place]) == 0.0:
                    missing.append((rank, clock, other, step))

        witness.on_pull = on_pull
        run(plan, wrap_store=witness.wrap)
    return Finding(not missing, f"{reads} reads; missing updates (reader, clock, of, step): {missing[:3]}")


def p3_bound_zero_is_synchronous(lab: Lab) -> Finding:
    """Also when a worker joins late and could see what the others have done meanwhile."""
    plan = lab.plan(steps=30, strategy=StrategyOptions(staleness=0), stragglers=RANDOM_SPEEDS)
    late = run(plan, starts_at_s={0: 0.5})
    return within(distance(late, run(lab.other("ssgd", steps=30))), 1e-12)


def p4_no_bound_is_asgd(lab: Lab) -> Finding:
    own_witness = Witness.of(3)
    theirs = Witness.of(3)
    unbounded = lab.plan(steps=20, strategy=StrategyOptions(staleness=None), stragglers=RANDOM_SPEEDS)
    own_run = run(unbounded, wrap_store=own_witness.wrap)
    other = run(lab.other("asgd", steps=20, stragglers=RANDOM_SPEEDS), wrap_store=theirs.wrap)
    same_bits = state_hash(own_run.final_state()) == state_hash(other.final_state())
    same_acts = own_witness.acts == theirs.acts
    return Finding(
        same_acts and same_bits,
        f"{len(own_witness.acts)} acts equal: {same_acts}; bitwise equal: {same_bits}",
    )


def p5_the_slowest_never_waits(lab: Lab) -> Finding:
    """A worker that is the slowest right after pushing reads on without waiting."""
    waits = []
    pulls = 0
    for plan, bound in _schedules(lab):
        witness = Witness.of(plan.num_workers)
        is_slowest: dict[int, bool] = {}

        def on_push(rank: int, w: Witness = witness, slow: dict[int, bool] = is_slowest) -> None:
            slow[rank] = w.clocks[rank] == min(w.active().values())

        def on_pull(
            rank: int, _: Slots, w: Witness = witness, slow: dict[int, bool] = is_slowest, s: int = bound
        ) -> None:
            nonlocal pulls
            pulls += slow.get(rank, False)
            if slow.get(rank, False) and w.acts[-1].wait_ns > 0:
                waits.append((s, rank, w.clocks[rank]))

        witness.on_push = on_push
        witness.on_pull = on_pull
        run(plan, wrap_store=witness.wrap)
    return Finding(not waits, f"{pulls} reads of the slowest; it waited (bound, rank, clock): {waits[:3]}")


def p6_a_persistent_straggler_sets_the_pace(lab: Lab) -> Finding:
    rules = (StragglerRule(worker=1, factor=3.0),)
    plan = lab.plan(num_workers=4, steps=200, strategy=StrategyOptions(staleness=3), stragglers=rules)
    rate = plan.total_gradients / run(plan).elapsed_s
    limit = 4 / (3 * PACE_S)
    says_so = any("same long-run rate" in line.text for line in explain(replace(plan, mode="ssp")))
    return Finding(
        0.98 <= rate / limit <= 1.02 and says_so,
        f"{rate / limit:.3f} of N/t_max with bound 3; reported by `paceline train --dry-run`: {says_so}",
    )


def p7_a_worker_that_leaves_holds_none_back(lab: Lab) -> Finding:
    plan = lab.plan(steps=15, timeout_s=2.0)
    done = run_virtual(plan, leaves_after={2: 4})
    finished = {rank: len(rows) for rank, rows in done.history.steps.items()}
    ok = done.errors == [None] * 3 and finished == {0: 15, 1: 15, 2: 4}
    return Finding(ok, f"steps finished: {finished}, errors: {[e for e in done.errors if e]}")


def p7b_version_staleness_is_bounded(lab: Lab) -> Finding:
    worst: dict[int, int] = {}
    for plan, bound in _schedules(lab):
        applied = [r.staleness for r in run(plan).history.server if r.op == "apply"]
        worst[bound] = max(worst.get(bound, 0), *applied)
    ok = all(value <= (2 * s + 1) * 3 for s, value in worst.items())
    limits = {s: (2 * s + 1) * 3 for s in worst}
    return Finding(ok, f"largest staleness by bound {worst}, limits {limits}")


def p1_the_bound_is_given_in_full(lab: Lab) -> Finding:
    """Worker 1 pauses once: the others continue for exactly as many steps as the bound says."""
    gaps: dict[int, int] = {}
    for bound in BOUNDS:
        pause = (StragglerRule(worker=1, delay_s=1.0, steps=(2,)),)
        witness = Witness.of(3)
        ahead = [0]

        def on_pull(rank: int, _: Slots, w: Witness = witness, seen: list[int] = ahead) -> None:
            seen.append(w.clocks[rank] - min(w.active().values()))

        witness.on_pull = on_pull
        options = StrategyOptions(staleness=bound)
        run(lab.plan(steps=8, stragglers=pause, strategy=options), wrap_store=witness.wrap)
        gaps[bound] = max(ahead)
    return Finding(all(s == gap for s, gap in gaps.items()), f"largest started gap by bound: {gaps}")


def p8_a_moving_bound_stays_in_its_range(lab: Lab) -> Finding:
    """No worker starts further ahead than the upper end, and none waits within the lower end."""
    started: dict[int, int] = {}
    held_too_soon = []
    for schedule, low in _schedules(lab):
        options = replace(schedule.strategy, staleness_range=RANGE)
        plan = replace(schedule, strategy=options, steps=24)
        witness = Witness.of(plan.num_workers)
        ahead: dict[int, int] = {}

        def on_push(rank: int, w: Witness = witness, at: dict[int, int] = ahead) -> None:
            at[rank] = w.clocks[rank] - min(w.active().values())

        def on_pull(
            rank: int, _: Slots, w: Witness = witness, at: dict[int, int] = ahead, low: int = low
        ) -> None:
            gap = w.clocks[rank] - min(w.active().values())
            started[low] = max(started.get(low, 0), gap)
            if at.get(rank, low + 1) <= low and w.acts[-1].wait_ns > 0:
                held_too_soon.append((low, rank, w.clocks[rank]))

        witness.on_push = on_push
        witness.on_pull = on_pull
        run(plan, wrap_store=witness.wrap, starts_at_s={plan.seed % 4: 0.2})
    ok = not held_too_soon and all(low < gap <= low + RANGE for low, gap in started.items())
    return Finding(
        ok,
        f"largest gap by lower bound {started}, range {RANGE}; held within it (bound, rank, clock): "
        f"{held_too_soon[:3]}",
    )


def p8_no_range_is_ssp(lab: Lab) -> Finding:
    own_witness = Witness.of(3)
    theirs = Witness.of(3)
    fixed = StrategyOptions(staleness=1, staleness_range=0)
    own_run = run(lab.plan(steps=20, strategy=fixed, stragglers=RANDOM_SPEEDS), wrap_store=own_witness.wrap)
    ssp = lab.other("ssp", steps=20, strategy=StrategyOptions(staleness=1), stragglers=RANDOM_SPEEDS)
    other = run(ssp, wrap_store=theirs.wrap)
    same_bits = state_hash(own_run.final_state()) == state_hash(other.final_state())
    same_acts = own_witness.acts == theirs.acts
    return Finding(
        same_acts and same_bits,
        f"{len(own_witness.acts)} acts equal: {same_acts}; bitwise equal: {same_bits}",
    )


def _schedules(lab: Lab) -> list[tuple[Plan, int]]:
    return [
        (
            lab.plan(
                num_workers=4,
                steps=12,
                seed=seed,
                stragglers=RANDOM_SPEEDS,
                strategy=StrategyOptions(staleness=bound),
            ),
            bound,
        )
        for bound in BOUNDS
        for seed in SEEDS
    ]


ONLY = ("ssp",)
LAWS = (
    Law(
        "P1",
        "gap of started clocks ≤ s, of completed clocks ≤ s+1, at every moment",
        ONLY,
        p1_gaps_stay_within_the_bound,
    ),
    Law(
        "P2",
        "a read at clock c contains all updates up to c-s-1 and the reader's own",
        ONLY,
        p2_a_read_contains_what_it_must,
    ),
    Law("P3", "bound 0 computes what synchronous SGD computes", ONLY, p3_bound_zero_is_synchronous),
    Law("P4", "without a bound every act and bit is asgd's", ONLY, p4_no_bound_is_asgd),
    Law("P5", "the slowest worker never waits", ONLY, p5_the_slowest_never_waits),
    Law(
        "P6",
        "a persistent straggler sets the rate to N/t_max, as the plan reports",
        ONLY,
        p6_a_persistent_straggler_sets_the_pace,
    ),
    Law(
        "P7",
        "a worker that leaves no longer blocks others",
        ONLY,
        p7_a_worker_that_leaves_holds_none_back,
    ),
    Law("P7b", "version staleness ≤ (2s+1)(N-1)", ONLY, p7b_version_staleness_is_bounded),
    Law(
        "P1.reached",
        "the bound is fully used: others start up to s steps ahead of a paused worker",
        ONLY,
        p1_the_bound_is_given_in_full,
    ),
    Law(
        "P8",
        "a moving bound is used and stays within its range",
        ("dssp",),
        p8_a_moving_bound_stays_in_its_range,
    ),
    Law("P8.ssp", "a moving bound with no range is ssp, in every act and bit", ("dssp",), p8_no_range_is_ssp),
)

"""The simulator equals the real loop, strategies and server in virtual time."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.runs.plans import RANDOM_SPEEDS, VIRTUAL_MODES, small_plan
from tests.fixtures.runs.run_plans import virtual

from paceline.plan.plan import Plan, StrategyOptions
from paceline.simulate.predict import outline
from paceline.simulate.prediction import Outline
from paceline.simulate.profile import FREE, profile_from_plan
from paceline.simulate.strategy_models import PREDICTABLE_MODES, strategy_model_of
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule


def predicted(plan: Plan) -> Outline:
    profile = profile_from_plan(plan, costs=FREE)
    return outline(profile, strategy_model_of(plan.mode, plan.strategy), steps=plan.steps, seed=plan.seed)


def assert_equal_to_virtual(plan: Plan) -> None:
    result, outcome = virtual(plan), predicted(plan)
    assert outcome.total_ns == round(result.elapsed_s * 1e9)
    applied = [row for row in result.history.server if row.op == "apply"]
    if applied:
        assert outcome.trace.ranks.tolist() == [row.rank for row in applied]
        assert outcome.trace.at_ns.tolist() == [row.at_ns for row in applied]
        assert outcome.staleness == Counter(row.staleness for row in applied)
    elif plan.mode != "single":
        met = sorted(
            row.start_ns + row.delay_ns + row.wait_ns
            for rows in result.history.steps.values()
            for row in rows
            if row.bytes_out
        )
        assert outcome.trace.at_ns.tolist() == met
        assert outcome.wait_ns == sum(row.wait_ns for rows in result.history.steps.values() for row in rows)
    steps = {rank: len(rows) for rank, rows in result.history.steps.items()}
    assert outcome.steps == tuple(steps.get(rank, 0) for rank in range(plan.num_workers))
    lost = [row for rows in result.history.abandoned.values() for row in rows]
    assert outcome.abandoned == len(lost)
    if plan.mode == "backup":
        delays_ns = sum(row.delay_ns for rows in result.history.steps.values() for row in rows)
        assert outcome.compute_ns == delays_ns + sum(row.lasted_ns - row.wait_ns for row in lost)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", [*(mode for mode in VIRTUAL_MODES if mode in PREDICTABLE_MODES), "diloco"])
def test_every_time_and_every_update_agree(mode: str, seed: int) -> None:
    workers = 1 if mode == "single" else 5
    assert_equal_to_virtual(
        small_plan(mode, num_workers=workers, steps=30, pace_s=0.01, stragglers=RANDOM_SPEEDS, seed=seed)
    )


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("ssp", StrategyOptions(staleness=0)),
        ("ssp", StrategyOptions(staleness=4)),
        ("ssp", StrategyOptions(staleness=None)),
        ("dssp", StrategyOptions(staleness=0, staleness_range=0)),
        ("dssp", StrategyOptions(staleness=0, staleness_range=3)),
        ("dssp", StrategyOptions(staleness=2, staleness_range=5)),
        ("localsgd", StrategyOptions(sync_every=5, post_local_after=7)),
        ("backup", StrategyOptions(backup_workers=0)),
        ("backup", StrategyOptions(backup_workers=2)),
        ("backup", StrategyOptions(backup_workers=3)),
        ("diloco", StrategyOptions(sync_every=5)),
        ("diloco", StrategyOptions(sync_every=6, fragments=3, sync_delay=2)),
    ],
    ids=[
        "bound 0",
        "bound 4",
        "no bound",
        "fixed",
        "moving from 0",
        "moving from 2",
        "post-local",
        "no spares",
        "2 spares",
        "first of 4",
        "outer",
        "streaming",
    ],
)
def test_settings_of_a_mode_agree_too(mode: str, options: StrategyOptions) -> None:
    rules = (StragglerRule(probability=0.3, delay_s=0.013), StragglerRule(worker=2, factor=2.5, first_step=9))
    assert_equal_to_virtual(
        small_plan(mode, num_workers=4, steps=23, pace_s=0.01, stragglers=rules, strategy=options)
    )


@pytest.mark.parametrize("allowed", Allowed)
@pytest.mark.parametrize(
    "rules",
    [
        (StragglerRule(worker=1, factor=3.0),),
        (StragglerRule(worker=1, delay_s=0.013), StragglerRule(probability=0.1, delay_s=0.02)),
        (StragglerRule(probability=0.3, factor=5.0, end_step=50), StragglerRule(worker=0, factor=1.7)),
    ],
    ids=["lasting", "delays", "passing"],
)
def test_adaptive_decides_as_in_virtual_time(allowed: Allowed, rules: tuple[StragglerRule, ...]) -> None:
    """Within 2 %: when a step is cut, it may be rounded to another nanosecond. Mostly they agree."""
    options = StrategyOptions(adaptive=allowed, sync_every=6)
    plan = small_plan(
        "adaptive",
        num_workers=4,
        steps=120,
        batch_sizes=(16,) * 4,
        pace_s=0.01,
        stragglers=rules,
        strategy=options,
    )
    result, outcome = virtual(plan), predicted(plan)
    assert outcome.total_ns == pytest.approx(result.elapsed_s * 1e9, rel=0.02)
    assert outcome.steps == tuple(len(result.history.steps[rank]) for rank in range(4))
    assert any(event.kind == "adapted" for event in result.history.plain)


@pytest.mark.parametrize("every", [1, 3, 7])
def test_blocks_of_easgd_agree_also_the_last_short_one(every: int) -> None:
    options = StrategyOptions(sync_every=every)
    assert_equal_to_virtual(
        small_plan(
            "easgd", num_workers=3, steps=10, pace_s=0.01, stragglers=RANDOM_SPEEDS, strategy=options, seed=2
        )
    )


@pytest.mark.parametrize("part", [0.2, 0.5, 1.0])
def test_rounds_of_fedavg_end_when_they_end_in_virtual_time(part: float) -> None:
    options = StrategyOptions(sync_every=4, clients_per_round=part)
    plan = small_plan(
        "fedavg", num_workers=5, steps=18, pace_s=0.01, stragglers=RANDOM_SPEEDS, strategy=options
    )
    result, outcome = virtual(plan), predicted(plan)
    assert outcome.total_ns == round(result.elapsed_s * 1e9)
    ends = {
        row.start_ns + row.delay_ns + row.wait_ns for rows in result.history.steps.values() for row in rows
    }
    assert set(outcome.trace.at_ns.tolist()) <= ends
    assert outcome.compute_ns + outcome.wait_ns == 5 * outcome.total_ns


@settings(max_examples=12, deadline=None)
@given(
    mode=st.sampled_from(["asgd", "ssp", "dssp", "backup"]),
    factors=st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0]), min_size=2, max_size=5),
    bound=st.integers(0, 3),
    seed=st.integers(0, 100),
)
def test_ties_are_broken_as_in_virtual_time(mode: str, factors: list[float], bound: int, seed: int) -> None:
    """Round factors make many workers push in the same nanosecond."""
    rules = tuple(StragglerRule(worker=r, factor=f) for r, f in enumerate(factors))
    chance = StragglerRule(probability=0.3, factor=2.0)
    strategy = StrategyOptions(
        staleness=bound if mode in ("ssp", "dssp") else None,
        staleness_range=2,
        backup_workers=min(bound, len(factors) - 1) if mode == "backup" else 0,
    )
    assert_equal_to_virtual(
        small_plan(
            mode,
            num_workers=len(factors),
            steps=8,
            pace_s=0.01,
            stragglers=(*rules, chance),
            strategy=strategy,
            seed=seed,
        )
    )

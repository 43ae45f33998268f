"""Straggler rules: reproducible slowness, as configured."""

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.fault_rules import Slowness, StragglerRule, Stragglers

NORMAL = Slowness()


@given(seed=st.integers(0, 2**63 - 1), places=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50))))
def test_the_same_step_is_equally_slow_however_often_and_in_whatever_order_it_is_queried(
    seed: int, places: list[tuple[int, int]]
) -> None:
    rules = (StragglerRule(probability=0.3, factor=4.0), StragglerRule(probability=0.5, delay_s=0.1))
    one, other = Stragglers(rules, seed=seed), Stragglers(rules, seed=seed)
    forward = {place: one.at(*place) for place in places}
    backward = {place: other.at(*place) for place in reversed(places)}
    assert forward == backward


def test_a_probability_is_the_share_of_slow_steps() -> None:
    slow = Stragglers([StragglerRule(probability=0.2, factor=10.0)], seed=5)
    hits = sum(slow.at(worker, step) != NORMAL for worker in range(4) for step in range(2500))
    four_errors = 4 * math.sqrt(10_000 * 0.2 * 0.8)
    assert abs(hits - 2000) < four_errors


def test_two_rules_with_the_same_probability_draw_independently() -> None:
    rule = StragglerRule(probability=0.5, factor=2.0)
    slow = Stragglers([rule, rule], seed=0)
    factors = {slow.at(0, step).factor for step in range(50)}
    assert factors == {1.0, 2.0, 4.0}


def test_certain_and_impossible_are_exact() -> None:
    always = Stragglers([StragglerRule(probability=1.0, factor=2.0)], seed=0)
    never = Stragglers([StragglerRule(probability=0.0, factor=2.0)], seed=0)
    assert {always.at(0, step).factor for step in range(200)} == {2.0}
    assert {never.at(0, step).factor for step in range(200)} == {1.0}


def test_a_phase_begins_with_its_first_step_and_ends_before_its_end() -> None:
    slow = Stragglers([StragglerRule(worker=1, factor=3.0, first_step=2, end_step=4)], seed=0)
    assert [slow.at(1, step).factor for step in range(6)] == [1, 1, 3, 3, 1, 1]
    assert {slow.at(0, step) for step in range(6)} == {NORMAL}


def test_a_ramp_reaches_its_factor_in_equal_parts_and_stays_there() -> None:
    slow = Stragglers([StragglerRule(worker=1, factor=5.0, first_step=2, ramp=4)], seed=0)
    assert [slow.at(1, step).factor for step in range(9)] == [1, 1, 2, 3, 4, 5, 5, 5, 5]


def test_a_trace_names_its_steps_one_by_one() -> None:
    slow = Stragglers([StragglerRule(worker=0, factor=2.0, steps=(1, 4))], seed=0)
    assert [slow.at(0, step).factor for step in range(6)] == [1, 2, 1, 1, 2, 1]


def test_rules_combine_factors_multiply_and_delays_add() -> None:
    rules = [
        StragglerRule(factor=2.0),
        StragglerRule(worker=0, factor=3.0, delay_s=0.1),
        StragglerRule(delay_s=0.2),
    ]
    slow = Stragglers(rules, seed=0)
    assert slow.at(0, 0).factor == 6.0
    assert math.isclose(slow.at(0, 0).delay_s, 0.3)
    assert slow.at(1, 0) == Slowness(2.0, 0.2)


def test_a_pace_is_the_least_time_and_slowness_comes_on_top() -> None:
    assert Slowness().duration_s(0.001, 0.01) == 0.01
    assert Slowness().duration_s(0.02, 0.01) == 0.02
    assert Slowness(3.0, 0.5).duration_s(0.001, 0.01) == 0.53

"""The simulator's stragglers, seeds and steps equal those of a run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulate.durations import Steps, matrix, slowness
from paceline.simulate.profile import (
    SPREADS,
    Constant,
    Exponential,
    Lognormal,
    Profile,
    Recorded,
    Resampled,
    StepTimes,
    Uniform,
    mean_s,
    spread_around,
)
from paceline.sync.fault_rules import StragglerRule, Stragglers

RULES = st.builds(
    StragglerRule,
    worker=st.none() | st.integers(0, 3),
    factor=st.floats(1, 20),
    delay_s=st.floats(0, 2),
    probability=st.floats(0.05, 1),
    first_step=st.integers(0, 30),
    end_step=st.none() | st.integers(31, 60),
    steps=st.none() | st.lists(st.integers(0, 60), max_size=6).map(tuple),
    ramp=st.integers(0, 20),
)


@given(
    rules=st.lists(RULES, max_size=4),
    seed=st.integers(0, 2**63 - 1),
    worker=st.integers(0, 3),
    first=st.integers(0, 40),
)
def test_many_steps_at_once_are_bit_for_bit_those_of_one_by_one(
    rules: list[StragglerRule], seed: int, worker: int, first: int
) -> None:
    requests = [Stragglers(rules, seed=seed).at(worker, step) for step in range(first, first + 20)]
    factors, delays_s = slowness(rules, seed, worker, first, 20)
    assert factors.tolist() == [slow.factor for slow in requests]
    assert delays_s.tolist() == [slow.delay_s for slow in requests]


MODELS: list[StepTimes] = [
    Constant(0.01),
    Uniform(0.01, 0.02),
    Exponential(0.01),
    Lognormal(0.01, 0.4),
    Recorded((0.3, 0.1, 0.2)),
    Resampled(tuple(k / 100 for k in range(1, 31))),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_a_step_takes_the_same_however_many_are_made_at_once(model: StepTimes) -> None:
    profile = Profile(num_workers=1, step_times=(model,), batch_sizes=(1,))
    few, many = Steps(profile, 5, 0, chunk=16), Steps(profile, 5, 0, chunk=1024)
    assert few.first(200).tolist() == many.first(200).tolist()
    stream = iter(few)
    assert [next(stream) for _ in range(200)] == many.first(200).tolist()


@pytest.mark.parametrize("model", MODELS[:4], ids=lambda m: type(m).__name__)
def test_drawn_times_have_the_mean_of_the_model(model: StepTimes) -> None:
    drawn = matrix(Profile(num_workers=1, step_times=(model,), batch_sizes=(1,)), 1, 40_000)
    assert drawn.mean() / 1e9 == pytest.approx(mean_s(model), rel=0.03)


@pytest.mark.parametrize("name", SPREADS)
def test_every_spread_keeps_the_mean(name: str) -> None:
    assert mean_s(spread_around(name, 0.02)) == pytest.approx(0.02)


def test_recorded_steps_come_again_in_their_order_but_the_first_only_once() -> None:
    profile = Profile(num_workers=1, step_times=(Recorded((9.0, 1.0, 2.0)),), batch_sizes=(1,))
    assert (matrix(profile, 0, 7)[0] / 1e9).tolist() == [9, 1, 2, 1, 2, 1, 2]


def test_resampling_slows_all_workers_down_at_the_same_steps() -> None:
    slow_in_the_middle = tuple(10.0 if 40 <= k < 60 else 1.0 for k in range(100))
    profile = Profile(num_workers=2, step_times=(Resampled(slow_in_the_middle),) * 2, batch_sizes=(1, 1))
    one, other = matrix(profile, 3, 500)
    assert np.array_equal(one, other)
    assert 0.05 < (one > 5e9).mean() < 0.4

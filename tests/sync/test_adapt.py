"""Adaptive policy: when the setting changes, and when it stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.sync.adaptive_policy import (
    DECIDE_EVERY,
    Decision,
    Hindsight,
    State,
    Window,
    decide,
    first_state,
    lasting_s,
    next_decision,
)
from paceline.sync.adaptive_setting import (
    Adapted,
    AdaptiveSetting,
    AdaptiveTerms,
    Allowed,
    SyncPolicy,
    setting_from_event,
)

AUTO = AdaptiveTerms(allowed=Allowed.AUTO, batch_sizes=(32,) * 4, period=8)
BATCH = AdaptiveTerms(allowed=Allowed.BATCH, batch_sizes=(32,) * 4, period=8)
LOCAL = AdaptiveTerms(allowed=Allowed.LOCAL_STEPS, batch_sizes=(32,) * 4, period=8)
UNEQUAL = AdaptiveTerms(allowed=Allowed.AUTO, batch_sizes=(8, 16, 32, 8), period=8)

EQUAL: Window = [[0.001] * 16] * 4
ONE_SLOW: Window = [[0.001] * 16, [0.003] * 16, [0.001] * 16, [0.001] * 16]
OTHER_SLOW: Window = [[0.001] * 16, [0.001] * 16, [0.003] * 16, [0.001] * 16]
# In every step another worker takes ten times as long.
PASSING: Window = [[0.010 if step % 4 == worker else 0.001 for step in range(16)] for worker in range(4)]
A_LITTLE: Window = [[0.001] * 16, [0.00105] * 16, [0.001] * 16, [0.001] * 16]


def decided(terms: AdaptiveTerms, *windows: Window) -> Decision:
    decision = Decision(first_state(terms))
    for window in windows:
        decision = decide(decision.state, window, terms)
    return decision


@pytest.mark.parametrize(
    ("terms", "windows", "way"),
    [
        (AUTO, [EQUAL, EQUAL, EQUAL], SyncPolicy.SSGD),
        (AUTO, [ONE_SLOW], SyncPolicy.SSGD),
        (AUTO, [ONE_SLOW, ONE_SLOW], SyncPolicy.BATCH),
        (AUTO, [ONE_SLOW, OTHER_SLOW], SyncPolicy.SSGD),
        (AUTO, [ONE_SLOW, EQUAL, ONE_SLOW, EQUAL], SyncPolicy.SSGD),
        (AUTO, [A_LITTLE] * 4, SyncPolicy.SSGD),
        (AUTO, [PASSING], SyncPolicy.SSGD),
        (AUTO, [PASSING, PASSING], SyncPolicy.LOCAL_STEPS),
        (AUTO, [PASSING, EQUAL, PASSING], SyncPolicy.SSGD),
        (AUTO, [PASSING, PASSING, EQUAL, EQUAL], SyncPolicy.SSGD),
        (AUTO, [PASSING, PASSING, ONE_SLOW, ONE_SLOW], SyncPolicy.BATCH),
        (AUTO, [ONE_SLOW, ONE_SLOW, EQUAL, EQUAL], SyncPolicy.SSGD),
        (UNEQUAL, [PASSING, PASSING], SyncPolicy.SSGD),
        (BATCH, [PASSING] * 3, SyncPolicy.BATCH),
        (LOCAL, [EQUAL] * 3, SyncPolicy.LOCAL_STEPS),
    ],
)
def test_the_way_follows_what_was_seen_twice(
    terms: AdaptiveTerms, windows: list[Window], way: SyncPolicy
) -> None:
    assert decided(terms, *windows).state.setting.policy is way


def test_a_lasting_straggler_gets_fewer_samples_and_the_reason_is_stated(wording: Wording) -> None:
    decision = decided(AUTO, ONE_SLOW, ONE_SLOW)
    assert decision.state.setting.shares == (39, 13, 38, 38)
    assert decision.reason is not None
    for number in ("worker 1", "3.0", "39.0 ms", "96.0 ms"):
        assert number in decision.reason
    wording(decision.reason)


def test_passing_delays_leave_the_local_steps_equal(wording: Wording) -> None:
    decision = decided(AUTO, PASSING, PASSING)
    assert decision.state.setting.shares == (8, 8, 8, 8)
    assert decision.reason is not None
    assert "8 steps" in decision.reason
    wording(decision.reason)


def test_where_only_shares_can_change_the_first_are_dealt_at_once() -> None:
    assert decided(BATCH, ONE_SLOW).state.setting.shares == (39, 13, 38, 38)
    assert decided(LOCAL, ONE_SLOW).state.setting.shares == (10, 3, 10, 9)
    assert decided(BATCH, A_LITTLE).reason is None


def test_shares_are_only_taken_if_they_do_well_in_a_window_that_they_were_not_made_for(
    wording: Wording,
) -> None:
    moved = decided(BATCH, ONE_SLOW, OTHER_SLOW)
    assert moved.state.setting.shares == (32, 32, 32, 32)
    assert moved.reason is not None
    wording(moved.reason)
    assert decide(moved.state, OTHER_SLOW, BATCH).state.setting.shares == (39, 39, 12, 38)


def test_a_window_in_which_a_worker_has_no_measurement_changes_nothing() -> None:
    state = decided(AUTO, ONE_SLOW).state
    empty: Window = [[0.001], [], [0.001], [0.001]]
    assert decide(state, empty, AUTO) == Decision(state)


def test_steps_that_take_no_time_are_no_reason_to_change() -> None:
    nothing: Window = [[0.0] * 4] * 4
    for terms in (AUTO, BATCH, LOCAL):
        assert decided(terms, nothing, nothing, nothing).reason is None


def test_a_difference_that_may_be_noise_is_ignored() -> None:
    noisy: Window = [[0.001, 0.009, 0.001, 0.001], [0.001] * 4, [0.001, 0.001, 0.010, 0.001], [0.001] * 4]
    believed = lasting_s(noisy)
    assert max(believed) - min(believed) < 0.0005
    assert lasting_s(ONE_SLOW) == pytest.approx((0.001, 0.003, 0.001, 0.001))


def test_a_step_takes_as_long_as_its_slowest_and_a_round_as_its_slowest_sum() -> None:
    ssgd, local = AUTO.as_planned(SyncPolicy.SSGD), AUTO.as_planned(SyncPolicy.LOCAL_STEPS)
    passing, one_slow = Hindsight(PASSING, AUTO), Hindsight(ONE_SLOW, AUTO)
    assert passing.step_s(ssgd) == pytest.approx(32 * 0.010)
    assert passing.step_s(local) == pytest.approx(32 * (2 * 0.010 + 6 * 0.001) / 8)
    assert one_slow.step_s(AdaptiveSetting(SyncPolicy.LOCAL_STEPS, (10, 3, 10, 9))) == pytest.approx(
        32 * 10e-3 / 8
    )


def test_decisions_come_early_at_first_and_then_regularly() -> None:
    seen, result = [], 0
    while result < 64:
        result = next_decision(result)
        seen.append(result)
    assert seen == [4, 8, 16, 32, 48, 64]
    assert next_decision(20) == 2 * DECIDE_EVERY


def test_a_shorter_last_round_is_dealt_like_the_others() -> None:
    setting = AdaptiveSetting(SyncPolicy.LOCAL_STEPS, (10, 3, 10, 9))
    assert LOCAL.in_a_round(setting, 8) == (10, 3, 10, 9)
    assert sum(LOCAL.in_a_round(setting, 3)) == 12
    assert min(LOCAL.in_a_round(setting, 1)) == 1


def test_what_is_recorded_is_read_back() -> None:
    now = AdaptiveSetting(SyncPolicy.BATCH, (39, 13, 38, 38))
    adapted = Adapted(step=8, was=SyncPolicy.SSGD, now=now, reason="because")
    assert setting_from_event(adapted.fields()) == now
    assert adapted.fields()["from"] == "ssgd"


@given(
    windows=st.lists(
        st.lists(st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=8), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    allowed=st.sampled_from(Allowed),
)
def test_whatever_is_seen_all_work_is_dealt_and_a_change_has_a_reason(
    windows: list[list[list[float]]], allowed: Allowed
) -> None:
    terms = AdaptiveTerms(allowed=allowed, batch_sizes=(8, 8, 8), period=4)
    state: State = first_state(terms)
    for window in windows:
        decision = decide(state, window, terms)
        setting = decision.state.setting
        assert (decision.reason is None) == (setting == state.setting)
        assert sum(setting.shares) == (12 if setting.policy is SyncPolicy.LOCAL_STEPS else 24)
        assert min(setting.shares) >= 1
        assert setting.policy in terms.policies
        state = decision.state

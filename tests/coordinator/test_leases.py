"""Leases: silence is judged by time in which the leader has run, never by a standstill or a calendar."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.server.leader_tasks import Holder, Leases
from paceline.core.clock import ActiveTimeout, StandstillDetector

A, B = Holder("r", "a", 1), Holder("r", "b", 2)
LEASE_S, GRACE_S, SLACK_S = 3.0, 0.5, 0.75


def leases(*holders: Holder, now_s: float = 0.0) -> Leases:
    result = Leases(LEASE_S, GRACE_S)
    result.restart(holders, now_s)
    return result


def lost(result: Leases, now_s: float, since_s: float = -math.inf) -> list[str]:
    return [holder.worker for holder, _ in result.take_expired(now_s, since_s)]


def test_a_silent_worker_is_lost_after_its_lease_and_only_once() -> None:
    result = leases(A, B)
    result.heard(B, 1.0)
    assert lost(result, 2.9) == []
    assert lost(result, 3.0) == ["a"]
    assert lost(result, 3.9) == []
    assert lost(result, 4.0) == ["b"]
    assert len(result) == 0


def test_a_worker_whose_connection_ended_is_lost_after_the_grace_unless_it_comes_back() -> None:
    result = leases(A, B)
    result.closed(A, 1.0)
    result.closed(B, 1.0)
    result.heard(B, 1.2)
    assert lost(result, 1.4) == []
    assert lost(result, 1.5) == ["a"]
    assert lost(result, 2.0) == []


def test_after_a_standstill_every_worker_holds_a_whole_lease_again() -> None:
    result = leases(A, B)
    assert lost(result, 100.0, since_s=100.0) == []
    result.heard(B, 101.0)
    assert lost(result, 102.9, since_s=100.0) == []
    assert lost(result, 103.0, since_s=100.0) == ["a"]
    assert lost(result, 104.0, since_s=100.0) == ["b"]


@pytest.mark.parametrize("closed_s", [99.0, 100.0, 100.1])
def test_a_connection_that_is_found_closed_after_a_standstill_has_a_whole_lease_too(closed_s: float) -> None:
    result = leases(A)
    result.closed(A, closed_s)
    assert lost(result, 102.9, since_s=100.0) == []
    assert lost(result, 103.0, since_s=100.0) == ["a"]


def test_a_standstill_shows_in_either_clock() -> None:
    attention = StandstillDetector(SLACK_S)
    assert attention.update(10.0, 50.0) == -math.inf
    assert attention.update(10.7, 50.7) == -math.inf
    assert attention.update(20.0, 60.0) == 20.0  # the process was stopped
    assert attention.update(20.1, 90.0) == 20.1  # the machine was suspended: its monotonic clock stood still
    assert attention.gap_s == 30.0
    assert attention.update(20.2, 90.1) == 20.1


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60))
def test_no_worker_that_beats_while_the_leader_runs_is_ever_lost(gaps_s: list[float]) -> None:
    """Looks come at arbitrary times; a beat arrives between two looks whenever the leader was attentive."""
    result, attention, now_s = leases(A), StandstillDetector(SLACK_S), 0.0
    attention.update(now_s, now_s)
    for gap_s in gaps_s:
        if gap_s <= SLACK_S:
            result.heard(A, now_s)
        now_s += gap_s
        assert lost(result, now_s, attention.update(now_s, now_s)) == []


@given(st.lists(st.floats(0.01, 0.99 * SLACK_S), min_size=20, max_size=60))
def test_a_worker_that_never_beats_is_lost_once_the_leader_has_run_for_a_lease(gaps_s: list[float]) -> None:
    result, attention, now_s = leases(A), StandstillDetector(SLACK_S), 0.0
    gone = False
    for gap_s in gaps_s:
        now_s += gap_s
        gone = gone or lost(result, now_s, attention.update(now_s, now_s)) == ["a"]
        assert gone == (now_s >= LEASE_S)


def test_patience_is_used_up_by_time_that_the_process_has_run() -> None:
    now_s = [0.0]
    patience = ActiveTimeout(2.0, now_s=lambda: now_s[0])
    assert patience.next_s() == 0.5
    now_s[0] = 1.8
    assert patience.next_s() == pytest.approx(0.2)
    now_s[0] = 1000.0  # stopped, or suspended
    assert patience.next_s() == 0.5
    now_s[0] = 1002.0
    assert patience.next_s() == 0.0

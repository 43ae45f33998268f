"""Restart rules: back-off, a limit, and a reason for each decision."""

from itertools import pairwise

import pytest
from tests.fixtures.wording import Wording

from paceline.launchers.supervision import RESET_AFTER_S, WINDOW_S, GiveUp, LeaveOut, Replace, RestartPolicy


def waits(restarts: RestartPolicy, times: int, *, every_s: float = 1.0) -> list[float]:
    results = []
    for number in range(times):
        now_s = number * every_s
        decision = restarts.lost("worker-1", "killed", now_s, living=3, jitter=0.0)
        assert isinstance(decision, Replace)
        results.append(decision.at_s - now_s)
    return results


def test_each_loss_makes_the_replacement_wait_twice_as_long() -> None:
    result = waits(RestartPolicy(budget=100, min_workers=1), 4)
    assert [round(later / sooner) for sooner, later in pairwise(result)] == [2, 2, 2]


def test_losses_of_long_ago_are_forgiven() -> None:
    result = waits(RestartPolicy(budget=100, min_workers=1), 20, every_s=RESET_AFTER_S)
    assert result == pytest.approx([result[0]] * 20)


def test_jitter_spreads_replacements() -> None:
    restarts = RestartPolicy(budget=10, min_workers=1)
    first = restarts.lost("worker-1", "killed", 0.0, living=3, jitter=0.0)
    second = restarts.lost("worker-2", "killed", 0.0, living=2, jitter=1.0)
    assert isinstance(first, Replace)
    assert isinstance(second, Replace)
    assert first.at_s < second.at_s


def test_a_worker_that_dies_again_and_again_is_left_out_while_enough_others_live(wording: Wording) -> None:
    restarts = RestartPolicy(budget=12, min_workers=2)
    decisions = [restarts.lost("worker-1", "killed", float(n), living=2, jitter=0.5) for n in range(4)]
    assert isinstance(decisions[-1], LeaveOut)
    wording(decisions[-1].reason)


def test_the_run_gives_up_when_the_budget_is_spent_and_too_few_live(wording: Wording) -> None:
    restarts = RestartPolicy(budget=1, min_workers=2)
    restarts.lost("worker-1", "killed", 0.0, living=2, jitter=0.0)
    decision = restarts.lost("worker-2", "killed", 1.0, living=1, jitter=0.0)
    assert isinstance(decision, GiveUp)
    wording(decision.reason)


def lose(
    restarts: RestartPolicy, number: int, now_s: float, *, living: int = 3
) -> Replace | LeaveOut | GiveUp:
    """Always another worker: none of them is lost again and again."""
    return restarts.lost(f"worker-{number}", "killed", now_s, living=living, jitter=0.0)


def test_the_budget_is_one_of_an_hour_and_not_of_the_whole_run() -> None:
    restarts = RestartPolicy(budget=20, min_workers=2)
    for number in range(500):  # a loss every three minutes for a day: as many as the budget allows
        result = lose(restarts, number, number * WINDOW_S / 20)
        assert isinstance(result, Replace)
        assert result.at_s - number * WINDOW_S / 20 < 1.0


def test_beyond_the_budget_a_replacement_waits_for_its_place_in_the_hour() -> None:
    restarts = RestartPolicy(budget=3, min_workers=2)
    for number in range(3):
        lose(restarts, number, float(number))
    late = [lose(restarts, number, 10.0) for number in (3, 4)]
    assert [result.at_s for result in late if isinstance(result, Replace)] == pytest.approx(
        [WINDOW_S, WINDOW_S + 1], abs=1.0
    )
    assert all("--max-replacements" in result.reason for result in late)


def test_too_few_workers_beyond_the_budget_end_the_run_and_the_flag_is_named() -> None:
    restarts = RestartPolicy(budget=1, min_workers=2)
    lose(restarts, 0, 0.0)
    result = lose(restarts, 1, 1.0, living=1)
    assert isinstance(result, GiveUp)
    assert "--max-replacements" in result.reason
    assert isinstance(lose(RestartPolicy(budget=0, min_workers=1), 0, 0.0), LeaveOut)

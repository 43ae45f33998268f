"""Do all workers of a generation come to the same shares, and may one leave only when another stays?"""

from paceline.transport.generation_board import Row
from paceline.worker.sharing import LISTEN_S, RARELY, OwnBest, meetings_between, who_leaves


def rows(*leaves: int) -> list[Row]:
    return [Row(1, 1, leave) for leave in leaves]


def test_those_who_were_asked_leave() -> None:
    assert who_leaves(rows(0, 1, 1)) == [1, 2]
    assert who_leaves(rows(0, 0)) == []


def test_somebody_stays_who_has_the_state() -> None:
    assert who_leaves(rows(1, 1, 1)) == [1, 2]
    assert who_leaves(rows(1)) == []


def test_the_best_is_a_pace_and_not_a_lucky_moment() -> None:
    best = OwnBest()
    for shard_ns in (10, 10, 1, 10, 10):
        best.take(shard_ns)
    assert best.ns == 10
    for shard_ns in (30, 5, 5, 5):
        best.take(shard_ns)
    assert best.ns == 5


def test_short_steps_exchange_rows_at_some_meetings_only() -> None:
    assert meetings_between(0.02) == 1  # as long as that, at every one
    assert meetings_between(LISTEN_S / 10) == 10
    assert meetings_between(1e-9) == RARELY
    assert meetings_between(0.0) == 1  # nobody had a shard: nothing is known

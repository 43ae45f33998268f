"""All workers of a generation compute the same shares, and the last holder of the state stays."""

from paceline.transport.generation.ports import BoardRow
from paceline.worker.elastic.sharing import (
    EXCHANGE_S,
    MAX_STEPS_BETWEEN_EXCHANGES,
    BestSpeed,
    leaving_ranks,
    steps_between_exchanges,
)


def rows(*leaves: int) -> list[BoardRow]:
    return [BoardRow(1, 1, leave) for leave in leaves]


def test_workers_that_received_a_request_leave() -> None:
    assert leaving_ranks(rows(0, 1, 1)) == [1, 2]
    assert leaving_ranks(rows(0, 0)) == []


def test_a_worker_with_the_state_stays() -> None:
    assert leaving_ranks(rows(1, 1, 1)) == [1, 2]
    assert leaving_ranks(rows(1)) == []


def test_the_best_is_a_pace_and_not_a_lucky_moment() -> None:
    best = BestSpeed()
    for shard_ns in (10, 10, 1, 10, 10):
        best.take(shard_ns)
    assert best.ns == 10
    for shard_ns in (30, 5, 5, 5):
        best.take(shard_ns)
    assert best.ns == 5


def test_short_steps_exchange_rows_at_some_meetings_only() -> None:
    assert steps_between_exchanges(0.02) == 1  # as long as that, at every one
    assert steps_between_exchanges(EXCHANGE_S / 10) == 10
    assert steps_between_exchanges(1e-9) == MAX_STEPS_BETWEEN_EXCHANGES
    assert steps_between_exchanges(0.0) == 1  # no worker had a shard: nothing is known

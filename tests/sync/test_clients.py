"""Client draws are fair and reproducible, and all work is done once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.averaging import Rounds, clients_drawn, clients_per_round


@given(
    seed=st.integers(0, 1000),
    workers=st.integers(1, 8),
    steps=st.integers(1, 20),
    every=st.integers(1, 6),
    fraction=st.floats(0.01, 1.0),
)
def test_rounds_continue_until_every_client_has_done_all_steps(
    seed: int, workers: int, steps: int, every: int, fraction: float
) -> None:
    count = clients_per_round(fraction, workers)
    rounds = Rounds(seed, workers, steps, every, count)
    while drawn := rounds.current():
        working = sum(result < steps for result in rounds.done)
        assert len(drawn) == min(count, working)
        assert all(1 <= mine <= every for mine in drawn.values())
        rounds.finish()
    assert rounds.done == [steps] * workers
    if count == workers:
        assert rounds.number == -(-steps // every)


def test_the_draw_depends_on_seed_and_round_and_on_nothing_else() -> None:
    items = [clients_drawn(5, number, range(10), 3) for number in range(20)]
    assert items == [clients_drawn(5, number, range(10), 3) for number in range(20)]
    assert items != [clients_drawn(6, number, range(10), 3) for number in range(20)]
    assert len(set(items)) > 10


def test_every_client_is_drawn_about_equally_often() -> None:
    times = Counter(rank for number in range(3000) for rank in clients_drawn(1, number, range(6), 2))
    assert set(times) == set(range(6))
    # 1,000 each, with a standard deviation of 26.
    assert all(abs(count - 1000) < 130 for count in times.values())


@pytest.mark.parametrize(
    ("fraction", "workers", "drawn"),
    [(1.0, 4, 4), (0.5, 4, 2), (0.5, 5, 3), (0.07, 100, 7), (0.001, 4, 1), (1 / 3, 3, 1)],
)
def test_a_fraction_is_rounded_up_to_whole_clients(fraction: float, workers: int, drawn: int) -> None:
    assert clients_per_round(fraction, workers) == drawn

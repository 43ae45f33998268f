"""Slow-worker detection: soon, and without false alarms, for any noise."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.sync.slow_workers import SlowWorkers, SpeedChange

PACE_S = 0.01


class Crew:
    """Workers that each do three shards of a step."""

    def __init__(self, workers: int) -> None:
        self.slow, self.bests = SlowWorkers(workers), [float("inf")] * workers
        self.elapsed_s = 0.0

    def step(self, seconds: list[float | None]) -> list[SpeedChange]:
        for worker, own_s in enumerate(seconds):
            if own_s is not None:
                self.bests[worker] = min(self.bests[worker], own_s)
        step_s = max(3 * (own_s or 0.0) for own_s in seconds)
        self.elapsed_s += step_s
        return self.slow.observe(seconds, self.bests, step_s)


def test_a_gradual_slow_down_is_found_within_five_seconds_with_its_factor(wording: Wording) -> None:
    crew = Crew(4)
    for _ in range(30):
        assert crew.step([PACE_S] * 4) == []
    began_s, result, factor = crew.elapsed_s, list[SpeedChange](), 1.1
    while not result:
        result = crew.step([PACE_S, PACE_S, PACE_S * factor, PACE_S])
        factor = min(10.0, factor + 0.1)
        assert crew.elapsed_s - began_s < 5.0
    (first,) = result
    assert (first.worker, first.is_slow) == (2, True)
    assert first.pace.score >= 1.5
    assert first.pace.describe().count("10.0 ms") == 2  # of its peers, and its own best
    wording(first.pace.describe())


def test_one_second_more_in_every_step_is_found_within_five_seconds() -> None:
    crew = Crew(3)
    for _ in range(5):
        crew.step([0.02] * 3)
    began_s, result = crew.elapsed_s, list[SpeedChange]()
    while not result:
        result = crew.step([0.02, 0.02 + 1 / 3, 0.02])
    assert result[0].worker == 1
    assert crew.elapsed_s - began_s < 5.0


def test_a_slow_worker_is_reported_once_and_once_more_when_it_has_recovered() -> None:
    crew = Crew(3)
    slow = [result for _ in range(200) for result in crew.step([PACE_S, PACE_S, 4 * PACE_S])]
    again = [result for _ in range(200) for result in crew.step([PACE_S] * 3)]
    assert [(result.worker, result.is_slow) for result in slow] == [(2, True)]
    assert [(result.worker, result.is_slow) for result in again] == [(2, False)]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), workers=st.integers(2, 6))
def test_noise_that_affects_all_workers_alike_flags_none(seed: int, workers: int) -> None:
    """As on a loaded machine: most steps are usual, some wait for a processor."""
    rng, crew = random.Random(seed), Crew(workers)
    for _ in range(400):
        times = [PACE_S * (1 + rng.expovariate(4)) + 0.02 * (rng.random() < 0.1) for _ in range(workers)]
        assert crew.step(list(times)) == []


def test_a_difference_of_a_millisecond_is_the_schedulers_doing() -> None:
    crew = Crew(3)
    assert not any(crew.step([0.0005, 0.0005, 0.002]) for _ in range(5000))


def test_only_a_worker_that_was_faster_once_is_worth_replacing() -> None:
    always = Crew(3)
    for _ in range(1000):
        always.step([PACE_S, PACE_S, 4 * PACE_S])
        assert always.slow.worth_replacing() == []
    became = Crew(3)
    for _ in range(10):
        became.step([PACE_S] * 3)
    results = []
    for _ in range(1000):
        became.step([PACE_S, PACE_S, 4 * PACE_S])
        results += became.slow.worth_replacing()
    assert [worker for worker, _ in results] == [2]


def test_a_worker_without_shards_stays_what_it_was() -> None:
    crew = Crew(3)
    for _ in range(100):
        crew.step([PACE_S, PACE_S, 9 * PACE_S])
    assert [f for _ in range(100) for f in crew.step([PACE_S, PACE_S, None])] == []
    assert [f.is_slow for _ in range(5) for f in crew.step([PACE_S] * 3)] == [False]


def test_a_single_worker_is_never_slow() -> None:
    crew = Crew(1)
    assert not any(crew.step([seconds]) for seconds in (0.01, 0.1, 1.0, 10.0))

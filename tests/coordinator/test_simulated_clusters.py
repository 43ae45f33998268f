"""Simulated clusters keep the properties of Raft's paper under faults, and the checks detect mutants."""

import random

import pytest
from tests.raft_simulation.mutants import MUTANTS
from tests.raft_simulation.run import EVENTS, examine, first_violation
from tests.raft_simulation.weather import CLIMATES, draw

from paceline.coordinator.raft.core import Raft

SEEDS = 300
PART = 25


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_seed_shows_a_violation(first: int) -> None:
    seen = [examine(seed) for seed in range(first, first + PART)]
    assert [(result.seed, result.violation) for result in seen if result.violation is not None] == []
    assert all(result.events >= EVENTS for result in seen)
    assert sum(result.answered for result in seen) > PART  # something was done, too


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda kind: kind.__name__)
def test_every_mistake_is_found(mutant: type[Raft]) -> None:
    violation = first_violation(mutant, seeds=1000, climate=MUTANTS[mutant])
    assert violation is not None, f"{mutant.__name__}: {mutant.__doc__}"
    # Without the mistake the same seed in the same weather shows nothing.
    assert examine(violation.seed, climate=MUTANTS[mutant]).violation is None


def test_one_seed_is_one_story() -> None:
    assert examine(7) == examine(7)


def test_ordinary_seeds_see_every_climate() -> None:
    drawn = {draw(random.Random(seed)).climate for seed in range(SEEDS)}
    assert drawn == set(CLIMATES)


@pytest.mark.parametrize("climate", CLIMATES)
def test_the_simulated_network_is_as_bad_as_configured_and_work_is_done_in_it(climate: str) -> None:
    seen = [examine(seed, climate=climate) for seed in range(20)]
    assert sum(result.terms for result in seen) > 2 * len(seen)
    assert sum(result.answered for result in seen) > 2 * len(seen)
    if climate == "power cuts":
        assert sum(result.torn for result in seen) > len(seen)

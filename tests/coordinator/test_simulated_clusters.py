"""Do whole clusters keep the properties of Raft's paper, whatever breaks, and would we notice if not?"""

import pytest
from tests.raft_simulation.mutants import MUTANTS
from tests.raft_simulation.run import EVENTS, examine, first_violation

from paceline.coordinator.raft.core import Raft

SEEDS = 300
PART = 25


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_seed_shows_a_violation(first: int) -> None:
    seen = [examine(seed) for seed in range(first, first + PART)]
    assert [found.seed for found in seen if found.violation is not None] == []
    assert all(found.events >= EVENTS for found in seen)
    assert sum(found.acknowledged for found in seen) > PART  # something was done, too


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda kind: kind.__name__)
def test_every_mistake_is_found(mutant: type[Raft]) -> None:
    found = first_violation(mutant, seeds=1000)
    assert found is not None, f"{mutant.__name__}: {mutant.__doc__}"


def test_one_seed_is_one_story() -> None:
    assert examine(7) == examine(7)

"""Command line of the simulation: `python -m tests.raft_simulation --seeds 300` prints failing seeds."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.raft_simulation.world import World

from paceline.coordinator.raft.core import Raft

EVENTS = 2000
FIGURES = ("events", "terms", "committed", "answered", "crashes", "torn")


@dataclass(frozen=True, slots=True)
class Seen:
    """What one seed showed."""

    seed: int
    events: int
    terms: int
    committed: int
    answered: int  # what clients were told
    crashes: int
    torn: int  # of them in the middle of a write
    violation: str | None


def examine(seed: int, make: type[Raft] = Raft, climate: str | None = None) -> Seen:
    """Bad weather, then a fine day, then the clients' history; a failed assertion is a violation."""
    world = World(seed, make=make, climate=climate)
    violation = None
    try:
        world.run(EVENTS)
        world.heal()
        world.check_end()
        world.check_return()
    except AssertionError as error:
        violation = f"event {world.now}: {error}"
    return Seen(
        seed,
        world.now,
        len(world.checks.leaders),
        len(world.checks.committed),
        world.clients.answered,
        world.around.crashes,
        world.around.torn,
        violation,
    )


def first_violation(make: type[Raft], *, seeds: int, climate: str | None = None) -> Seen | None:
    """The first seed that shows this mistake; whatever it raises counts."""
    for seed in range(seeds):
        try:
            result = examine(seed, make, climate)
        except (IndexError, KeyError, TypeError) as error:
            return Seen(seed, 0, 0, 0, 0, 0, 0, f"{type(error).__name__}: {error}")
        if result.violation is not None:
            return result
    return None


def _all(first: int, count: int) -> Iterator[Seen]:
    with ProcessPoolExecutor() as pool:
        yield from pool.map(examine, range(first, first + count), chunksize=20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one; with --seeds 1 it is repeated")
    chosen = parser.parse_args()
    total: Counter[str] = Counter()
    broken: list[Seen] = []
    for number, seen in enumerate(_all(chosen.first, chosen.seeds), start=1):
        total.update({name: getattr(seen, name) for name in FIGURES})
        if seen.violation is not None:
            broken.append(seen)
            again = f"python -m tests.raft_simulation --first {seen.seed} --seeds 1"
            print(f"seed {seen.seed}: {seen.violation}\n  again:  {again}", file=sys.stderr)
        if number % 500 == 0:
            print(f"{number} of {chosen.seeds} seeds", file=sys.stderr)
    print(
        f"{chosen.seeds} seeds: {total['events']} events, {total['terms']} terms,"
        f" {total['committed']} entries committed, {total['answered']} operations answered,"
        f" {total['crashes']} crashes ({total['torn']} in the middle of a write),"
        f" {len(broken)} violations"
    )
    return 1 if broken else 0

"""What do the workers of a generation tell each other at every commit, besides gradients? A few numbers.

Each writes its own row before the meeting of a step, or of a round, and reads
all rows after it. Two rows each, used in turn: whoever is one ahead writes where
nobody reads any more, because it could not have passed the meeting in between.
"""

from collections.abc import Sequence
from typing import NamedTuple

from paceline.transport.generation_world import GenerationWorld

NUMBERS = 3
WORDS = 2 * NUMBERS


class Row(NamedTuple):
    """Of one worker at one step."""

    shard_ns: int  # for one of its shards, before the meeting; 0: it had none
    best_ns: int  # the least that ever was, in its process; 0: not known yet
    leaves: int  # 1: after this step it leaves the run


class GenerationBoard:
    def __init__(self, world: GenerationWorld, first_word: int) -> None:
        self._rows = [world.words[:, start : start + NUMBERS] for start in (first_word, first_word + NUMBERS)]
        self._rank = world.rank
        self.parties = world.parties
        self._meetings = 0

    def write(self, row: Row) -> None:
        self._rows[self._meetings & 1][self._rank] = row

    def read(self) -> Sequence[Row]:
        """By rank; once after each meeting, before we write again."""
        rows = self._rows[self._meetings & 1]
        self._meetings += 1
        return [Row(*map(int, row)) for row in rows]

"""How do the workers of a generation show each other how long their latest steps took? A row of numbers each.

Written before a meeting and read after it, as on the board of every commit: two rows each, used in turn, so
that whoever is one ahead writes where nobody reads any more. Everybody shows at the same meetings.
"""

from collections.abc import Sequence

import torch

from paceline.transport.generation_world import GenerationWorld


class GenerationWindow:
    def __init__(self, world: GenerationWorld, kept: int) -> None:
        """Room for `kept` numbers of each; all parties make this call at the same point."""
        rows = world.map_vectors(2, world.parties * (1 + kept), torch.float64)
        self._rows = [row.view(world.parties, 1 + kept).numpy() for row in rows]
        self._rank, self._shown = world.rank, 0

    def write(self, seconds: Sequence[float]) -> None:
        row = self._rows[self._shown & 1][self._rank]
        row[0], row[1 : 1 + len(seconds)] = len(seconds), seconds

    def read(self) -> list[list[float]]:
        """By rank; once after each meeting that we wrote for."""
        rows = self._rows[self._shown & 1]
        self._shown += 1
        return [[float(own_s) for own_s in row[1 : 1 + int(row[0])]] for row in rows]

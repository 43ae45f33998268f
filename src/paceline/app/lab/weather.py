"""What happens to a piece of data on its way? It may be late, or its connection may break; by a seed."""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fate:
    late_s: float = 0.0
    is_lost: bool = False  # and with it the connection: TCP itself never loses a piece


@dataclass(slots=True)
class Weather:
    """Each piece is late by up to `late_s`, some stall for `stall_s`, and some are lost."""

    late_s: tuple[float, float] = (0.0, 0.0)  # from, to
    stall_share: float = 0.0
    stall_s: float = 0.0
    lost_share: float = 0.0
    seed: int = 0
    lost: int = 0  # so far
    stalled: int = 0
    passed: int = 0
    _dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._dice.seed(self.seed)

    def next(self) -> Fate:
        late_s, drawn = self._dice.uniform(*self.late_s), self._dice.random()
        if drawn < self.lost_share:
            self.lost += 1
            return Fate(late_s, is_lost=True)
        if drawn < self.lost_share + self.stall_share:
            self.stalled += 1
            return Fate(late_s + self.stall_s)
        self.passed += 1
        return Fate(late_s)


CLEAR = Weather()

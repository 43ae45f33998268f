"""What does worker r send at step t instead of its gradient? Wrongness as data, the same for every mode.

A rule names an attack for some workers and steps; with a probability the choice
is drawn from (seed, worker, step), and so is the noise of garbage: a replay
meets the same attacks. What a drawn attack does to a vector of numbers is in
worker/tampering.py. See docs/concepts/robust.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.sync.dice import draw_u64, draw_uniform

_DIE = 0xB12A  # an own die: whether a worker lies must not depend on whether it is slow


class Attack(StrEnum):
    """What a bad worker sends in place of its gradient g."""

    GARBAGE = "garbage"  # noise, `scale` times as long as g
    SIGN_FLIP = "sign-flip"  # -scale * g
    SCALE = "scale"  # scale * g
    ZERO = "zero"
    NAN = "nan"
    SAME_VALUE = "same-value"  # `scale` in every place


USUAL_SCALE = {Attack.GARBAGE: 100.0, Attack.SIGN_FLIP: 1.0, Attack.SCALE: 10.0, Attack.SAME_VALUE: 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ByzantineRule:
    """One line of `--byzantine`. A worker or end of None means "any worker" or "no end"."""

    attack: Attack
    worker: int | None = None
    scale: float | None = None  # None: the attack's usual one
    probability: float = 1.0
    first_step: int = 0
    end_step: int | None = None  # not included

    @property
    def strength(self) -> float:
        return USUAL_SCALE.get(self.attack, 1.0) if self.scale is None else self.scale

    def concerns(self, worker: int, step: int) -> bool:
        if self.worker is not None and self.worker != worker:
            return False
        return step >= self.first_step and (self.end_step is None or step < self.end_step)


@dataclass(frozen=True, slots=True)
class Struck:
    """An attack that happens at one step, and the seed of whatever it draws."""

    attack: Attack
    strength: float
    seed: int


class Byzantine:
    """All rules of a run, ready to be asked once per step."""

    def __init__(self, rules: Sequence[ByzantineRule], *, seed: int) -> None:
        self._rules = tuple(rules)
        self._seed = seed

    def at(self, worker: int, step: int) -> tuple[Struck, ...]:
        """What this worker does to the gradient of this step of its own, in order."""
        struck = []
        for number, rule in enumerate(self._rules):
            if not rule.concerns(worker, step):
                continue
            place = (_DIE, number, worker, step)
            if rule.probability < 1.0 and draw_uniform(self._seed, *place) >= rule.probability:
                continue
            struck.append(Struck(rule.attack, rule.strength, draw_u64(self._seed, *place, 1) >> 1))
        return tuple(struck)


def bad_workers(rules: Sequence[ByzantineRule], num_workers: int) -> tuple[int, ...]:
    """The workers that some rule makes bad at some step."""
    return tuple(w for w in range(num_workers) if any(r.worker in (None, w) for r in rules))

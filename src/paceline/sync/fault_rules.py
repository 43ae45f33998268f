"""Fault rules: injected stragglers (`--straggler`) and Byzantine workers (`--byzantine`) as data.

A straggler rule multiplies the duration of a step's compute, or adds to it, for
some workers and steps; rules combine: factors multiply, delays add. A Byzantine
rule replaces a worker's gradient by an attack. Both are the same for every mode
and every replay: with a probability the choice is drawn from (seed, worker, step).
What an attack does to a vector is in worker/byzantine.py. See docs/concepts/robust.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.sync.rng import draw_u64, draw_uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRule:
    """One line of `--straggler`. None means "any worker" or "no end"."""

    worker: int | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    probability: float = 1.0
    first_step: int = 0
    end_step: int | None = None  # not included
    steps: tuple[int, ...] | None = None  # a recorded trace names its steps one by one
    ramp: int = 0  # steps until the factor is reached, in equal parts; 0: it holds at once

    def concerns(self, worker: int, step: int) -> bool:
        if self.worker is not None and self.worker != worker:
            return False
        return step >= self.first_step and (self.end_step is None or step < self.end_step)

    def factor_at(self, step: int) -> float:
        """The factor of a step that the rule concerns."""
        done = step - self.first_step + 1
        return self.factor if done >= self.ramp else 1.0 + (self.factor - 1.0) * done / self.ramp


@dataclass(frozen=True, slots=True)
class Slowness:
    """The slowdown of one step: compute takes `factor` times as long, plus `delay_s`."""

    factor: float = 1.0
    delay_s: float = 0.0

    def duration_s(self, compute_s: float, pace_s: float) -> float:
        """The duration of the step's compute with its slowdown, given the measured one."""
        return max(compute_s, pace_s) * self.factor + self.delay_s


class Stragglers:
    """All straggler rules of a run; evaluated once per step."""

    def __init__(self, rules: Sequence[StragglerRule], *, seed: int) -> None:
        self._rules = tuple(rules)
        self._traced = tuple(None if r.steps is None else frozenset(r.steps) for r in rules)
        self._seed = seed

    def at(self, worker: int, step: int) -> Slowness:
        factor = 1.0
        delay_s = 0.0
        for number, rule in enumerate(self._rules):
            traced = self._traced[number]
            if not rule.concerns(worker, step) or (traced is not None and step not in traced):
                continue
            if rule.probability < 1.0 and self._drawn(number, worker, step) >= rule.probability:
                continue
            factor *= rule.factor_at(step)
            delay_s += rule.delay_s
        return Slowness(factor, delay_s)

    def _drawn(self, number: int, worker: int, step: int) -> float:
        return draw_uniform(self._seed, number, worker, step)


_BYZANTINE_STREAM = 0xB12A  # a separate RNG stream: an attack must not depend on whether the worker is slow


class Attack(StrEnum):
    """What a Byzantine worker sends in place of its gradient g."""

    GARBAGE = "garbage"  # noise, `scale` times as long as g
    SIGN_FLIP = "sign-flip"  # -scale * g
    SCALE = "scale"  # scale * g
    ZERO = "zero"
    NAN = "nan"
    SAME_VALUE = "same-value"  # `scale` in every element


DEFAULT_SCALE = {Attack.GARBAGE: 100.0, Attack.SIGN_FLIP: 1.0, Attack.SCALE: 10.0, Attack.SAME_VALUE: 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ByzantineRule:
    """One line of `--byzantine`. A worker or end of None means "any worker" or "no end"."""

    attack: Attack
    worker: int | None = None
    scale: float | None = None  # None: the attack's default
    probability: float = 1.0
    first_step: int = 0
    end_step: int | None = None  # not included

    @property
    def strength(self) -> float:
        return DEFAULT_SCALE.get(self.attack, 1.0) if self.scale is None else self.scale

    def concerns(self, worker: int, step: int) -> bool:
        if self.worker is not None and self.worker != worker:
            return False
        return step >= self.first_step and (self.end_step is None or step < self.end_step)


@dataclass(frozen=True, slots=True)
class ActiveAttack:
    """An attack at one step, and the seed of its noise."""

    attack: Attack
    strength: float
    seed: int


class Byzantine:
    """All Byzantine rules of a run; evaluated once per step."""

    def __init__(self, rules: Sequence[ByzantineRule], *, seed: int) -> None:
        self._rules = tuple(rules)
        self._seed = seed

    def at(self, worker: int, step: int) -> tuple[ActiveAttack, ...]:
        """The attacks on this worker's gradient of this step, in order."""
        attacks = []
        for number, rule in enumerate(self._rules):
            if not rule.concerns(worker, step):
                continue
            place = (_BYZANTINE_STREAM, number, worker, step)
            if rule.probability < 1.0 and draw_uniform(self._seed, *place) >= rule.probability:
                continue
            attacks.append(ActiveAttack(rule.attack, rule.strength, draw_u64(self._seed, *place, 1) >> 1))
        return tuple(attacks)


def bad_workers(rules: Sequence[ByzantineRule], num_workers: int) -> tuple[int, ...]:
    """The workers that some rule makes Byzantine at some step."""
    return tuple(w for w in range(num_workers) if any(r.worker in (None, w) for r in rules))

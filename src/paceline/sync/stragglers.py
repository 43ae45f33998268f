"""How slow is worker r at step t? Heterogeneity as data, the same for every mode.

A rule multiplies the duration of a step's compute, or adds to it, for some
workers and steps; with a probability the choice is drawn from (seed, worker,
step), so it is the same whichever mode runs and however often. Rules combine:
factors multiply, delays add.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.sync.dice import draw_uniform


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
        """Of a step that it concerns."""
        done = step - self.first_step + 1
        return self.factor if done >= self.ramp else 1.0 + (self.factor - 1.0) * done / self.ramp


@dataclass(frozen=True, slots=True)
class Slowness:
    """What happens to one step: compute takes `factor` times as long, plus `delay_s`."""

    factor: float = 1.0
    delay_s: float = 0.0

    def duration_s(self, compute_s: float, pace_s: float) -> float:
        """How long the step's compute shall take in all, given how long it took."""
        return max(compute_s, pace_s) * self.factor + self.delay_s


class Stragglers:
    """All rules of a run, ready to be asked once per step."""

    def __init__(self, rules: Sequence[StragglerRule], *, seed: int) -> None:
        self._rules = tuple(rules)
        self._traced = tuple(None if r.steps is None else frozenset(r.steps) for r in rules)
        self._seed = seed

    def at(self, worker: int, step: int) -> Slowness:
        factor, delay_s = 1.0, 0.0
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

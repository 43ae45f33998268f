"""Stale synchronous parallel (SSP): asynchronous, with a bound on the lead over the slowest worker.

The bound is `--staleness`; 0 gives synchronous SGD, no bound gives asgd. The rule
and its versioned reads are in sync/admission.py.
"""

from collections.abc import Set as AbstractSet

from paceline.plan.plan import Plan
from paceline.strategies.push_pull import PushPull
from paceline.sync.admission import Bounded, Rule
from paceline.sync.assignment import Assignment, FirstCome, Static


class Ssp(PushPull):
    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return Bounded(plan.strategy.staleness)

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        if plan.strategy.staleness is None:  # no worker is held back, so fast workers may do more
            return FirstCome(plan.total_gradients, done)
        return Static(plan.num_workers, plan.steps)

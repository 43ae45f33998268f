"""Asynchronous SGD: the server applies every gradient on arrival, and no worker waits.

Work is assigned first come, first served: a fast worker does more of it, so a
slow one delays no other. Each gradient is applied alone, so the plan divides the
learning rate by the number of workers: equal samples then move the parameters
equally far. Staleness corrections (`--asgd`) are in server_updates.py.
"""

from collections.abc import Set as AbstractSet

from paceline.plan.plan import Plan
from paceline.strategies.push_pull import PushPull
from paceline.strategies.server_updates import Correction, correction_of
from paceline.sync.admission import Bounded, Rule
from paceline.sync.assignment import Assignment, FirstCome


class Asgd(PushPull):
    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return Bounded(None)

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        return FirstCome(plan.total_gradients, done)

    @classmethod
    def correction(cls, plan: Plan) -> Correction:
        return correction_of(plan)

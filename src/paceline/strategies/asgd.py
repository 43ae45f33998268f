"""Asynchronous SGD: the server applies every gradient as it comes, nobody waits.

Each gradient is applied alone, so the plan divides the learning rate by the
number of workers: equal samples then move the parameters equally far.
"""

from paceline.plan.plan import Plan
from paceline.strategies.push_pull import PushPull
from paceline.sync.admission import Bounded, Rule


class Asgd(PushPull):
    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return Bounded(None)

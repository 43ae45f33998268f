"""Synchronous parameter server: averages all workers' gradients, then applies one update per step."""

from paceline.plan.plan import Plan
from paceline.strategies.push_pull import PushPull
from paceline.sync.admission import Barrier, Rule


class Ps(PushPull):
    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return Barrier()

"""SSP with a bound that moves: a fast worker goes further ahead when waiting later costs less.

The bound of each worker lies between `staleness` and `staleness` plus
`staleness_range`; a range of 0 is ssp, act by act. What is foretold, and from
what, is in sync/admission.py.
"""

from paceline.plan.plan import Plan
from paceline.strategies.push_pull import PushPull
from paceline.sync.admission import BoundController, DynamicBounded, Rule


class Dssp(PushPull):
    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        low = plan.strategy.staleness
        assert low is not None, "the plan's check refuses a lower bound of inf"
        return DynamicBounded(low, BoundController(plan.strategy.staleness_range, plan.num_workers))

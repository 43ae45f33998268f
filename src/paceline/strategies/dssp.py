"""Dynamic SSP: a fast worker runs further ahead when waiting later costs less.

The bound of each worker lies between `staleness` and `staleness` plus
`staleness_range`; a range of 0 equals ssp, event by event. The prediction is
`BoundController` in sync/admission.py.
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

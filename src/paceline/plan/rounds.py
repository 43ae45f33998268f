"""At which steps of a run do its replicas agree? What is committed in an elastic run ends there.

Synchronous SGD agrees after every step; LocalSGD and DiLoCo at the end of a
round. Pure.
"""

from paceline.plan.plan import Plan
from paceline.sync.averaging import averages_after

ROUND_MODES = ("localsgd", "diloco")


def has_rounds(plan: Plan) -> bool:
    """Do workers train alone between two averagings?"""
    return plan.mode in ROUND_MODES


def is_whole(plan: Plan, finished: int) -> bool:
    """Can a run have committed so many steps, or is that in the middle of a round?"""
    if finished == 0 or not has_rounds(plan):
        return True
    return averages_after(
        finished,
        total=plan.steps,
        every=plan.strategy.sync_every,
        post_local_after=plan.strategy.post_local_after,
    )

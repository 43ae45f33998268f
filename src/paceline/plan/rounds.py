"""At which steps of a run do its replicas agree? What is committed in an elastic run ends there.

Synchronous SGD agrees after every step; LocalSGD and DiLoCo at the end of a
round; adaptive as it has decided, so that only the event log knows. Clients of
FedAvg are at different steps, so there rounds are counted. Pure.
"""

from paceline.plan.catalog import MODES
from paceline.plan.plan import Plan
from paceline.sync.averaging import averages_after
from paceline.sync.clients import Rounds, clients_per_round
from paceline.sync.fragments import starts_after
from paceline.sync.setting import Allowed

ROUND_MODES = tuple(mode.name for mode in MODES.values() if mode.in_rounds)


def has_rounds(plan: Plan) -> bool:
    """Do workers train alone between two averagings?"""
    return plan.mode in MODES and MODES[plan.mode].in_rounds


def is_streaming(plan: Plan) -> bool:
    """Are fragments of the parameters averaged at different steps, or applied later?"""
    options = plan.strategy
    return plan.mode == "diloco" and (options.fragments > 1 or options.sync_delay > 0 or options.mixing > 0.0)


def longest_commit(plan: Plan) -> int:
    """How many steps are committed at once, at most."""
    may_be_alone = plan.mode == "adaptive" and plan.strategy.adaptive is not Allowed.BATCH
    return plan.strategy.sync_every if has_rounds(plan) or may_be_alone else 1


def draws_of(plan: Plan) -> Rounds:
    """The rounds of federated averaging, from the first on."""
    return Rounds(
        seed=plan.seed,
        num_workers=plan.num_workers,
        steps=plan.steps,
        every=plan.strategy.sync_every,
        count=clients_per_round(plan.strategy.clients_per_round, plan.num_workers),
    )


def commits_in(plan: Plan, steps: int) -> int:
    """What so many steps are in what an elastic run counts: fedavg commits rounds, all others count steps."""
    if plan.mode != "fedavg" or steps == 0:
        return steps
    in_a_round = draws_of(plan).count * plan.strategy.sync_every  # steps of single clients
    return max(1, round(steps * plan.num_workers / in_a_round))


def is_whole(plan: Plan, finished: int) -> bool:
    """Can a run have committed so many steps, or is that in the middle of a round?"""
    if finished == 0 or not has_rounds(plan):
        return True
    if is_streaming(plan):
        return finished >= plan.steps or _averages_a_fragment(plan, finished)
    return averages_after(
        finished,
        total=plan.steps,
        every=plan.strategy.sync_every,
        post_local_after=plan.strategy.post_local_after,
    )


def _averages_a_fragment(plan: Plan, finished: int) -> bool:
    """A small model has fewer fragments than were asked for."""
    every = plan.strategy.sync_every
    return any(
        starts_after(finished, fragment, every=every, fragments=fragments)
        for fragments in range(1, plan.strategy.fragments + 1)
        for fragment in range(fragments)
    )

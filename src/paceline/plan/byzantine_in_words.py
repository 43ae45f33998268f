"""Who sends wrong gradients, and what is done about it? As a person would say it."""

from collections.abc import Iterator

from paceline.plan.catalog import AGGREGATES, MODES, ROBUST
from paceline.plan.plan import Plan
from paceline.sync.byzantine import Attack, ByzantineRule, bad_workers


def attack_in_words(rule: ByzantineRule) -> str:
    who = "every worker" if rule.worker is None else f"worker {rule.worker}"
    chance = "" if rule.probability >= 1.0 else f" with probability {rule.probability:g}"
    return f"{who} sends {_what(rule)}{chance}, {_when(rule)}"


def _what(rule: ByzantineRule) -> str:
    match rule.attack:
        case Attack.GARBAGE:
            return f"noise {rule.strength:g} times as long as its gradient"
        case Attack.SIGN_FLIP:
            return f"its gradient times {-rule.strength:g}"
        case Attack.SCALE:
            return f"its gradient times {rule.strength:g}"
        case Attack.ZERO:
            return "zeros"
        case Attack.NAN:
            return "NaN"
        case Attack.SAME_VALUE:
            return f"{rule.strength:g} in every place"


def _when(rule: ByzantineRule) -> str:
    if rule.end_step is not None:
        return f"from step {rule.first_step} until step {rule.end_step}"
    return f"from step {rule.first_step} on" if rule.first_step else "at every step"


def aggregate_in_words(plan: Plan) -> str:
    way, tolerance = plan.strategy.aggregate, plan.strategy.byzantine_tolerance
    if way not in AGGREGATES:
        return f"{way}, your own function of all {plan.num_workers} gradients"
    bad = "1 bad worker" if tolerance == 1 else f"{tolerance} bad workers"
    return f"{way}: {AGGREGATES[way]} (f = {tolerance}: {bad} of {plan.num_workers} can do no harm)"


def about_bad_workers(plan: Plan) -> Iterator[str]:
    way, tolerance = plan.strategy.aggregate, plan.strategy.byzantine_tolerance
    bad = bad_workers(plan.byzantine, plan.num_workers)
    if way == "krum":
        yield "krum applies one worker's gradient per step: its noise is that of one batch, not of all"
    if not bad:
        return
    who = f"worker {bad[0]} is" if len(bad) == 1 else f"{len(bad)} workers are"
    if way == "mean":
        reads = plan.mode in MODES and all(map(MODES[plan.mode].reads, ROBUST))
        cure = "--aggregate" if reads else "--mode ssgd or ps with --aggregate"
        yield f"{who} bad, and a mean does not survive even one; use {cure} median, trimmed-mean or krum"
    elif way in AGGREGATES and len(bad) > tolerance:
        yield f"{who} bad, but {way} is set to survive {tolerance}; raise byzantine_tolerance"

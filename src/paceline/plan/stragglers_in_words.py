"""Who is slow, and for how long? Straggler rules as a person would say them."""

from collections.abc import Sequence

from paceline.plan.plan import Plan
from paceline.sync.stragglers import StragglerRule


def in_words(rule: StragglerRule) -> str:
    who = "every worker" if rule.worker is None else f"worker {rule.worker}"
    effects = []
    if rule.factor != 1.0:
        rising = f", rising over {rule.ramp} steps" if rule.ramp else ""
        effects.append(f"takes {rule.factor:g} times as long{rising}")
    if rule.delay_s:
        effects.append(f"is delayed by {rule.delay_s * 1000:g} ms")
    chance = "" if rule.probability >= 1.0 else f" with probability {rule.probability:g}"
    return f"{who} {' and '.join(effects) or 'is not slowed'}{chance}, {_when(rule)}"


def persistent_stragglers(plan: Plan) -> tuple[int, ...]:
    """The workers that are slower than the fastest one for the whole run, not just now and then."""
    rules = [r for r in plan.stragglers if _is_persistent(r, plan.steps)]
    speeds = [_slowness(worker, rules) for worker in range(plan.num_workers)]
    return tuple(worker for worker, speed in enumerate(speeds) if speed > min(speeds))


def _when(rule: StragglerRule) -> str:
    if rule.steps is not None:
        return f"at {len(rule.steps)} step{'s' * (len(rule.steps) != 1)} of the trace"
    if rule.end_step is not None:
        return f"from step {rule.first_step} until step {rule.end_step}"
    return f"from step {rule.first_step} on" if rule.first_step else "at every step"


def _is_persistent(rule: StragglerRule, steps: int) -> bool:
    ends = rule.end_step is not None and rule.end_step < steps
    return rule.probability >= 1.0 and not ends and rule.steps is None


def _slowness(worker: int, rules: Sequence[StragglerRule]) -> tuple[float, float]:
    """(factor, delay); good enough to compare workers, not to predict a time."""
    mine = [r for r in rules if r.worker in (None, worker)]
    factor = 1.0
    for rule in mine:
        factor *= rule.factor
    return factor, sum(rule.delay_s for rule in mine)

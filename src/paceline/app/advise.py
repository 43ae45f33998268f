"""Which mode would have been faster for this run, by how much, and is that more than noise?"""

from paceline.app.simulate import Scene
from paceline.config.stragglers import rule_text
from paceline.simulate.advice import Advice, advise
from paceline.simulate.compare import REPEATS
from paceline.simulate.ways import candidates, flags_of, usual_options


def advise_on(scene: Scene, *, repeats: int = REPEATS) -> Advice:
    """Equal work under every mode; the plan's own seed first, then others."""
    plan = scene.plan
    found = candidates(usual_options(plan), plan.num_workers)
    seeds = range(plan.seed, plan.seed + max(REPEATS, repeats))
    return advise(scene.profile, found, steps=plan.steps, seeds=seeds)


def command_for(scene: Scene, advice: Advice) -> str:
    """What to type to try the advice on the same work."""
    plan, candidate = scene.plan, advice.advised.candidate
    workers = "" if candidate.mode == "single" else f" --num-workers {plan.num_workers}"
    # A recorded trace has no flag; it is left to who recorded it.
    slow = [rule_text(rule) for rule in plan.stragglers if rule.steps is None]
    conditions = [f"--pace {1000 * plan.pace_s:g}ms"] if plan.pace_s else []
    conditions += [f"--straggler {text}" for text in slow]
    words = ["paceline train --task", plan.task, f"{flags_of(candidate)}{workers}", f"--steps {plan.steps}"]
    return " ".join([*words, *conditions])

"""Part 7: how is a slow worker found while nobody looks?"""

from paceline.learn.facts import Facts, NotSeenError, RuleFacts
from paceline.learn.judge import exactly, rounded
from paceline.learn.lesson import Answer, Finding, Part, Prediction, Question

YES_NO = (("a", "yes"), ("b", "no"))


def _own(facts: Facts) -> RuleFacts:
    """The learner's rule that does best: most conditions, then whatever fires."""
    if not facts.rules:
        raise NotSeenError(facts.rules_problem or "there is no rule in rules.yaml", "see the page")
    return max(facts.rules, key=lambda rule: (bool(rule.fired["slow"]), rule.conditions))


def _check(facts: Facts) -> list[Finding]:
    facts.run("slow"), facts.run("four")  # it is tried on both
    rule = _own(facts)
    fired = rule.fired["slow"]
    return [
        Finding(
            rule.conditions >= 2,
            f"{rule.name} has {rule.conditions} condition{'s' if rule.conditions > 1 else ''}",
            "it must look at the state of the run too, as on the page: a run that is over has no slow worker",
        ),
        Finding(
            "worker-1" in fired,
            f"{rule.name} on the record of `slow`: {_fired(fired)}",
            "see how slow worker-1 was (the column `speed` of `paceline status runs/slow`), and for how long",
        ),
        Finding(
            set(fired) <= {"worker-1"},
            f"{rule.name} accuses nobody but worker-1",
            "the others were as fast as the median: a speed of 1",
        ),
        Finding(
            len(fired) == len(set(fired)),
            f"{rule.name} fires once, not again and again",
            "let it look at an average over a window, or keep it firing for a while (keep_firing_for)",
        ),
        Finding(
            not rule.fired["four"],
            f"{rule.name} on the record of `four`: {_fired(rule.fired['four'])}",
            "nobody is slow in `four`: your limit is too high",
        ),
    ]


def _fired(workers: tuple[str, ...]) -> str:
    return f"fires for {', '.join(workers)}" if workers else "silent"


def _speed(facts: Facts) -> Answer:
    speed = facts.run("slow").speeds.get(1)
    if speed is None:
        raise NotSeenError("the record of `slow` says nothing of worker-1", "make that run again (part 3)")
    return rounded(speed, 0.1)


ALERT = Part(
    number=7,
    title="Write an alert",
    minutes=10,
    page="part-7.md",
    see="A rule of yours finds the slow worker in the record of part 3, and says nothing about part 2.",
    prediction=Prediction(
        text="Of the rule on the page: does it fire on the run `slow` as it stands?",
        options=YES_NO,
        seen=lambda facts: f"your rule now: {_fired(_own(facts).fired['slow'])}",
    ),
    runs=("four", "slow"),
    new_runs=(),
    check=_check,
    questions=(
        Question(
            text="At which share of the median speed did worker-1 of `slow` work (one digit after "
            "the point)?",
            right=_speed,
            hint="the column `speed` of `paceline status runs/slow`",
        ),
        Question(
            text="For how many different workers does your rule fire on `slow`?",
            right=lambda facts: exactly(len(set(_own(facts).fired["slow"]))),
            hint="paceline alerts list runs/slow --all --rules rules.yaml",
        ),
    ),
    has_rules=True,
    moral="A rule is a sentence about metrics that was true for a while; try it on runs that are over.",
)

"""Part 4: what is gained, and what is paid, when nobody waits?"""

from paceline.learn.asked_for import is_as_asked, is_finished
from paceline.learn.facts import Facts, NotSeenError
from paceline.learn.judge import quotient, rounded
from paceline.learn.lesson import Answer, Finding, One, Part, Prediction, Question
from paceline.learn.parts.straggler import SLOW

WHICH = (("a", "apart: asgd, nobody waits"), ("b", "bound: ssp, two steps ahead at most"))


def _mean(facts: Facts, name: str) -> float:
    mean = facts.run(name).stale_mean
    if mean is None:
        raise NotSeenError(
            f"{facts.run(name).folder} measured no staleness", "its mode must be asgd or ssp: see the page"
        )
    return mean


def _check(facts: Facts) -> list[Finding]:
    slow, apart, bound = facts.run("slow"), facts.run("apart"), facts.run("bound")
    found = [
        is_as_asked("apart", apart, mode="asgd", workers=4, slow=SLOW, like=slow),
        is_as_asked("bound", bound, mode="ssp", workers=4, slow=SLOW, like=slow),
    ]
    if not all(one.ok for one in found):
        return found
    limit = bound.bound
    assert limit is not None, "ssp without a bound is asgd, which was asked for above"
    assert bound.gap_max is not None, "every server measures gaps"
    kept = Finding(
        bound.gap_max <= limit,
        f"no gradient that counted in {bound.folder} was more than {limit} steps ahead: {bound.gap_max}",
        "this is a fault of paceline itself; keep the folder",
    )
    measured = Finding(
        _mean(facts, "apart") > 0,
        f"gradients of {apart.folder} were stale: {apart.stale_mean:.2f} on average",
    )
    return [*found, is_finished(apart), is_finished(bound), measured, kept]


def _gain(facts: Facts) -> Answer:
    return quotient(facts.run("apart").samples_per_s, facts.run("slow").samples_per_s, asked=0.1)


def _closer(facts: Facts) -> Answer:
    slow = facts.run("slow").samples_per_s
    away = {key: abs(facts.run(name).samples_per_s - slow) for key, name in (("a", "apart"), ("b", "bound"))}
    return One(key=min(away, key=lambda key: away[key]))


STALENESS = Part(
    number=4,
    title="Staleness: nobody waits",
    minutes=10,
    page="part-4.md",
    see="The same slow worker, in a mode where nobody waits, and in one where nobody may run far ahead.",
    prediction=Prediction(
        text="Four workers, nobody waits. How many updates by others happen, on average, between reading the "
        "parameters and applying a gradient?",
        seen=lambda facts: f"{_mean(facts, 'apart'):.2f} on average",
    ),
    runs=("slow", "apart", "bound"),
    new_runs=("apart", "bound"),
    check=_check,
    questions=(
        Question(
            text="How stale were the gradients of `apart` on average (one digit after the point)?",
            right=lambda facts: rounded(_mean(facts, "apart"), 0.1),
            hint="the line `staleness` of its last words; `paceline learn check 4` shows it too",
        ),
        Question(
            text="What is the throughput of `apart` over that of `slow` (one digit after the point)?",
            right=_gain,
            hint="divide the two lines `throughput`: `apart` above, `slow` below",
        ),
        Question(
            text="Which of the two is as slow as `slow`, or nearly?",
            right=_closer,
            hint="compare the three lines `throughput`; who may run ahead only so far must stop in the end",
            options=WHICH,
        ),
    ),
    moral="Not waiting is paid for in staleness; a bound on it does not help against a lasting straggler.",
)

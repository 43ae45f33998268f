"""Part 2: how much faster are four workers, on the same work?"""

from paceline.learn.asked_for import is_as_asked, is_finished
from paceline.learn.facts import Facts
from paceline.learn.judge import exactly, quotient
from paceline.learn.lesson import Answer, Finding, Part, Prediction, Question


def _speedup(facts: Facts) -> float:
    return facts.run("four").samples_per_s / facts.run("alone").samples_per_s


def _check(facts: Facts) -> list[Finding]:
    alone, four = facts.run("alone"), facts.run("four")
    return [is_as_asked("four", four, mode="ssgd", workers=4, like=alone), is_finished(four)]


def _asked_speedup(facts: Facts) -> Answer:
    return quotient(facts.run("four").samples_per_s, facts.run("alone").samples_per_s, asked=0.1)


def _asked_efficiency(facts: Facts) -> Answer:
    alone, four = facts.run("alone"), facts.run("four")
    # From a speedup that was itself rounded to one digit after the point.
    return quotient(
        four.samples_per_s * 100, alone.samples_per_s * four.workers, asked=1 + 0.1 * 100 / four.workers
    )


FOUR_WORKERS = Part(
    number=2,
    title="Four workers: speedup and efficiency",
    minutes=9,
    page="part-2.md",
    see="Four processes average their gradients at every step, and do the work of part 1 together.",
    prediction=Prediction(
        text="How many times as many samples a second as one worker will four workers make?",
        seen=lambda facts: f"{_speedup(facts):.2f} times",
    ),
    runs=("alone", "four"),
    new_runs=("four",),
    check=_check,
    questions=(
        Question(
            text="What is the speedup: throughput of `four` over throughput of `alone` (one digit after "
            "the point)?",
            right=_asked_speedup,
            hint="divide the two numbers of the line `throughput`; 1.2k means 1200",
        ),
        Question(
            text="What is the efficiency, in percent: speedup over workers?",
            right=_asked_efficiency,
            hint="100 % would be a speedup of 4; take your speedup, divide by 4, times 100",
        ),
        Question(
            text="How often did the parameters change in `four`?",
            right=lambda facts: exactly(facts.run("four").updates),
            hint="four workers average before they change anything: one change for each step of the run",
        ),
    ),
    moral="Four workers did the same samples in less time, and changed the model a quarter as often.",
)

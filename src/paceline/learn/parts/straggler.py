"""Part 3: what does one slow worker cost everybody?"""

from paceline.learn.asked_for import is_as_asked, is_finished
from paceline.learn.facts import Facts
from paceline.learn.judge import quotient, rounded
from paceline.learn.lesson import Answer, Finding, One, Part, Prediction, Question

SLOW = {1: 3.0}
WORKERS = tuple((str(worker), f"worker-{worker}") for worker in range(4))


def _check(facts: Facts) -> list[Finding]:
    four, slow = facts.run("four"), facts.run("slow")
    others = [seconds for worker, seconds in slow.own_s.items() if worker not in SLOW]
    times = slow.own_s[1] / max(others) if 1 in slow.own_s and others else 0.0
    made = Finding(
        times > 1,
        f"worker-1 needed {times:.1f} times as long for a gradient as the slowest of the others",
        "the machine was busier than the straggler was slow: type the command again with a longer --pace, "
        "and those of parts 1 and 2 too",
    )
    return [is_as_asked("slow", slow, mode="ssgd", workers=4, slow=SLOW, like=four), is_finished(slow), made]


def _asked_times(facts: Facts) -> Answer:
    return quotient(facts.run("four").samples_per_s, facts.run("slow").samples_per_s, asked=0.1)


def _least_waiting(facts: Facts) -> Answer:
    wait_s = facts.run("slow").wait_s
    return One(key=str(min(wait_s, key=lambda worker: wait_s[worker])))


def _waiting_share(facts: Facts) -> Answer:
    phases = facts.run("slow").phases_s
    return rounded(100 * phases["wait"] / sum(phases.values()), 1.0)


STRAGGLER = Part(
    number=3,
    title="One slow worker",
    minutes=9,
    page="part-3.md",
    see="The run of part 2 again, with one of the four workers three times as slow.",
    prediction=Prediction(
        text="One of four workers needs three times as long. How many times as long does the whole run take?",
        seen=lambda facts: (
            f"{facts.run('four').samples_per_s / facts.run('slow').samples_per_s:.2f} times as long"
        ),
    ),
    runs=("four", "slow"),
    new_runs=("slow",),
    check=_check,
    questions=(
        Question(
            text="What is the throughput of `four` over that of `slow` (one digit after the point)?",
            right=_asked_times,
            hint="divide the two lines `throughput`: `four` above, `slow` below",
        ),
        Question(
            text="Which worker waited least?",
            right=_least_waiting,
            hint="the column `wait` of `paceline status runs/slow`",
            options=WORKERS,
        ),
        Question(
            text="How much of all workers' time was waiting, in percent?",
            right=_waiting_share,
            hint="the line `workers' time` of the run's last words",
        ),
    ),
    moral="Whoever must meet the slowest at every step works at the slowest one's pace.",
)

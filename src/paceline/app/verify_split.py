"""Samples of split models: each used exactly once, also if the number of workers changed between. Pure.

Workers that keep parts of one model step together, and may be another number
after a resume. So what counts is a step's samples, not who took them.
"""

from collections import Counter

from paceline.app.findings import Finding
from paceline.events.read import History
from paceline.plan.plan import Plan


def verify_split(plan: Plan, history: History, *, is_done: bool) -> Finding:
    made: Counter[int] = Counter()
    rows: Counter[tuple[int, int]] = Counter()
    for rank, steps in history.steps.items():
        for row in steps:
            made[row.step] += row.samples
            rows[rank, row.step] += 1
    whole = plan.steps if is_done else max(made, default=-1) + 1
    double = sum(count > 1 for count in rows.values())
    wrong = sum(made[step] != plan.global_batch for step in range(whole))
    seen = f"{whole} steps of {plan.global_batch} samples, {double} shares double, {wrong} steps not whole"
    return Finding("each sample of each step was used exactly once", not double and not wrong, seen)


def steps_taken_back(history: History) -> tuple[int, int]:
    """(steps that the newest generation began with, when): what was made beyond them earlier is void."""
    entered = [event for event in history.plain if event.kind == "generation_entered"]
    newest = max((int(str(event.fields["number"])) for event in entered), default=0)
    mine = [event for event in entered if int(str(event.fields["number"])) == newest]
    if not mine:
        return 0, 0
    return int(str(mine[0].fields["committed"])), min(event.at_ns for event in mine)

"""When did the others go on without a worker, and what did it still commit then?"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.training import Training, commits_ns, events_of
from paceline.events.read import History


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What became of a worker that the others did not hear for a while."""

    victim: str
    left_ns: int  # when it was left out
    noticed_s: float
    back_s: float


def until_left_out(run: Training, victim: str, after: int) -> int:
    """When the others entered a generation behind `after` without it."""
    run.until(lambda history: _without(history, victim, after) is not None, f"{victim} is left out")
    noticed_ns = _without(run.live(), victim, after)
    assert noticed_ns is not None, "it was just seen"
    return noticed_ns


def _without(history: History, victim: str, after: int) -> int | None:
    found = [
        event.at_ns
        for event in events_of(history, "generation_entered")
        if int(str(event.fields["number"])) > after and victim not in str(event.fields["workers"]).split(",")
    ]
    return min(found, default=None)


def fenced_and_alive(history: History, left_ns: Iterable[tuple[str, int]], workers: int) -> list[Expectation]:
    """`left_ns`: who was left out, and when. It changed nothing then, and came back as the same process."""
    commits = sum(_fenced_commits(history, victim, at_ns) for victim, at_ns in left_ns)
    restarts = len(events_of(history, "worker_started")) - workers
    return [
        exactly("steps that it committed while left out", commits, 0),
        exactly("processes that were restarted", restarts, 0),
    ]


def _fenced_commits(history: History, victim: str, left_ns: int) -> int:
    """How many steps it committed between being left out and entering a generation again."""
    entered = [e.at_ns for e in events_of(history, "generation_entered") if e.who == victim]
    back_ns = min((at_ns for at_ns in entered if at_ns > left_ns), default=None)
    ends = commits_ns(history, int(victim.removeprefix("worker-")))
    return sum(end > left_ns and (back_ns is None or end < back_ns) for end in ends)

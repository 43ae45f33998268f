"""What is said and done after one more look at a job? A machine on the caller's clock; it touches nothing.

- What is known of a failure is said once, not at every look.
- Another attempt is announced first, and made when its time has come; until then nobody judges again.
- Whoever has an operator that starts pods again leaves the first word to it; what no attempt can mend does
  not wait for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from paceline.errors import ExitCode
from paceline.kube.diagnosis.finding import Finding
from paceline.kube.diagnosis.judge import GoOn, Repeat, Verdict, Wait, Watching, judge
from paceline.kube.diagnosis.retry import CHANGES, Attempts, Resubmit, RetryPolicy, Stop
from paceline.kube.diagnosis.snapshot import Object, Removal, Snapshot
from paceline.kube.submission.again import CAN_CHANGE
from paceline.kube.submission.keeping import LOST, keeps_checkpoints, resumes_from
from paceline.kube.submission.state import Phase, has_own_retries, phase_of


class Charge(Enum):
    """Who may start the job again, or remove it."""

    OURS = "ours"
    ANOTHERS = "another's"  # a watcher elsewhere: we only show what happens
    NOBODYS = "nobody's"  # it was not sent by us, or may not be changed


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Cause, evidence, why and command."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Again:
    """Delete the whole gang, and create it anew."""

    attempts: Attempts


@dataclass(frozen=True, slots=True)
class Remove:
    """It would only cost: it is stuck, or what is left of it hangs."""


@dataclass(frozen=True, slots=True)
class End:
    code: ExitCode
    says: str


Action: TypeAlias = Say | Tell | Again | Remove | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What is remembered from one look to the next."""

    watching: Watching = field(default_factory=Watching)
    phase: Phase = Phase.PENDING
    said: str = ""
    again: Resubmit | None = None  # announced, and not made yet

    @classmethod
    def after(cls, attempts: Attempts) -> "Following":
        return cls(watching=Watching(attempts=attempts))


def look(
    snapshot: Snapshot,
    job: Object | None,
    past: Following,
    policy: RetryPolicy,
    *,
    charge: Charge = Charge.OURS,
    dice: float = 1.0,
) -> tuple[list[Action], Following]:
    now = phase_of(job, snapshot.pods)
    if charge is not Charge.OURS:
        past = replace(past, again=None)  # whoever has the right now decides anew
    if past.again is not None and now not in (Phase.GONE, Phase.SUCCEEDED):
        if snapshot.at_s < past.again.not_before_s:
            return [], past
        return [Again(past.watching.attempts)], Following.after(past.watching.attempts)
    changed: list[Action] = [] if now is past.phase else [Say(f"the job is {now.value}")]
    seen = replace(past, phase=now)
    if now is Phase.SUCCEEDED:
        return [*changed, End(ExitCode.OK, "the job has succeeded")], seen
    if job is None:
        return _gone(snapshot, seen, policy)
    checkpoint = resumes_from(snapshot, job)
    verdict, finding, watching = judge(snapshot, past.watching, policy, checkpoint=checkpoint, dice=dice)
    if _is_the_operators(verdict, job, now):
        verdict, watching = Wait(says="its operator may start it again", until_s=None), past.watching
    if charge is not Charge.OURS and isinstance(verdict, Resubmit | Stop):
        return _left_alone(verdict, finding, seen, charge, changed)
    actions, after = _answered(verdict, finding, replace(seen, watching=watching))
    if after.again is not None and not keeps_checkpoints(job):
        actions.append(Say(LOST))
    return [*changed, *actions], after


def _is_the_operators(verdict: Verdict, job: Object, now: Phase) -> bool:
    if now is Phase.FAILED or not has_own_retries(job):
        return False
    if isinstance(verdict, Resubmit):
        return True
    return isinstance(verdict, Stop) and verdict.exit_code is ExitCode.TRAINING_FAILED


def _answered(verdict: Verdict, finding: Finding | None, seen: Following) -> tuple[list[Action], Following]:
    over = seen.phase is Phase.FAILED
    match verdict:
        case GoOn():
            end: list[Action] = [End(ExitCode.TRAINING_FAILED, "the job has failed, and nothing says why")]
            return (end if over else []), replace(seen, said="")
        case Wait() if over and verdict.until_s is None:
            return [*_told(finding, seen), End(ExitCode.TRAINING_FAILED, "the job has failed")], seen
        case Wait() | Repeat():
            assert finding is not None, "whoever waits knows what for"
            if verdict.action == "reconnect" or seen.said == finding.cause:
                return [], seen
            return [Tell(finding), Say(verdict.says)], replace(seen, said=finding.cause)
        case Resubmit() if verdict.change and verdict.change not in CAN_CHANGE:
            with_what = CHANGES.get(verdict.change, verdict.change)
            stop = Stop(says=f"remove the job: it may work with {with_what}", exit_code=ExitCode.BAD_CONFIG)
            return _stopped(stop, finding, seen)
        case Resubmit():
            return [*_told(finding, seen), Say(verdict.says)], replace(seen, again=verdict, said="")
        case Stop():
            return _stopped(verdict, finding, seen)


def _left_alone(
    verdict: Resubmit | Stop, finding: Finding | None, seen: Following, charge: Charge, changed: list[Action]
) -> tuple[list[Action], Following]:
    """What we would do is only said. Whoever is in charge will do it; nobody will if there is none."""
    told = [*changed, *_told(finding, seen)]
    if charge is Charge.NOBODYS:
        code = verdict.exit_code if isinstance(verdict, Stop) else ExitCode.TRAINING_FAILED
        return [*told, End(code, "the job is left as it is: it is not ours to change")], seen
    return told, replace(seen, said="" if finding is None else finding.cause)


def _stopped(verdict: Stop, finding: Finding | None, seen: Following) -> tuple[list[Action], Following]:
    reason = verdict.says.removeprefix("remove the job: ")
    told = _told(finding, seen)
    if seen.phase is Phase.FAILED:
        return [*told, End(verdict.exit_code, f"not tried again: {reason}")], seen
    removed: Sequence[Action] = [Remove()] if verdict.remove else []
    return [*told, *removed, End(verdict.exit_code, f"the job is removed: {reason}")], seen


def _told(finding: Finding | None, seen: Following) -> list[Action]:
    return [] if finding is None or seen.said == finding.cause else [Tell(finding)]


def _gone(snapshot: Snapshot, seen: Following, policy: RetryPolicy) -> tuple[list[Action], Following]:
    """Not by us: who stops a job says so before."""
    removals = snapshot.removals or (Removal(subject={}, ours=False, at_s=snapshot.at_s),)
    _, finding, _ = judge(replace(snapshot, removals=removals), seen.watching, policy)
    says = "the job is no longer there, and was not removed from here"
    return [*_told(finding, seen), End(ExitCode.TRAINING_FAILED, says)], seen

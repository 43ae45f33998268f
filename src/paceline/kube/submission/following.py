"""Decides what is said and done after one more look at a job. A state machine on the caller's clock.

- What is known of a failure is said once, not at every look.
- Another attempt is announced first, and made when its time has come, if the job still needs it then.
- An operator that starts pods again has the first word; what no attempt can fix does not wait for that.
- A container that has ended is judged when the job's controller has said so, or after a while: then the logs
  and the states of all pods tell which one failed first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from paceline.errors import ExitCode
from paceline.kube.diagnosis.failure import FailureClass
from paceline.kube.diagnosis.finding import Finding
from paceline.kube.diagnosis.judge import GoOn, Repeat, Verdict, Wait, Watching, judge
from paceline.kube.diagnosis.pods import ended, is_terminating, phase
from paceline.kube.diagnosis.retry import Attempts, Resubmit, RetryPolicy, Stop
from paceline.kube.diagnosis.snapshot import Object, Removal, Snapshot, uid_of
from paceline.kube.submission.keeping import LOST, keeps_checkpoints, resumes_from
from paceline.kube.submission.state import Phase, has_own_retries, phase_of, repairs_itself, shown_phase


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


# For all pods of a job to end, and for its controller to say so.
_SETTLE_S = 30.0
# For the ends of logs and the last events, when no pod is left that could end.
_LAST_WORDS_S = 3.0
_REPAIR_S = 600.0

Action: TypeAlias = Say | Tell | Again | Remove | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What is remembered from one look to the next."""

    watching: Watching = field(default_factory=Watching)
    phase: Phase = Phase.PENDING
    said: str = ""
    again: Resubmit | None = None  # announced, and not made yet
    before: Watching = field(default_factory=Watching)  # as it was when `again` was announced
    failed_s: float | None = None  # when the job was first seen to have failed

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
    actual = phase_of(job, snapshot.pods)
    now = shown_phase(past.phase, actual, snapshot.pods)
    if past.again is not None and charge is not Charge.OURS:
        past = replace(past, again=None, watching=past.before)  # the watcher in charge decides
    if past.again is not None and now not in (Phase.GONE, Phase.SUCCEEDED):
        return _announced(snapshot, past, past.again, now, policy)
    changed: list[Action] = [] if now is past.phase else [Say(f"the job is {now.value}")]
    seen = replace(past, phase=now)
    if now is Phase.SUCCEEDED:
        return [*changed, End(ExitCode.OK, "the job has succeeded")], seen
    if job is None:
        return _gone(snapshot, seen, policy)
    failed_s = None
    if now is Phase.FAILED:
        failed_s = snapshot.at_s if past.failed_s is None else past.failed_s
    seen = replace(seen, failed_s=failed_s)
    checkpoint = resumes_from(snapshot, job)
    verdict, finding, watching = judge(
        snapshot,
        past.watching,
        policy,
        checkpoint=checkpoint,
        dice=dice,
        is_over=now is Phase.FAILED,
    )
    if isinstance(verdict, GoOn | Resubmit | Stop) and _is_settling(finding, seen, snapshot):
        return changed, replace(seen, watching=_sighted(finding, past.watching, snapshot.at_s))
    if _is_the_operators(verdict, job, now, past.watching, snapshot.at_s):
        says = "its operator may start it again, or replace the pod: the job is left alone"
        verdict, watching = Wait(says=says, until_s=None), _sighted(finding, past.watching, snapshot.at_s)
    if charge is not Charge.OURS and isinstance(verdict, Resubmit | Stop):
        return _left_alone(verdict, finding, seen, charge, changed)
    actions, after = _answered(verdict, finding, replace(seen, watching=watching, before=past.watching))
    if after.again is not None and not keeps_checkpoints(job):
        actions.append(Say(LOST))
    return [*changed, *actions], after


def _announced(
    snapshot: Snapshot, past: Following, again: Resubmit, now: Phase, policy: RetryPolicy
) -> tuple[list[Action], Following]:
    """The time has come, or not yet; or the job has recovered, and no attempt is needed."""
    is_over = now is Phase.FAILED
    verdict, _, _ = judge(snapshot, past.before, policy, is_over=is_over)
    if not is_over and isinstance(verdict, GoOn):
        says = f"attempt {again.attempt} is not needed any more: the job runs"
        return [Say(says)], replace(past, again=None, watching=replace(past.before, failure=""), phase=now)
    if snapshot.at_s < again.not_before_s:
        return [], past
    return [Again(past.watching.attempts)], Following.after(past.watching.attempts)


def _sighted(finding: Finding | None, past: Watching, now_s: float) -> Watching:
    """Remembers since when a failure is seen that is not acted on."""
    if finding is None or past.failure == finding.failure.name:
        return past
    return replace(past, failure=finding.failure.name, pod=finding.pod, since_s=now_s, looks=0, repeats=0)


def _is_settling(finding: Finding | None, seen: Following, snapshot: Snapshot) -> bool:
    """Controllers and kubelets need some seconds until all of them have said how a job ended."""
    if seen.failed_s is not None:
        is_clear = finding is not None and finding.kind not in (FailureClass.UNKNOWN, FailureClass.APP)
        most_s = _SETTLE_S if _is_leaving(snapshot) else _LAST_WORDS_S
        return not is_clear and snapshot.at_s - seen.failed_s < most_s
    if finding is None or finding.kind is FailureClass.INFRA:
        return False
    most_s = _SETTLE_S if ended(snapshot) else _LAST_WORDS_S
    is_known = seen.watching.failure == finding.failure.name
    return not is_known or snapshot.at_s - seen.watching.since_s < most_s


def _is_leaving(snapshot: Snapshot) -> bool:
    """A pod that was told to end has not ended yet; its log has not, either."""
    return any(
        is_terminating(pod) and phase(pod) in ("Running", "Pending") and uid_of(pod) not in snapshot.gone_pods
        for pod in snapshot.pods
    )


def _is_the_operators(verdict: Verdict, job: Object, now: Phase, past: Watching, now_s: float) -> bool:
    if now is Phase.FAILED:
        return False
    if isinstance(verdict, Stop) and verdict.exit_code is not ExitCode.TRAINING_FAILED:
        return False
    if not isinstance(verdict, Stop | Resubmit):
        return False
    # A cluster of Ray that runs is repaired by KubeRay; one that does not come up for so long is not.
    is_repaired = now is Phase.RUNNING or not past.failure or now_s - past.since_s < _REPAIR_S
    return has_own_retries(job) or (repairs_itself(job) and is_repaired)


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

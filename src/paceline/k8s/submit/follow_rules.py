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

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.findings import FailureClass, Finding
from paceline.k8s.diagnose.pods import ended, is_terminating, phase
from paceline.k8s.diagnose.retry import Attempts, Resubmit, RetryPolicy, Stop
from paceline.k8s.diagnose.snapshot import Object, Removal, Snapshot, uid_of
from paceline.k8s.diagnose.verdict import Continue, Repeat, Verdict, Wait, WatchState, judge
from paceline.k8s.submit.job_state import (
    NO_CHECKPOINT_VOLUME,
    Phase,
    has_own_retries,
    keeps_checkpoints,
    phase_of,
    repairs_itself,
    resumes_from,
    shown_phase,
)


class WatchOwner(Enum):
    """Who may start the job again, or remove it."""

    OURS = "ours"
    ANOTHERS = "another's"  # a watcher elsewhere: we only show what happens
    NOBODYS = "nobody's"  # it was not sent by us, or may not be changed


@dataclass(frozen=True, slots=True)
class Announce:
    text: str


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """Cause, evidence, why and command."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Recreate:
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

Action: TypeAlias = Announce | ReportFinding | Recreate | Remove | End


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowState:
    """What is remembered from one look to the next."""

    watching: WatchState = field(default_factory=WatchState)
    phase: Phase = Phase.PENDING
    said: str = ""
    again: Resubmit | None = None  # announced, and not made yet
    before: WatchState = field(default_factory=WatchState)  # as it was when `again` was announced
    failed_s: float | None = None  # when the job was first seen to have failed

    @classmethod
    def after(cls, attempts: Attempts) -> "FollowState":
        return cls(watching=WatchState(attempts=attempts))


def next_actions(
    snapshot: Snapshot,
    job: Object | None,
    past: FollowState,
    policy: RetryPolicy,
    *,
    charge: WatchOwner = WatchOwner.OURS,
    dice: float = 1.0,
) -> tuple[list[Action], FollowState]:
    actual = phase_of(job, snapshot.pods)
    now = shown_phase(past.phase, actual, snapshot.pods)
    if past.again is not None and charge is not WatchOwner.OURS:
        past = replace(past, again=None, watching=past.before)  # the watcher in charge decides
    if past.again is not None and now not in (Phase.GONE, Phase.SUCCEEDED):
        return _announced(snapshot, past, past.again, now, policy)
    changed: list[Action] = [] if now is past.phase else [Announce(f"the job is {now.value}")]
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
    if isinstance(verdict, Continue | Resubmit | Stop) and _is_settling(finding, seen, snapshot):
        return changed, replace(seen, watching=_sighted(finding, past.watching, snapshot.at_s))
    if _is_the_operators(verdict, job, now, past.watching, snapshot.at_s):
        says = "its operator may start it again, or replace the pod: the job is left alone"
        verdict, watching = Wait(says=says, until_s=None), _sighted(finding, past.watching, snapshot.at_s)
    if charge is not WatchOwner.OURS and isinstance(verdict, Resubmit | Stop):
        return _left_alone(verdict, finding, seen, charge, changed)
    actions, after = _answered(verdict, finding, replace(seen, watching=watching, before=past.watching))
    if after.again is not None and not keeps_checkpoints(job):
        actions.append(Announce(NO_CHECKPOINT_VOLUME))
    return [*changed, *actions], after


def _announced(
    snapshot: Snapshot, past: FollowState, again: Resubmit, now: Phase, policy: RetryPolicy
) -> tuple[list[Action], FollowState]:
    """The time has come, or not yet; or the job has recovered, and no attempt is needed."""
    is_over = now is Phase.FAILED
    verdict, _, _ = judge(snapshot, past.before, policy, is_over=is_over)
    if not is_over and isinstance(verdict, Continue):
        says = f"attempt {again.attempt} is not needed any more: the job runs"
        return [Announce(says)], replace(
            past, again=None, watching=replace(past.before, failure=""), phase=now
        )
    if snapshot.at_s < again.not_before_s:
        return [], past
    return [Recreate(past.watching.attempts)], FollowState.after(past.watching.attempts)


def _sighted(finding: Finding | None, past: WatchState, now_s: float) -> WatchState:
    """Remembers since when a failure is seen that is not acted on."""
    if finding is None or past.failure == finding.failure.name:
        return past
    return replace(past, failure=finding.failure.name, pod=finding.pod, since_s=now_s, looks=0, repeats=0)


def _is_settling(finding: Finding | None, seen: FollowState, snapshot: Snapshot) -> bool:
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


def _is_the_operators(verdict: Verdict, job: Object, now: Phase, past: WatchState, now_s: float) -> bool:
    if now is Phase.FAILED:
        return False
    if isinstance(verdict, Stop) and verdict.exit_code is not ExitCode.TRAINING_FAILED:
        return False
    if not isinstance(verdict, Stop | Resubmit):
        return False
    # A cluster of Ray that runs is repaired by KubeRay; one that does not come up for so long is not.
    is_repaired = now is Phase.RUNNING or not past.failure or now_s - past.since_s < _REPAIR_S
    return has_own_retries(job) or (repairs_itself(job) and is_repaired)


def _answered(
    verdict: Verdict, finding: Finding | None, seen: FollowState
) -> tuple[list[Action], FollowState]:
    over = seen.phase is Phase.FAILED
    match verdict:
        case Continue():
            end: list[Action] = [End(ExitCode.TRAINING_FAILED, "the job has failed, and nothing says why")]
            return (end if over else []), replace(seen, said="")
        case Wait() if over and verdict.until_s is None:
            return [*_told(finding, seen), End(ExitCode.TRAINING_FAILED, "the job has failed")], seen
        case Wait() | Repeat():
            assert finding is not None, "whoever waits knows what for"
            if verdict.action == "reconnect" or seen.said == finding.cause:
                return [], seen
            return [ReportFinding(finding), Announce(verdict.says)], replace(seen, said=finding.cause)
        case Resubmit():
            return [*_told(finding, seen), Announce(verdict.says)], replace(seen, again=verdict, said="")
        case Stop():
            return _stopped(verdict, finding, seen)


def _left_alone(
    verdict: Resubmit | Stop,
    finding: Finding | None,
    seen: FollowState,
    charge: WatchOwner,
    changed: list[Action],
) -> tuple[list[Action], FollowState]:
    """What we would do is only said. Whoever is in charge will do it; nobody will if there is none."""
    told = [*changed, *_told(finding, seen)]
    if charge is WatchOwner.NOBODYS:
        code = verdict.exit_code if isinstance(verdict, Stop) else ExitCode.TRAINING_FAILED
        return [*told, End(code, "the job is left as it is: it is not ours to change")], seen
    return told, replace(seen, said="" if finding is None else finding.cause)


def _stopped(verdict: Stop, finding: Finding | None, seen: FollowState) -> tuple[list[Action], FollowState]:
    reason = verdict.says.removeprefix("remove the job: ")
    told = _told(finding, seen)
    if seen.phase is Phase.FAILED:
        return [*told, End(verdict.exit_code, f"not tried again: {reason}")], seen
    removed: Sequence[Action] = [Remove()] if verdict.remove else []
    return [*told, *removed, End(verdict.exit_code, f"the job is removed: {reason}")], seen


def _told(finding: Finding | None, seen: FollowState) -> list[Action]:
    return [] if finding is None or seen.said == finding.cause else [ReportFinding(finding)]


def _gone(snapshot: Snapshot, seen: FollowState, policy: RetryPolicy) -> tuple[list[Action], FollowState]:
    """Not by us: who stops a job says so before."""
    removals = snapshot.removals or (Removal(subject={}, ours=False, at_s=snapshot.at_s),)
    _, finding, _ = judge(replace(snapshot, removals=removals), seen.watching, policy)
    says = "the job is no longer there, and was not removed from here"
    return [*_told(finding, seen), End(ExitCode.TRAINING_FAILED, says)], seen

"""Decides the output and the actions after each poll of a job. A state machine on the caller's clock.

- A failure is reported once, not at every poll.
- Another attempt is announced first, and made when it is due, if the job still needs it then.
- An operator that restarts pods has priority; a failure that no attempt can fix does not wait for that.
- A container that has ended is judged when the job's controller has reported the end, or after a while: then
  the logs and the states of all pods show which one failed first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.findings import FailureClass, Finding
from paceline.k8s.diagnose.hosts import find_lost_hosts, has_fewest_hosts, without_lost_hosts
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
    ANOTHERS = "another's"  # another watcher: this one only shows what happens
    UNOWNED = "none"  # paceline did not submit it, or may not change it


@dataclass(frozen=True, slots=True)
class Announce:
    text: str


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """Cause, evidence, why and command."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Recreate:
    """Delete the whole gang, and create it again."""

    attempts: Attempts


@dataclass(frozen=True, slots=True)
class Remove:
    """It would only cost: it is stuck, or what is left of it hangs."""


@dataclass(frozen=True, slots=True)
class End:
    code: ExitCode
    says: str


# Time for all pods of a job to end, and for its controller to report it.
_SETTLE_S = 30.0
# Time for the ends of logs and the last events, after the last pod has ended.
_LAST_WORDS_S = 3.0
_REPAIR_S = 600.0

Action: TypeAlias = Announce | ReportFinding | Recreate | Remove | End


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowState:
    """State that is kept from one poll to the next."""

    watching: WatchState = field(default_factory=WatchState)
    phase: Phase = Phase.PENDING
    reported: str = ""
    again: Resubmit | None = None  # announced, and not made yet
    before: WatchState = field(default_factory=WatchState)  # state when `again` was announced
    failed_s: float | None = None  # when the job was first seen to have failed
    has_run: bool = False  # the fewest hosts of an elastic job have run
    lost_hosts: frozenset[str] = frozenset()  # uids of those that were announced

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
    jitter: float = 1.0,
) -> tuple[list[Action], FollowState]:
    actual = phase_of(job, snapshot.pods)
    lost, past = ([], past) if actual.is_over else _announce_lost_hosts(snapshot, past)
    snapshot = without_lost_hosts(snapshot, has_run=past.has_run)
    now = shown_phase(past.phase, actual, snapshot.pods)
    if past.again is not None and charge is not WatchOwner.OURS:
        past = replace(past, again=None, watching=past.before)  # the watcher in charge decides
    if past.again is not None and now not in (Phase.GONE, Phase.SUCCEEDED):
        return _announced(snapshot, past, past.again, now, policy)
    changed: list[Action] = [] if now is past.phase else [Announce(f"the job is {now.value}")]
    changed += lost
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
        jitter=jitter,
        is_over=now is Phase.FAILED,
    )
    if isinstance(verdict, Continue | Resubmit | Stop) and _is_settling(finding, seen, snapshot):
        return changed, replace(seen, watching=_sighted(finding, past.watching, snapshot.at_s))
    if _is_the_operators(verdict, job, now, past.watching, snapshot.at_s):
        announcement = "its operator may restart it, or replace the pod: no action"
        verdict = Wait(says=announcement, until_s=None)
        watching = _sighted(finding, past.watching, snapshot.at_s)
    if charge is not WatchOwner.OURS and isinstance(verdict, Resubmit | Stop):
        return _left_alone(verdict, finding, seen, charge, changed)
    actions, after = _answered(verdict, finding, replace(seen, watching=watching, before=past.watching))
    if after.again is not None and not keeps_checkpoints(job):
        actions.append(Announce(NO_CHECKPOINT_VOLUME))
    return [*changed, *actions], after


def _announce_lost_hosts(snapshot: Snapshot, past: FollowState) -> tuple[list[Action], FollowState]:
    """Of an elastic job, each once."""
    hosts = [host for host in find_lost_hosts(snapshot) if host.uid not in past.lost_hosts]
    actions: list[Action] = [
        Announce(f"host {host.name} is lost ({host.why}): the job continues") for host in hosts
    ]
    has_run = past.has_run or has_fewest_hosts(snapshot)
    known = past.lost_hosts.union(host.uid for host in hosts)
    return actions, replace(past, has_run=has_run, lost_hosts=known)


def _announced(
    snapshot: Snapshot, past: FollowState, again: Resubmit, now: Phase, policy: RetryPolicy
) -> tuple[list[Action], FollowState]:
    """Start the attempt if it is due; drop it if the job has recovered."""
    is_over = now is Phase.FAILED
    verdict, _, _ = judge(snapshot, past.before, policy, is_over=is_over)
    if not is_over and isinstance(verdict, Continue):
        announcement = f"attempt {again.attempt} is no longer needed: the job is running"
        return [Announce(announcement)], replace(
            past, again=None, watching=replace(past.before, failure=""), phase=now
        )
    if snapshot.at_s < again.not_before_s:
        return [], past
    return [Recreate(past.watching.attempts)], FollowState.after(past.watching.attempts)


def _sighted(finding: Finding | None, past: WatchState, now_s: float) -> WatchState:
    """Record since when a failure without action is observed."""
    if finding is None or past.failure == finding.failure.name:
        return past
    return replace(past, failure=finding.failure.name, pod=finding.pod, since_s=now_s, looks=0, repeats=0)


def _is_settling(finding: Finding | None, seen: FollowState, snapshot: Snapshot) -> bool:
    """Controllers and kubelets need some seconds until all of them have reported how a job ended."""
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
    """A terminating pod has not ended yet, and neither has its log."""
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
    # A cluster of Ray that runs is repaired by KubeRay; one that stays down for this long is not.
    is_repaired = now is Phase.RUNNING or not past.failure or now_s - past.since_s < _REPAIR_S
    return has_own_retries(job) or (repairs_itself(job) and is_repaired)


def _answered(
    verdict: Verdict, finding: Finding | None, seen: FollowState
) -> tuple[list[Action], FollowState]:
    over = seen.phase is Phase.FAILED
    match verdict:
        case Continue():
            end: list[Action] = [
                End(ExitCode.TRAINING_FAILED, "the job has failed without a reported reason")
            ]
            return (end if over else []), replace(seen, reported="")
        case Wait() if over and verdict.until_s is None:
            return [*_report(finding, seen), End(ExitCode.TRAINING_FAILED, "the job has failed")], seen
        case Wait() | Repeat():
            assert finding is not None, "a wait has a finding"
            if verdict.action == "reconnect" or seen.reported == finding.cause:
                return [], seen
            return [ReportFinding(finding), Announce(verdict.says)], replace(seen, reported=finding.cause)
        case Resubmit():
            return [*_report(finding, seen), Announce(verdict.says)], replace(
                seen, again=verdict, reported=""
            )
        case Stop():
            return _stopped(verdict, finding, seen)


def _left_alone(
    verdict: Resubmit | Stop,
    finding: Finding | None,
    seen: FollowState,
    charge: WatchOwner,
    changed: list[Action],
) -> tuple[list[Action], FollowState]:
    """Only report the action: the watcher that holds the lease carries it out, if there is one."""
    actions = [*changed, *_report(finding, seen)]
    if charge is WatchOwner.UNOWNED:
        code = verdict.exit_code if isinstance(verdict, Stop) else ExitCode.TRAINING_FAILED
        return [*actions, End(code, "no action: the job was not submitted by paceline")], seen
    return actions, replace(seen, reported="" if finding is None else finding.cause)


def _stopped(verdict: Stop, finding: Finding | None, seen: FollowState) -> tuple[list[Action], FollowState]:
    reason = verdict.says.removeprefix("remove the job: ")
    actions = _report(finding, seen)
    if seen.phase is Phase.FAILED:
        return [*actions, End(verdict.exit_code, f"not retried: {reason}")], seen
    removed: Sequence[Action] = [Remove()] if verdict.remove else []
    return [*actions, *removed, End(verdict.exit_code, f"the job is removed: {reason}")], seen


def _report(finding: Finding | None, seen: FollowState) -> list[Action]:
    return [] if finding is None or seen.reported == finding.cause else [ReportFinding(finding)]


def _gone(snapshot: Snapshot, seen: FollowState, policy: RetryPolicy) -> tuple[list[Action], FollowState]:
    """The job was deleted, and not by this watcher."""
    removals = snapshot.removals or (Removal(subject={}, ours=False, at_s=snapshot.at_s),)
    _, finding, _ = judge(replace(snapshot, removals=removals), seen.watching, policy)
    reason = "the job no longer exists, and was not removed by this command"
    return [*_report(finding, seen), End(ExitCode.TRAINING_FAILED, reason)], seen

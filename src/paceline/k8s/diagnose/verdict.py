"""Judges a job poll by poll, on the caller's clock: continue, wait, start it again or stop.

A transient failure is observed for the patience of its row of the table; then it is acted on. A failure that
is observed twice, or that reports several occurrences itself, needs no further observation.

As long as the job's controller has not given up (`is_over` is False):
- a failure that no rule matches is reported, and the job is left alone;
- a consequence is not acted on while its cause is in progress: another pod is being scheduled, pulls its
  image, is created or becomes ready.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from paceline.k8s.diagnose.classify import UNKNOWN
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.findings import Failure, Finding, Remedy, Weight
from paceline.k8s.diagnose.node_fit import closed_for_now
from paceline.k8s.diagnose.pods import starting
from paceline.k8s.diagnose.retry import Attempts, Resubmit, RetryPolicy, Stop, decide, stopped
from paceline.k8s.diagnose.rules.scheduling import CLUSTER_BUSY, PLACEMENT
from paceline.k8s.diagnose.snapshot import Snapshot, name_of

_REPEAT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    says: str = "no problem found"
    action: str = field(default="go on", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """`until_s`: when patience ends; None: never."""

    says: str
    until_s: float | None
    action: str = field(default="wait", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The same call again; the job is not touched. `reconnect`: it was a stream."""

    says: str
    not_before_s: float
    action: str = "repeat"


Verdict: TypeAlias = Continue | Wait | Repeat | Resubmit | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """State that is kept from one poll to the next."""

    failure: str = ""
    pod: str = ""
    since_s: float = 0.0
    looks: int = 0
    repeats: int = 0
    attempts: Attempts = field(default_factory=Attempts)


def judge(
    snapshot: Snapshot,
    past: WatchState,
    policy: RetryPolicy,
    *,
    checkpoint: int | None = None,
    jitter: float = 1.0,
    is_over: bool = True,
) -> tuple[Verdict, Finding | None, WatchState]:
    """`is_over`: the job's controller reports that the job has failed, or there is none that could."""
    finding = diagnose(snapshot)
    if finding is None:
        return Continue(), None, replace(past, failure="", pod="", looks=0, repeats=0)
    now_s = snapshot.at_s
    failure = finding.failure
    since_s = now_s if finding.at_s is None else min(now_s, finding.at_s)
    count = 1
    repeats = 0
    if past.failure == failure.name:
        since_s = past.since_s
        count = past.looks + 1
        repeats = past.repeats
    seen = replace(past, failure=failure.name, pod=finding.pod, since_s=since_s, looks=count, repeats=repeats)
    if failure.remedy in (Remedy.REPEAT, Remedy.RECONNECT, Remedy.NOTHING):
        verdict, seen = _repeated(finding, seen, now_s)
        return verdict, finding, seen
    reason = _reason_to_wait(finding, past.attempts, policy)
    if not reason and not is_over:
        reason = _reason_to_leave_alone(finding, snapshot)
    if reason:
        return Wait(says=reason, until_s=None), finding, seen
    patience_s = _patience_s(failure, policy)
    often = max(seen.looks, finding.seen) >= failure.observations if failure.observations > 1 else False
    if patience_s is None or (not often and now_s - since_s < patience_s):
        until_s = None if patience_s is None else since_s + patience_s
        return Wait(says=_waiting(failure, until_s, now_s), until_s=until_s), finding, seen
    if failure.remedy is Remedy.WAIT:
        return stopped(finding, f"waited for {(now_s - since_s) / 60:.0f} minutes"), finding, seen
    decision, attempts = decide(finding, past.attempts, policy, checkpoint, now_s, jitter)
    if isinstance(decision, Resubmit):
        # The state of a new gang starts empty.
        return decision, finding, WatchState(attempts=attempts)
    return decision, finding, replace(seen, attempts=attempts)


def _reason_to_wait(finding: Finding, past: Attempts, policy: RetryPolicy) -> str:
    """Weak evidence neither removes a job nor pays for another attempt, unless such attempts were ordered."""
    is_ordered = finding.failure.remedy is Remedy.RESUBMIT and policy.app > past.app_used
    if finding.failure.remedy is Remedy.WAIT or is_ordered:
        return ""
    left = "the job is neither removed nor restarted; --app-retries N allows N restarts anyway"
    if finding.failure is UNKNOWN:
        return f"unknown cause: {left}"
    if finding.is_doubtful:
        return f"the evidence does not show whether another attempt can help: {left}"
    return ""


def _reason_to_leave_alone(finding: Finding, snapshot: Snapshot) -> str:
    if finding.failure is UNKNOWN or finding.is_doubtful:
        return "unknown cause, and the job's controller is still retrying: no action"
    if finding.failure is PLACEMENT:
        pods = [pod for pod in snapshot.pods if name_of(pod) == finding.pod] or snapshot.pods
        closed = [node for pod in pods for node in closed_for_now(pod, snapshot.nodes)]
        if closed:
            return f"waiting: node {closed[0]} is reserved for it, and accepts no pods at present"
    if finding.failure.weight is Weight.CONSEQUENCE:
        starting_pods = [entry for entry in starting(snapshot) if entry.pod != finding.pod]
        if starting_pods:
            return f"waiting: pod {starting_pods[0].pod} {starting_pods[0].what}"
    return ""


def _patience_s(failure: Failure, policy: RetryPolicy) -> float | None:
    if failure is CLUSTER_BUSY and policy.pending_s is not None:
        return policy.pending_s
    return failure.patience_s


def _repeated(finding: Finding, seen: WatchState, now_s: float) -> tuple[Verdict, WatchState]:
    failure = finding.failure
    if failure.remedy is Remedy.RECONNECT:
        return Repeat(says="the stream is reopened", not_before_s=now_s, action="reconnect"), seen
    if failure.most is not None and seen.repeats >= failure.most:
        return stopped(finding, f"{failure.most + 1} requests without a response"), seen
    after_s = _REPEAT_S * 2.0**seen.repeats if finding.after_s is None else finding.after_s
    announcement = f"the same call again in {after_s:g} s"
    return Repeat(says=announcement, not_before_s=now_s + after_s), replace(seen, repeats=seen.repeats + 1)


def _waiting(failure: Failure, until_s: float | None, now_s: float) -> str:
    if until_s is None:
        return "waiting without a limit"
    if failure.remedy is Remedy.WAIT:
        return f"waiting, {until_s - now_s:.0f} s more"
    return f"watching for {until_s - now_s:.0f} s more at most, because it may be transient"

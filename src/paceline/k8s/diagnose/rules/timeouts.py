"""Failures by time: a deadline, a submission, a hang. Rows 44 to 46."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from paceline.k8s.diagnose.findings import (
    STEP,
    Doubt,
    Failure,
    FailureClass,
    Remedy,
    Sign,
    Source,
    Weight,
    text,
)
from paceline.k8s.diagnose.pods import conditions, phase, pod_named
from paceline.k8s.diagnose.snapshot import Log, Object, Snapshot, name_of
from paceline.k8s.objects import mapping, read_time, split_line

DEADLINE = Failure(
    number=44,
    name="deadline",
    what="the job reached its deadline",
    kind=FailureClass.CONFIG,
    cause="the job was stopped at its deadline{spent}",
    why="its maximum duration is used up; no failure is reported",
    command="kubectl get {kind} {job} -n {namespace} -o yaml | grep -i deadlineSeconds",
    remedy=Remedy.STOP,
    weight=Weight.MASK,
)
SUBMIT_FAILED = Failure(
    number=45,
    name="submit-failed",
    what="the job was not submitted to Ray",
    kind=FailureClass.INFRA,
    cause="the submitter could not submit the job to Ray: {detail}",
    why="the head or its dashboard did not respond in time",
    command="kubectl logs -l ray.io/node-type=head -n {namespace} --tail=50",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
)
HANG = Failure(
    number=46,
    name="hang",
    what="the program makes no progress",
    kind=FailureClass.INFRA,
    cause="no step has finished for {minutes} minutes, after step {step}",
    why="all pods are running without output: a collective hangs, or storage does not respond",
    command="kubectl exec {pod} -n {namespace} -- py-spy dump --pid 1",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
    most=1,
)
ROWS = (DEADLINE, SUBMIT_FAILED, HANG)

_SOURCES = (Source.CLUSTER,)
TEXTS = (
    # The submitter ended several times, and its log has the reason.
    text(
        SUBMIT_FAILED,
        r"(?P<detail>SubmissionFailed[\s\S]*|Job submission has failed[^\n]*)",
        *_SOURCES,
        doubt=Doubt.ALWAYS,
    ),
    text(SUBMIT_FAILED, r"(?P<detail>JobStatusCheckTimeoutExceeded[\s\S]*)", *_SOURCES),
    text(
        SUBMIT_FAILED,
        r"(?P<detail>Failed to connect to Ray at address: http[^\n]*)",
        Source.LOG,
    ),
    text(
        DEADLINE,
        r"\bDeadlineExceeded\b|PreRunningDeadlineExceeded|active longer than specified deadline",
        *_SOURCES,
    ),
    text(HANG, r"JobHang|hang(?:ing)? (?:was )?detected|log monitor(?:ing)? .*expected", *_SOURCES),
)
_SHORTEST_S = 600.0


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    for job in snapshot.jobs:
        yield from _ended_job(job)
    for log in snapshot.logs:
        pod = pod_named(snapshot, log.pod)
        if phase(pod) == "Running" and not log.previous:
            yield from _quiet(log, pod, snapshot.at_s)


def _ended_job(job: Object) -> Iterator[Sign]:
    status = mapping(job, "status")
    states: list[tuple[str, str, float | None]]
    states = [(str(status.get("reason", "")), str(status.get("message", "")), None)]
    states += [
        (
            str(condition.get("reason", "")),
            str(condition.get("message", "")),
            read_time(condition.get("lastTransitionTime")),
        )
        for condition in conditions(job)
        if condition.get("status") == "True"
    ]
    for reason, message, at_s in states:
        line = f"{job.get('kind')}/{name_of(job)}: {reason}: {message}"
        values = {
            "detail": message or reason,
            "kind": str(job.get("kind", "")).lower(),
            "spent": _spent(job, at_s),
        }
        if reason in ("DeadlineExceeded", "PreRunningDeadlineExceeded"):
            yield Sign(DEADLINE, (line,), at_s, values=values)
        elif reason in ("SubmissionFailed", "JobStatusCheckTimeoutExceeded"):
            yield Sign(SUBMIT_FAILED, (line,), at_s, values=values)


def _spent(job: Object, at_s: float | None) -> str:
    """How long until it ran, and how long it ran."""
    born = read_time(mapping(job, "metadata").get("creationTimestamp"))
    status = mapping(job, "status")
    started_s = read_time(status.get("startTime"))
    over = at_s or read_time(status.get("endTime"))
    if born is None or over is None:
        return ""
    if started_s is None:
        return f", {over - born:.0f} s after it was created, without having run"
    return f": {started_s - born:.0f} s until it started, {over - started_s:.0f} s running"


def _quiet(log: Log, pod: Object, now_s: float) -> Iterator[Sign]:
    steps = [
        (at_s, int(match[1]), line)
        for at_s, line in map(split_line, log.text.splitlines())
        if at_s is not None and (match := STEP.search(line))
    ]
    if len(steps) < 2:
        return
    last_s, step, line = steps[-1]
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(steps)]
    if now_s - last_s > max(10 * median(gaps), _SHORTEST_S):
        values = {"minutes": f"{(now_s - last_s) / 60:.0f}", "step": str(step)}
        yield Sign(HANG, (f"log of {log.pod}, its last step: {line}",), last_s, pod, values)

"""The cause of all that was seen: the heaviest sign, and among equals the earliest.

Read are, in this order: the job's own state, its queue, pods, containers, events, and the logs. A rank that
died first is the cause; ranks that complain about it afterwards are not.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.classify import DETECTORS, NOT_UNDERSTOOD, UNKNOWN
from paceline.k8s.diagnose.cluster_signs import find_cluster_signs
from paceline.k8s.diagnose.findings import (
    FailureClass,
    Finding,
    Sign,
    Weight,
    command_of,
    evidence_of,
    fill_placeholders,
    last_step,
    placeholder_values,
)
from paceline.k8s.diagnose.hosts import without_lost_hosts
from paceline.k8s.diagnose.logs import RootFailure, first_failure, read_log
from paceline.k8s.diagnose.pods import (
    Ended,
    conditions,
    ended,
    exit_text,
    node_of,
    phase,
    pod_named,
    rank_of,
    running_since,
    waiting,
)
from paceline.k8s.diagnose.rules.application import LISTED_EXIT_CODE
from paceline.k8s.diagnose.rules.gpus import EFA_UNUSED
from paceline.k8s.diagnose.rules.queueing import with_own_pods
from paceline.k8s.diagnose.snapshot import Log, Object, Snapshot, labels_of, message_of, name_of, subject_of
from paceline.k8s.objects import mapping, read_time

# A job that does not run is never called healthy: no pods, a missing status, or warnings on an object are
# enough to report an unknown problem.

_TERMINATED = 143  # SIGTERM: the sender has the reason
_STARTING = ("ContainerCreating", "PodInitializing", "")
_LONG_S = 300.0
_NO_PODS_S = 60.0
_MOST_LINES = 200
_END = re.compile(r"\b(?:error|fatal|failed|killed|abort\w*|signal \d+)\b", re.IGNORECASE)


def unknown_finding(snapshot: Snapshot) -> Finding | None:
    """None when nothing failed."""
    worst = next(_worst(snapshot), None)
    if worst is None:
        return None
    pod, at_s, line, code = worst
    failure = UNKNOWN if _is_over(snapshot) else NOT_UNDERSTOOD
    warnings = [
        f"event {event.get('reason')} of {subject_of(event).get('name')}: {message_of(event)}"
        for event in snapshot.events
        if event.get("type") == "Warning" and (not pod or subject_of(event).get("name") == name_of(pod))
    ]
    evidence = [f"log of {log.pod}: {_telling(log.text)}" for log in snapshot.logs if log.pod == name_of(pod)]
    values = placeholder_values(Sign(UNKNOWN, (), at_s, pod), snapshot)
    return Finding(
        failure=failure,
        cause=fill_placeholders(failure.cause, values),
        evidence=evidence_of((line, *evidence, *warnings[-1:])),
        why=fill_placeholders(failure.why, values),
        command=command_of(failure, values),
        at_s=at_s,
        pod=name_of(pod),
        node=node_of(pod),
        rank=rank_of(pod),
        step=last_step(snapshot, pod),
        exit_code=code,
    )


def unreadable_finding(snapshot: Snapshot) -> Finding | None:
    """A text in which nothing is recognised: its most telling lines. None when it shows a job that runs."""
    if any(phase(pod) in ("Running", "Succeeded") for pod in snapshot.pods):
        return None
    warnings = [
        f"event {event.get('reason')}: {message_of(event)}"
        for event in snapshot.events
        if event.get("type") == "Warning"
    ]
    evidence = [_telling(log.text) for log in snapshot.logs]
    values = placeholder_values(Sign(UNKNOWN, (), None, {}), snapshot)
    return Finding(
        failure=UNKNOWN,
        cause=fill_placeholders(UNKNOWN.cause, values),
        evidence=evidence_of((*warnings[-2:], *evidence)),
        why=fill_placeholders(UNKNOWN.why, values),
        command=command_of(UNKNOWN, values),
    )


def _telling(text: str) -> str:
    """The last line that sounds like an end; the last of all if none does."""
    lines = [line for line in text.splitlines()[-_MOST_LINES:] if line.strip()]
    return next((line for line in reversed(lines) if _END.search(line)), lines[-1] if lines else "")


def _worst(snapshot: Snapshot) -> Iterator[tuple[Object, float | None, str, int | None]]:
    ends = ended(snapshot)
    for end in sorted(ends, key=lambda end: end.exit_code == _TERMINATED):
        line = f"pod/{name_of(end.pod)} container {end.container}: {exit_text(end.exit_code)} {end.reason}"
        yield end.pod, end.at_s, f"{line} {end.message}", end.exit_code
    for pod in snapshot.pods:
        if phase(pod) == "Failed":
            status = mapping(pod, "status")
            yield (
                pod,
                None,
                f"pod/{name_of(pod)} Failed: {status.get('reason', '')} {status.get('message', '')}",
                None,
            )
    for container in waiting(snapshot):
        if container.reason not in _STARTING:
            yield (
                container.pod,
                None,
                f"pod/{name_of(container.pod)} waits: {container.reason}: {container.message}",
                None,
            )
    for job in snapshot.of("RayJob"):
        status = mapping(job, "status")
        if status.get("jobStatus") == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
            line = f"RayJob/{name_of(job)} {status.get('jobStatus', 'Failed')}, {status.get('reason', '')}"
            yield {}, read_time(status.get("endTime")), f"{line}: {status.get('message', '')}", None
    for job in snapshot.jobs:
        for condition in conditions(job):
            if condition.get("type") == "Failed" and condition.get("status") == "True":
                cause = f"{condition.get('reason')}: {condition.get('message')}"
                line = f"{job.get('kind')}/{name_of(job)} Failed: {cause}"
                yield {}, read_time(condition.get("lastTransitionTime")), line, None
    for answer in snapshot.answers:
        if answer.code >= 400 and answer.code != 429 and answer.verb not in ("log", "watch"):
            yield (
                {},
                answer.at_s,
                f"{answer.verb} {answer.path} returned {answer.code}: {answer.message}",
                None,
            )
    for pod in snapshot.pods:
        born = read_time(mapping(pod, "metadata").get("creationTimestamp"))
        if phase(pod) == "Pending" and born is not None and snapshot.at_s - born > _LONG_S:
            yield (
                pod,
                born,
                f"pod/{name_of(pod)} is Pending since {snapshot.at_s - born:.0f} s; no reason is reported",
                None,
            )
    yield from _without_pods(snapshot)


def _without_pods(snapshot: Snapshot) -> Iterator[tuple[Object, float | None, str, int | None]]:
    """A job that should run by now, and has no pod."""
    if snapshot.pods or any(_is_done(job) for job in snapshot.jobs):
        return
    warned = [event for event in snapshot.events if event.get("type") == "Warning"]
    if warned:
        last = warned[-1]
        evidence = f"event {last.get('reason')} of {subject_of(last).get('name')}: {message_of(last)}"
        yield {}, None, f"there are no pods; {evidence}", None
    for job in snapshot.jobs:
        born = read_time(mapping(job, "metadata").get("creationTimestamp"))
        suspended = mapping(job, "spec").get("suspend") or mapping(job, "spec", "runPolicy").get("suspend")
        if born is not None and not suspended and snapshot.at_s - born > _NO_PODS_S:
            waited = f"{snapshot.at_s - born:.0f}"
            line = f"{job.get('kind')}/{name_of(job)} has no pods {waited} s after it was created"
            yield {}, born, line, None


def _is_done(job: Object) -> bool:
    status = mapping(job, "status")
    if status.get("jobStatus") == "SUCCEEDED" or status.get("jobDeploymentStatus") == "Complete":
        return True
    ends = ("Succeeded", "Complete", "Completed", "SuccessCriteriaMet")
    return any(
        condition.get("type") in ends and condition.get("status") == "True" for condition in conditions(job)
    )


def _is_over(snapshot: Snapshot) -> bool:
    """Whether something has ended: what only waits may still begin."""
    if ended(snapshot) or snapshot.answers or any(phase(pod) == "Failed" for pod in snapshot.pods):
        return True
    for job in snapshot.jobs:
        status = mapping(job, "status")
        if status.get("jobStatus") == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
            return True
        if any(
            condition.get("type") == "Failed" and condition.get("status") == "True"
            for condition in conditions(job)
        ):
            return True
    return False


def diagnose(snapshot: Snapshot) -> Finding | None:
    """None when nothing is wrong, as far as can be seen. A lost host of an elastic job is nothing wrong."""
    snapshot = without_lost_hosts(snapshot)
    signs = [with_own_pods(sign, snapshot) for sign in _signs(snapshot)]
    if not signs:
        return unknown_finding(snapshot)
    root = first_failure(snapshot.logs)
    signs.sort(key=lambda sign: _order(sign, root))
    best = _listed(signs[0], signs)
    if best.heaviness is Weight.NOTE:
        # A warning in a log of a program that runs is no reason to complain about it.
        worse = unknown_finding(snapshot)
        if worse is not None:
            return worse
        if best.failure.weight is not Weight.NOTE:
            return None
    return _finding(best, signs, snapshot)


def _signs(snapshot: Snapshot) -> Iterator[Sign]:
    for detect in DETECTORS:
        yield from detect(snapshot)
    yield from find_cluster_signs(snapshot)
    ends = ended(snapshot)
    ray_failed = any(mapping(job, "status").get("jobStatus") == "FAILED" for job in snapshot.of("RayJob"))
    for log in snapshot.logs:
        pod = pod_named(snapshot, log.pod)
        sign = read_log(log, pod)
        if sign is not None:
            yield _dated(sign, log, pod, ends, ray_failed=ray_failed)


def _dated(sign: Sign, log: Log, pod: Object, ends: list[Ended], *, ray_failed: bool) -> Sign:
    """A log line without a time is as old as the end of its container; that of a living one is a note."""
    end = next((end for end in ends if end.pod is pod), None)
    at_s = sign.at_s
    if at_s is None and end is not None:
        at_s = end.at_s
    # The submitter of a RayJob succeeds even if the job fails; its log is the driver's.
    driver = ray_failed and phase(pod) == "Succeeded"
    runs_again = running_since(pod) is not None
    over = end is not None or (log.previous and not runs_again) or not pod or phase(pod) == "Failed" or driver
    if "ray.io/cluster" in labels_of(pod) and not ray_failed:
        over = False  # Ray and KubeRay replace what ends, and the job continues
    weight = sign.weight if over or sign.failure is EFA_UNUSED else Weight.NOTE
    return replace(sign, at_s=at_s, weight=weight, rank=sign.rank if sign.rank is not None else rank_of(pod))


def _order(sign: Sign, root: RootFailure | None) -> tuple[int, int, float]:
    """Sort key: torchelastic's record of the rank that failed first; without it, time."""
    is_root = root is not None and root.is_of(name_of(sign.pod), sign.rank)
    return -sign.heaviness, 0 if is_root else 1, float("inf") if sign.at_s is None else sign.at_s


def _listed(best: Sign, signs: list[Sign]) -> Sign:
    """An exit code that the user listed outranks the exception that led to it."""
    if best.failure.kind is not FailureClass.APP:
        return best
    listed = (sign for sign in signs if sign.failure is LISTED_EXIT_CODE and sign.pod is best.pod)
    return next(listed, best)


def _finding(best: Sign, signs: list[Sign], snapshot: Snapshot) -> Finding:
    values = placeholder_values(best, snapshot)
    failure = best.failure
    same = [sign for sign in signs if sign.failure is failure and sign.pod is best.pod]
    more = [line for sign in same for line in sign.evidence]
    also = dict.fromkeys(
        sign.failure.name
        for sign in signs
        if sign.failure.number != failure.number and sign.heaviness is not Weight.NOTE
    )
    end = next((end for end in ended(snapshot) if end.pod is best.pod), None)
    after = values.get("after_s", "")
    return Finding(
        failure=failure,
        cause=fill_placeholders(failure.cause, values),
        evidence=evidence_of((*best.evidence, *more)),
        why=fill_placeholders(failure.why, values),
        command=command_of(failure, values),
        at_s=best.at_s,
        pod=name_of(best.pod),
        node=values.get("node", ""),
        rank=int(values["rank"]) if values.get("rank", "").isdigit() else None,
        step=last_step(snapshot, best.pod),
        exit_code=None if end is None else end.exit_code,
        seen=max(sign.seen for sign in same),
        after_s=float(after) if re.fullmatch(r"[\d.]+", after) else None,
        also=tuple(also),
        # One rank may report plainly what the others report in general words.
        is_doubtful=best.is_doubtful and all(sign.is_doubtful for sign in signs if sign.failure is failure),
    )

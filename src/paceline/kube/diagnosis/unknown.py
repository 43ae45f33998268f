"""The finding for a failure that no rule knows: not understood yet, with the lines that tell most.

A job that does not run is never called healthy: no pods, a status that does not come, or warnings on an
object are enough to say that something is not understood.
"""

import re
from collections.abc import Iterator

from paceline.kube.diagnosis.failure import Sign
from paceline.kube.diagnosis.finding import Finding, command_of, evidence_of, filled
from paceline.kube.diagnosis.pods import conditions, ended, node_of, phase, rank_of, said_exit, waiting
from paceline.kube.diagnosis.snapshot import Object, Snapshot, message_of, name_of, subject_of
from paceline.kube.diagnosis.table import NOT_UNDERSTOOD, UNKNOWN
from paceline.kube.diagnosis.times import read_time
from paceline.kube.diagnosis.values import last_step, values_of
from paceline.kube.reading import mapping

_TERMINATED = 143  # told to end: whoever told it knows why
_STARTING = ("ContainerCreating", "PodInitializing", "")
_LONG_S = 300.0
_NO_PODS_S = 60.0
_MOST_LINES = 200
_END = re.compile(r"\b(?:error|fatal|failed|killed|abort\w*|signal \d+)\b", re.IGNORECASE)


def unknown(snapshot: Snapshot) -> Finding | None:
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
    said = [f"log of {log.pod}: {_telling(log.text)}" for log in snapshot.logs if log.pod == name_of(pod)]
    values = values_of(Sign(UNKNOWN, (), at_s, pod), snapshot)
    return Finding(
        failure=failure,
        cause=filled(failure.cause, values),
        evidence=evidence_of((line, *said, *warnings[-1:])),
        why=filled(failure.why, values),
        command=command_of(failure, values),
        at_s=at_s,
        pod=name_of(pod),
        node=node_of(pod),
        rank=rank_of(pod),
        step=last_step(snapshot, pod),
        exit_code=code,
    )


def unreadable(snapshot: Snapshot) -> Finding | None:
    """A text in which nothing is recognised: its most telling lines. None when it shows a job that runs."""
    if any(phase(pod) in ("Running", "Succeeded") for pod in snapshot.pods):
        return None
    warnings = [
        f"event {event.get('reason')}: {message_of(event)}"
        for event in snapshot.events
        if event.get("type") == "Warning"
    ]
    said = [_telling(log.text) for log in snapshot.logs]
    values = values_of(Sign(UNKNOWN, (), None, {}), snapshot)
    return Finding(
        failure=UNKNOWN,
        cause=filled(UNKNOWN.cause, values),
        evidence=evidence_of((*warnings[-2:], *said)),
        why=filled(UNKNOWN.why, values),
        command=command_of(UNKNOWN, values),
    )


def _telling(text: str) -> str:
    """The last line that sounds like an end; the last of all if none does."""
    lines = [line for line in text.splitlines()[-_MOST_LINES:] if line.strip()]
    return next((line for line in reversed(lines) if _END.search(line)), lines[-1] if lines else "")


def _worst(snapshot: Snapshot) -> Iterator[tuple[Object, float | None, str, int | None]]:
    ends = ended(snapshot)
    for one in sorted(ends, key=lambda end: end.exit_code == _TERMINATED):
        line = f"pod/{name_of(one.pod)} container {one.container}: {said_exit(one.exit_code)} {one.reason}"
        yield one.pod, one.at_s, f"{line} {one.message}", one.exit_code
    for pod in snapshot.pods:
        if phase(pod) == "Failed":
            status = mapping(pod, "status")
            yield (
                pod,
                None,
                f"pod/{name_of(pod)} Failed: {status.get('reason', '')} {status.get('message', '')}",
                None,
            )
    for found in waiting(snapshot):
        if found.reason not in _STARTING:
            yield found.pod, None, f"pod/{name_of(found.pod)} waits: {found.reason}: {found.message}", None
    for job in snapshot.of("RayJob"):
        status = mapping(job, "status")
        if status.get("jobStatus") == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
            line = f"RayJob/{name_of(job)} {status.get('jobStatus', 'Failed')}, {status.get('reason', '')}"
            yield {}, read_time(status.get("endTime")), f"{line}: {status.get('message', '')}", None
    for job in snapshot.jobs:
        for told in conditions(job):
            if told.get("type") == "Failed" and told.get("status") == "True":
                line = f"{job.get('kind')}/{name_of(job)} Failed: {told.get('reason')}: {told.get('message')}"
                yield {}, read_time(told.get("lastTransitionTime")), line, None
    for answer in snapshot.answers:
        if answer.code >= 400 and answer.code != 429 and answer.verb not in ("log", "watch"):
            yield (
                {},
                answer.at_s,
                f"{answer.verb} {answer.path} answered {answer.code}: {answer.message}",
                None,
            )
    for pod in snapshot.pods:
        born = read_time(mapping(pod, "metadata").get("creationTimestamp"))
        if phase(pod) == "Pending" and born is not None and snapshot.at_s - born > _LONG_S:
            yield (
                pod,
                born,
                f"pod/{name_of(pod)} is Pending since {snapshot.at_s - born:.0f} s; nothing says why",
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
        said = f"event {last.get('reason')} of {subject_of(last).get('name')}: {message_of(last)}"
        yield {}, None, f"there are no pods; {said}", None
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
    return any(one.get("type") in ends and one.get("status") == "True" for one in conditions(job))


def _is_over(snapshot: Snapshot) -> bool:
    """Whether something has ended: what only waits may still begin."""
    if ended(snapshot) or snapshot.answers or any(phase(pod) == "Failed" for pod in snapshot.pods):
        return True
    for job in snapshot.jobs:
        status = mapping(job, "status")
        if status.get("jobStatus") == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
            return True
        if any(one.get("type") == "Failed" and one.get("status") == "True" for one in conditions(job)):
            return True
    return False

"""Signs in the words of events, states, conditions and answers of the API. Each text is classified by itself.

An event stays for an hour; what it tells of may be over. A pod that has a node is no longer without one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline.k8s.diagnose.classify import Recognised, classify
from paceline.k8s.diagnose.findings import Failure, Sign, Source
from paceline.k8s.diagnose.logs import read_log
from paceline.k8s.diagnose.pods import (
    condition,
    conditions,
    ended,
    events_of,
    node_of,
    phase,
    pod_of_event,
    running_since,
    waiting,
)
from paceline.k8s.diagnose.rules.nodes import NODE_LOST
from paceline.k8s.diagnose.rules.scheduling import PLACEMENT, is_grown_for
from paceline.k8s.diagnose.snapshot import (
    Log,
    Object,
    Snapshot,
    event_time,
    first_time,
    message_of,
    name_of,
    subject_of,
    times_seen,
    was_overcome,
)
from paceline.k8s.objects import mapping, mappings, read_time

_UNTIL_PLACED = (*range(7, 16), 52, 61)  # queueing, scheduling and claims
_UNTIL_STARTED = (16, 17, 18, 21, 24, 25, 26, 53, 66, 67, 69, 75, 76)
_EVEN_WHILE_RUNNING = range(29, 33)  # external causes
_NORMAL_BUT_TELLING = ("Preempted", "TaintManagerEviction", "NotTriggerScaleUp", "Pending")


def find_cluster_signs(snapshot: Snapshot) -> Iterator[Sign]:
    yield from _answers(snapshot)
    yield from _states(snapshot)
    yield from _conditions(snapshot)
    yield from _ray_jobs(snapshot)
    yield from _events(snapshot)


def _sign(
    recognised: Recognised,
    line: str,
    at_s: float | None,
    pod: Object | None = None,
    values: Mapping[str, str] | None = None,
) -> Sign:
    return Sign(
        recognised.failure,
        (line,),
        at_s,
        {} if pod is None else pod,
        recognised.values if values is None else values,
        weight=recognised.by.weight,
        is_doubtful=recognised.is_doubtful,
    )


def _answers(snapshot: Snapshot) -> Iterator[Sign]:
    for answer in snapshot.answers:
        if answer.verb in ("log", "watch") or answer.code == 429:
            continue
        recognised = classify(answer.message, Source.API)
        if recognised is not None:
            line = f"{answer.verb} {answer.path} returned {answer.code}: {answer.message}"
            yield _sign(recognised, line, answer.at_s)


def _states(snapshot: Snapshot) -> Iterator[Sign]:
    for state in waiting(snapshot):
        recognised = classify(f"{state.reason}: {state.message}", Source.CLUSTER)
        if recognised is not None and state.reason != "CrashLoopBackOff":
            line = (
                f"pod/{name_of(state.pod)} container {state.container} waits: {state.reason}: {state.message}"
            )
            values = {"image": state.image, "container": state.container, **recognised.values}
            # A back-off implies more than one failure.
            seen = 2 if state.reason.endswith("BackOff") else 1
            yield replace(_sign(recognised, line, None, state.pod, values), seen=seen)
    for pod in snapshot.pods:
        message = f"{mapping(pod, 'status').get('reason', '')}: {mapping(pod, 'status').get('message', '')}"
        recognised = (
            classify(message, Source.CLUSTER) if phase(pod) == "Failed" and len(message) > len(": ") else None
        )
        if recognised is not None:
            yield _sign(recognised, f"pod/{name_of(pod)} Failed: {message}", None, pod)
    for end in ended(snapshot):
        # With FallbackToLogsOnError, the message is the end of the log.
        log = Log(pod=name_of(end.pod), container=end.container, text=end.message)
        sign = read_log(log, end.pod)
        if sign is not None:
            at_s = sign.at_s if sign.at_s is not None else end.at_s
            yield replace(sign, at_s=at_s, pod=end.pod)
        elif (recognised := classify(end.message, Source.CLUSTER)) is not None:
            line = f"pod/{name_of(end.pod)} container {end.container}: {end.reason}: {end.message}"
            values = {"container": end.container, **recognised.values}
            yield _sign(recognised, line, end.at_s, end.pod, values)


def _conditions(snapshot: Snapshot) -> Iterator[Sign]:
    for pod in snapshot.pods:
        for entry in conditions(pod):
            recognised = classify(str(entry.get("message", "")), Source.CLUSTER)
            if recognised is not None and recognised.failure is PLACEMENT and is_grown_for(pod, snapshot):
                continue
            if (
                entry.get("type") == "PodScheduled"
                and entry.get("status") == "False"
                and recognised is not None
            ):
                line = f"pod/{name_of(pod)} PodScheduled=False: {entry.get('message')}"
                at_s = read_time(entry.get("lastTransitionTime"))
                yield _sign(recognised, line, at_s, pod)
    for job in snapshot.jobs:
        for entry in conditions(job):
            message = f"{entry.get('reason', '')}: {entry.get('message', '')}"
            recognised = classify(message, Source.CLUSTER)
            if entry.get("status") == "True" and recognised is not None:
                at_s = read_time(entry.get("lastTransitionTime"))
                line = f"{job.get('kind')}/{name_of(job)} {entry.get('type')}: {message}"
                yield _sign(recognised, line, at_s)


def _ray_jobs(snapshot: Snapshot) -> Iterator[Sign]:
    """A failed RayJob has no conditions; its message is the end of the driver's log."""
    for job in snapshot.of("RayJob"):
        status = mapping(job, "status")
        if (
            status.get("jobStatus") not in ("FAILED", "STOPPED")
            and status.get("jobDeploymentStatus") != "Failed"
        ):
            continue
        subject = f"RayJob/{name_of(job)}"
        sign = read_log(Log(pod=subject, text=str(status.get("message", ""))), {})
        if sign is not None:
            evidence = tuple(
                line.replace(f"log of {subject}", f"{subject} status.message") for line in sign.evidence
            )
            at_s = read_time(status.get("endTime"))
            yield replace(sign, evidence=evidence, at_s=at_s)


def _events(snapshot: Snapshot) -> Iterator[Sign]:
    for event in events_of(snapshot):
        reason = str(event.get("reason", ""))
        if event.get("type") == "Normal" and reason not in _NORMAL_BUT_TELLING:
            continue
        if message_of(event).startswith("Cancelling deletion"):
            continue
        recognised = classify(f"{reason}: {message_of(event)}", Source.CLUSTER)
        if recognised is None:
            continue
        pod = _subject_pod(event, snapshot)
        subject = subject_of(event)
        if subject.get("kind") == "Node" or _is_over(recognised.failure, pod, event, snapshot):
            continue  # a node's own troubles are read from its conditions
        about = (
            f" of {str(subject.get('kind', '')).lower()}/{subject.get('name')}" if subject.get("name") else ""
        )
        line = f"event {reason}{about}: {message_of(event)}"
        values = {"namespace": str(subject.get("namespace", "")), **recognised.values}
        if subject.get("kind") == "Pod":
            values["pod"] = str(subject.get("name", ""))  # it may be gone
        yield replace(_sign(recognised, line, first_time(event), pod, values), seen=times_seen(event))


def _subject_pod(event: Object, snapshot: Snapshot) -> Object:
    """The pod that it is about. Operators repeat a pod's troubles on the job, with the pod's name in it."""
    if subject_of(event).get("kind") in ("Pod", None):
        return pod_of_event(snapshot, event)
    tokens = re.findall(r"[a-z0-9][a-z0-9.-]*", message_of(event))
    return next((pod for pod in snapshot.pods if name_of(pod) in tokens), {})


def _is_over(failure: Failure, pod: Object, event: Object, snapshot: Snapshot) -> bool:
    if _is_older(event, pod) or phase(pod) == "Succeeded":
        return True
    if not pod and (_has_successor(event, snapshot) or _was_made_later(event, snapshot)):
        return True
    if failure is PLACEMENT and pod and is_grown_for(pod, snapshot):
        return True
    if was_overcome(event, events_of(snapshot)):
        return True
    if failure is NODE_LOST and any(
        name_of(node) == node_of(pod) and condition(node, "Ready").get("status") == "True"
        for node in snapshot.nodes
    ):
        return True
    if failure.number not in _EVEN_WHILE_RUNNING and running_since(pod) is not None:
        return True
    if failure.number in _UNTIL_PLACED:
        return bool(node_of(pod))
    return failure.number in _UNTIL_STARTED and any(
        "startedAt" in mapping(status, when, state)
        for status in mappings(pod, "status", "containerStatuses")
        for when, state in (("state", "running"), ("state", "terminated"), ("lastState", "terminated"))
    )


def _was_made_later(event: Object, snapshot: Snapshot) -> bool:
    """A controller that could not create pods, and then could: all run, and one is younger than the event."""
    at_s = event_time(event)
    if at_s is None or not snapshot.pods or subject_of(event).get("kind") in ("Pod", None):
        return False
    born = [read_time(mapping(pod, "metadata").get("creationTimestamp")) for pod in snapshot.pods]
    newest = max((time_s for time_s in born if time_s is not None), default=None)
    return (
        newest is not None
        and newest >= at_s
        and all(phase(pod) == "Succeeded" or running_since(pod) is not None for pod in snapshot.pods)
    )


def _has_successor(event: Object, snapshot: Snapshot) -> bool:
    """Whether the event is of a deleted pod of an earlier attempt, before the job or its pods started."""
    at_s = event_time(event)
    if at_s is None or subject_of(event).get("kind") != "Pod":
        return False
    created = (mapping(job, "metadata").get("creationTimestamp") for job in (*snapshot.jobs, *snapshot.pods))
    return any(at_s < born for born in map(read_time, created) if born is not None)


def _is_older(event: Object, pod: Object) -> bool:
    """Whether the event is of an earlier attempt's pod with the same name."""
    event_uid = subject_of(event).get("uid")
    pod_uid = mapping(pod, "metadata").get("uid")
    if event_uid and pod_uid:
        return event_uid != pod_uid
    born = read_time(mapping(pod, "metadata").get("creationTimestamp"))
    at_s = event_time(event)
    return born is not None and at_s is not None and at_s < born

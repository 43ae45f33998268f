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
_EVEN_WHILE_RUNNING = range(29, 33)  # what happens to pods from outside
_NORMAL_BUT_TELLING = ("Preempted", "TaintManagerEviction", "NotTriggerScaleUp", "Pending")


def find_cluster_signs(snapshot: Snapshot) -> Iterator[Sign]:
    yield from _answers(snapshot)
    yield from _states(snapshot)
    yield from _conditions(snapshot)
    yield from _ray_jobs(snapshot)
    yield from _events(snapshot)


def _sign(
    found: Recognised,
    line: str,
    at_s: float | None,
    pod: Object | None = None,
    values: Mapping[str, str] | None = None,
) -> Sign:
    return Sign(
        found.failure,
        (line,),
        at_s,
        {} if pod is None else pod,
        found.values if values is None else values,
        weight=found.by.weight,
        is_doubtful=found.is_doubtful,
    )


def _answers(snapshot: Snapshot) -> Iterator[Sign]:
    for answer in snapshot.answers:
        if answer.verb in ("log", "watch") or answer.code == 429:
            continue
        found = classify(answer.message, Source.API)
        if found is not None:
            line = f"{answer.verb} {answer.path} answered {answer.code}: {answer.message}"
            yield _sign(found, line, answer.at_s)


def _states(snapshot: Snapshot) -> Iterator[Sign]:
    for one in waiting(snapshot):
        found = classify(f"{one.reason}: {one.message}", Source.CLUSTER)
        if found is not None and one.reason != "CrashLoopBackOff":
            line = f"pod/{name_of(one.pod)} container {one.container} waits: {one.reason}: {one.message}"
            values = {"image": one.image, "container": one.container, **found.values}
            # To back off is to have failed more than once.
            seen = 2 if one.reason.endswith("BackOff") else 1
            yield replace(_sign(found, line, None, one.pod, values), seen=seen)
    for pod in snapshot.pods:
        said = f"{mapping(pod, 'status').get('reason', '')}: {mapping(pod, 'status').get('message', '')}"
        found = classify(said, Source.CLUSTER) if phase(pod) == "Failed" and len(said) > len(": ") else None
        if found is not None:
            yield _sign(found, f"pod/{name_of(pod)} Failed: {said}", None, pod)
    for end in ended(snapshot):
        # With FallbackToLogsOnError, the message is the end of the log.
        log = Log(pod=name_of(end.pod), container=end.container, text=end.message)
        sign = read_log(log, end.pod)
        if sign is not None:
            at_s = sign.at_s if sign.at_s is not None else end.at_s
            yield replace(sign, at_s=at_s, pod=end.pod)
        elif (found := classify(end.message, Source.CLUSTER)) is not None:
            line = f"pod/{name_of(end.pod)} container {end.container}: {end.reason}: {end.message}"
            values = {"container": end.container, **found.values}
            yield _sign(found, line, end.at_s, end.pod, values)


def _conditions(snapshot: Snapshot) -> Iterator[Sign]:
    for pod in snapshot.pods:
        for one in conditions(pod):
            found = classify(str(one.get("message", "")), Source.CLUSTER)
            if found is not None and found.failure is PLACEMENT and is_grown_for(pod, snapshot):
                continue
            if one.get("type") == "PodScheduled" and one.get("status") == "False" and found is not None:
                line = f"pod/{name_of(pod)} PodScheduled=False: {one.get('message')}"
                at_s = read_time(one.get("lastTransitionTime"))
                yield _sign(found, line, at_s, pod)
    for job in snapshot.jobs:
        for one in conditions(job):
            said = f"{one.get('reason', '')}: {one.get('message', '')}"
            found = classify(said, Source.CLUSTER)
            if one.get("status") == "True" and found is not None:
                at_s = read_time(one.get("lastTransitionTime"))
                line = f"{job.get('kind')}/{name_of(job)} {one.get('type')}: {said}"
                yield _sign(found, line, at_s)


def _ray_jobs(snapshot: Snapshot) -> Iterator[Sign]:
    """A failed RayJob has no conditions; its message is the end of the driver's log."""
    for job in snapshot.of("RayJob"):
        status = mapping(job, "status")
        if (
            status.get("jobStatus") not in ("FAILED", "STOPPED")
            and status.get("jobDeploymentStatus") != "Failed"
        ):
            continue
        about = f"RayJob/{name_of(job)}"
        sign = read_log(Log(pod=about, text=str(status.get("message", ""))), {})
        if sign is not None:
            evidence = tuple(
                line.replace(f"log of {about}", f"{about} status.message") for line in sign.evidence
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
        found = classify(f"{reason}: {message_of(event)}", Source.CLUSTER)
        if found is None:
            continue
        pod, subject = _pod_meant(event, snapshot), subject_of(event)
        if subject.get("kind") == "Node" or _is_over(found.failure, pod, event, snapshot):
            continue  # a node's own troubles are read from its conditions
        about = (
            f" of {str(subject.get('kind', '')).lower()}/{subject.get('name')}" if subject.get("name") else ""
        )
        line = f"event {reason}{about}: {message_of(event)}"
        values = {"namespace": str(subject.get("namespace", "")), **found.values}
        if subject.get("kind") == "Pod":
            values["pod"] = str(subject.get("name", ""))  # it may be gone
        yield replace(_sign(found, line, first_time(event), pod, values), seen=times_seen(event))


def _pod_meant(event: Object, snapshot: Snapshot) -> Object:
    """The pod that it is about. Operators repeat a pod's troubles on the job, with the pod's name in it."""
    if subject_of(event).get("kind") in ("Pod", None):
        return pod_of_event(snapshot, event)
    words = re.findall(r"[a-z0-9][a-z0-9.-]*", message_of(event))
    return next((pod for pod in snapshot.pods if name_of(pod) in words), {})


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
    newest = max((one for one in born if one is not None), default=None)
    return (
        newest is not None
        and newest >= at_s
        and all(phase(pod) == "Succeeded" or running_since(pod) is not None for pod in snapshot.pods)
    )


def _has_successor(event: Object, snapshot: Snapshot) -> bool:
    """Of a pod that is gone, from before the job or a pod of it began: of an attempt before."""
    at_s = event_time(event)
    if at_s is None or subject_of(event).get("kind") != "Pod":
        return False
    made = (mapping(one, "metadata").get("creationTimestamp") for one in (*snapshot.jobs, *snapshot.pods))
    return any(at_s < born for born in map(read_time, made) if born is not None)


def _is_older(event: Object, pod: Object) -> bool:
    """Of a pod of an attempt before, which had the same name."""
    meant, mine = subject_of(event).get("uid"), mapping(pod, "metadata").get("uid")
    if meant and mine:
        return meant != mine
    born, at_s = read_time(mapping(pod, "metadata").get("creationTimestamp")), event_time(event)
    return born is not None and at_s is not None and at_s < born

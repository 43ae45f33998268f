"""Progress of a job: pods that are still starting, and the newest checkpoint that the job or its logs report.

A pod that waits for another one (an init container, a rendezvous) shows a consequence. As long as the other
pod is being scheduled, pulls its image, is created or gets ready, the cause is in progress, and nothing is
removed because of the consequence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.kube.diagnosis.pods import (
    condition,
    events_of,
    is_terminating,
    phase,
    pod_of_event,
    running_since,
)
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of
from paceline.kube.diagnosis.times import read_time
from paceline.kube.reading import mapping, mappings

ANNOTATION = "paceline.dev/checkpoint-step"
_SAVED = re.compile(r"(?:saved|wrote|written)[^\n]*checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)", re.IGNORECASE)
_SAVED_AT = re.compile(
    r"checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)[^\n]*\b(?:saved|written|complete)", re.IGNORECASE
)
# A line that speaks of a checkpoint that did not come to be.
_NOT = re.compile(
    r"\b(?:not|no|never|nothing|cannot|unable|fail\w*|error|damaged|corrupt\w*|partial\w*|incomplete|aborted"
    r"|skipp\w+)\b|n't\b",
    re.IGNORECASE,
)
_GONE = re.compile(
    r"\b(?:remov\w+|delet\w+|prun\w+|rotat\w+|discard\w+|unusable|unreadable|lost)\b", re.IGNORECASE
)
_MENTIONED = re.compile(r"(?:checkpoint|ckpt)[^\n]*?\bstep[ =:#/_-]*(\d+)", re.IGNORECASE)


def newest_checkpoint(snapshot: Snapshot) -> int | None:
    """The newest one that the logs report as complete, and do not report as lost or damaged afterwards.

    The volume itself is not read. None when the logs mention none.
    """
    said = [str(mapping(job, "metadata", "annotations").get(ANNOTATION, "")) for job in snapshot.jobs]
    steps = {int(text) for text in said if text.isdigit()}
    for line in (line for log in snapshot.logs for line in log.text.split("\n")):
        is_refused = _NOT.search(line) is not None or _GONE.search(line) is not None
        found = _MENTIONED.search(line) if is_refused else _SAVED.search(line) or _SAVED_AT.search(line)
        if found is None:
            continue
        if is_refused:
            steps.discard(int(found[1]))
        else:
            steps.add(int(found[1]))
    return max(steps, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A pod that is on its way to run."""

    pod: str
    what: str  # how far it is, such as "pulls its image"


# What a kubelet says of a container that it has not tried to start yet.
_CREATING = ("", "ContainerCreating", "PodInitializing")


def starting(snapshot: Snapshot) -> list[Starting]:
    """Pods that are scheduled, pulled, created or not ready yet. One in an init container waits by itself."""
    pods = [pod for pod in snapshot.pods if not is_terminating(pod)]
    return [Starting(pod=name_of(pod), what=what) for pod in pods for what in _stage(pod, snapshot)]


def _stage(pod: Object, snapshot: Snapshot) -> Iterator[str]:
    if phase(pod) == "Running" and ready_since(pod) is None:
        yield "is not ready yet"
    if phase(pod) not in ("Pending", "") or has_running_init(pod):
        return
    if condition(pod, "PodScheduled").get("status") != "True" and not mapping(pod, "spec").get("nodeName"):
        yield "waits for a node"
    elif all(reason in _CREATING for reason in _waiting_reasons(pod)):
        yield "pulls its image" if _is_pulling(pod, snapshot) else "is being created"


def _waiting_reasons(pod: Object) -> list[str]:
    statuses = (
        *mappings(pod, "status", "initContainerStatuses"),
        *mappings(pod, "status", "containerStatuses"),
    )
    return [str(mapping(one, "state", "waiting").get("reason", "")) for one in statuses]


def _is_pulling(pod: Object, snapshot: Snapshot) -> bool:
    told = [
        event.get("reason")
        for event in events_of(snapshot, "Pulling", "Pulled", "Failed")
        if pod_of_event(snapshot, event) is pod
    ]
    return told[-1:] == ["Pulling"]


def has_running_init(pod: Object) -> bool:
    return any(mapping(one, "state", "running") for one in mappings(pod, "status", "initContainerStatuses"))


def ready_since(pod: Object) -> float | None:
    """None for a pod that is not ready. One that reports no readiness is ready when its containers run."""
    said = condition(pod, "Ready")
    if not said:
        return running_since(pod)
    return read_time(said.get("lastTransitionTime")) if said.get("status") == "True" else None


def waits_alone_since(snapshot: Snapshot, pod: Object) -> float | None:
    """Since when every other pod of the job is ready, so that this one can wait for none of them. None while
    one is starting, and where there is no other: then it is not known what it waits for."""
    others = [one for one in snapshot.pods if one is not pod and not has_running_init(one)]
    since = [ready_since(one) for one in others if phase(one) != "Succeeded"]
    known = [at_s for at_s in since if at_s is not None]
    return max(known) if known and len(known) == len(since) else None

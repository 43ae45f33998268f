"""Snapshot of a job: objects, events, logs and API responses, unchanged.

It is immutable: readers in pods.py parse it, and the table's rules search it for failures. A deleted pod
takes its state and its log with it, so a follower adds what earlier polls read of such a pod.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from paceline.k8s.objects import mapping, read_time, write_time

Object = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The end of what a container wrote."""

    pod: str
    text: str
    container: str = ""
    previous: bool = False  # log of the container before its restart
    mixed: bool = False  # a text of unknown origin: it may quote events and conditions too


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of the API server to one call; `code` 0 if the connection was cut."""

    verb: str
    code: int
    message: str
    reason: str = ""
    path: str = ""
    at_s: float | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A DELETED event of a watch."""

    subject: Object
    ours: bool
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    at_s: float
    objects: tuple[Object, ...] = ()
    logs: tuple[Log, ...] = ()
    answers: tuple[Answer, ...] = ()
    removals: tuple[Removal, ...] = ()
    client: str = ""  # version of the client library
    listed_exit_codes: frozenset[int] = frozenset()  # exit codes after which the user wants a restart
    gone_pods: Mapping[str, float] = field(
        default_factory=dict
    )  # by uid: present at earlier polls, absent since

    def of(self, *kinds: str) -> list[Object]:
        return [obj for obj in self.objects if obj.get("kind") in kinds]

    @property
    def pods(self) -> list[Object]:
        return self.of("Pod")

    @property
    def nodes(self) -> list[Object]:
        return self.of("Node")

    @property
    def jobs(self) -> list[Object]:
        """Objects that represent the whole job: the job, and objects that its operator derived from it."""
        return self.of(*JOB_KINDS)

    @property
    def events(self) -> list[Object]:
        """Oldest first, by when they were last seen."""
        return sorted(self.of("Event"), key=lambda event: event_time(event) or 0.0)


JOB_KINDS = ("PyTorchJob", "TrainJob", "RayJob", "RayCluster", "HyperPodPyTorchJob", "JobSet", "Job")


# A pod that was deleted explains what happens to the job soon after, and nothing later.
_GONE_PODS_S = 60.0


def with_gone_pods(now: Snapshot, before: Snapshot | None) -> Snapshot:
    """The snapshot, with pods (and their logs) that were in the previous snapshot and are deleted now."""
    if before is None:
        return now
    present = {uid_of(pod) for pod in now.pods}
    names = {name_of(pod) for pod in now.pods}
    kept: list[Object] = []
    gone: dict[str, float] = {}
    for pod in before.pods:
        since_s = before.gone_pods.get(uid_of(pod), now.at_s)
        if uid_of(pod) in present or name_of(pod) in names or now.at_s - since_s > _GONE_PODS_S:
            continue
        metadata = {"deletionTimestamp": write_time(now.at_s), **mapping(pod, "metadata")}
        kept.append({**pod, "metadata": metadata})
        gone[uid_of(pod)] = since_s
    lost = {name_of(pod) for pod in kept}
    logs = tuple(log for log in before.logs if log.pod in lost)
    return replace(now, objects=(*now.objects, *kept), logs=(*now.logs, *logs), gone_pods=gone)


def uid_of(obj: Object) -> str:
    return str(mapping(obj, "metadata").get("uid", ""))


def name_of(obj: Object) -> str:
    return str(mapping(obj, "metadata").get("name", ""))


def namespace_of(obj: Object) -> str:
    return str(mapping(obj, "metadata").get("namespace", ""))


def labels_of(obj: Object) -> Object:
    return mapping(obj, "metadata", "labels")


def event_time(event: Object) -> float | None:
    """When it was last seen; both of Kubernetes' ways to write an event are read."""
    series = mapping(event, "series").get("lastObservedTime")
    for value in (event.get("lastTimestamp"), series, event.get("eventTime"), event.get("firstTimestamp")):
        at_s = read_time(value)
        if at_s is not None:
            return at_s
    return None


def first_time(event: Object) -> float | None:
    at_s = read_time(event.get("firstTimestamp"))
    return event_time(event) if at_s is None else at_s


def times_seen(event: Object) -> int:
    count = event.get("count") or mapping(event, "series").get("count")
    return count if isinstance(count, int) else 1


def subject_of(event: Object) -> Object:
    return mapping(event, "involvedObject") or mapping(event, "regarding")


def message_of(event: Object) -> str:
    return str(event.get("message") or event.get("note") or "")


# Stages of a pod's start: placed or about to be, volumes attached, running.
_STAGE_THAT_FAILED = {"FailedScheduling": 0, "FailedAttachVolume": 1, "FailedMount": 1, "FailedMapVolume": 1}
_STAGE_REACHED = {
    "TriggeredScaleUp": 0,
    "Nominated": 0,
    "Scheduled": 0,
    "SuccessfulAttachVolume": 1,
    "Pulling": 1,
    "Pulled": 1,
    "Created": 1,
    "Started": 1,
}


# The scheduler repeats FailedScheduling while an ordered node starts; only these take the order back.
_NODE_ORDERED = ("TriggeredScaleUp", "Nominated")
_NODE_REFUSED = re.compile(r"NotTriggerScaleUp|FailedScaleUp|incompatible with (?:nodepool|provisioner)")
_LONGEST_START_S = 3600.0


def was_overcome(event: Object, events: Iterable[Object]) -> bool:
    """Another event of the same object shows that it got past the stage that failed, or is about to."""
    reason = str(event.get("reason", ""))
    at_s = event_time(event)
    stage = _STAGE_THAT_FAILED.get(reason)
    if stage is None or at_s is None:
        return False
    same = [other for other in events if _subject_key(other) == _subject_key(event)]
    for other in same:
        other_s = event_time(other)
        reached = str(other.get("reason", ""))
        if other_s is not None and other_s > at_s and _STAGE_REACHED.get(reached, -1) >= stage:
            return True
    if reason != "FailedScheduling" or _refuses_node(event):
        return False
    ordered_s = [event_time(other) for other in same if other.get("reason") in _NODE_ORDERED]
    newest_s = max((time_s for time_s in ordered_s if time_s is not None), default=None)
    if newest_s is None or at_s - newest_s > _LONGEST_START_S:
        return False
    return not any(_refuses_node(other) and (event_time(other) or 0.0) > newest_s for other in same)


def _subject_key(event: Object) -> tuple[object, object]:
    subject = subject_of(event)
    return subject.get("uid"), subject.get("name")


def _refuses_node(event: Object) -> bool:
    return _NODE_REFUSED.search(f"{event.get('reason')}: {message_of(event)}") is not None

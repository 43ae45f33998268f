"""Readers of pods: state, containers, rank."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.k8s.diagnose.snapshot import Object, Snapshot, labels_of, message_of, name_of, subject_of
from paceline.k8s.objects import mapping, mappings, read_time

_INDEX_LABELS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "jobset.sigs.k8s.io/job-index",
)
# Ray assigns its own numbers to pods, and a Job without indices assigns none.
_WITHOUT_RANKS = ("ray.io/cluster", "batch.kubernetes.io/job-name", "job-name")
_COPIED = re.compile(r"Error pod (\S+) ")  # training-operator
_RAY_RESTARTS = 2
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended, now or before it was restarted."""

    pod: Object
    container: str
    exit_code: int
    reason: str
    message: str
    at_s: float | None
    init: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a container does not run."""

    pod: Object
    container: str
    reason: str
    message: str
    image: str


def conditions(obj: Object) -> list[Object]:
    return mappings(obj, "status", "conditions")


def condition(obj: Object, kind: str) -> Object:
    """The condition of this type; an empty one if there is none."""
    return next((candidate for candidate in conditions(obj) if candidate.get("type") == kind), {})


def phase(pod: Object) -> str:
    return str(mapping(pod, "status").get("phase", ""))


def is_terminating(obj: Object) -> bool:
    """Its deletion was requested, and has not finished."""
    return mapping(obj, "metadata").get("deletionTimestamp") is not None


def node_of(pod: Object) -> str:
    return str(mapping(pod, "spec").get("nodeName", ""))


def events_of(snapshot: Snapshot, *reasons: str) -> Iterator[Object]:
    """Oldest first; those of any reason if none is named."""
    return (event for event in snapshot.events if not reasons or event.get("reason") in reasons)


def pod_named(snapshot: Snapshot, name: str) -> Object:
    return next((pod for pod in snapshot.pods if name_of(pod) == name), {})


def pod_of_event(snapshot: Snapshot, event: Object) -> Object:
    """The pod that it is about: its subject, or the one whose trouble an operator copied onto the job."""
    return pod_named(snapshot, pod_name_of(event))


def pod_name_of(event: Object) -> str:
    copied = _COPIED.match(message_of(event))
    return str(subject_of(event).get("name", "")) if copied is None else copied[1]


def waiting(snapshot: Snapshot) -> Iterator[Waiting]:
    for pod in snapshot.pods:
        for status, _ in _statuses(pod):
            state = mapping(status, "state", "waiting")
            if state:
                yield Waiting(
                    pod=pod,
                    container=str(status.get("name", "")),
                    reason=str(state.get("reason", "")),
                    message=str(state.get("message", "")),
                    image=str(status.get("image", "")),
                )


def ended(snapshot: Snapshot) -> list[Ended]:
    """Those that failed, the earliest first; a restarted container counts by how it ended before."""
    ends = [
        end
        for pod in snapshot.pods
        for end in _ended(pod)
        if end.exit_code != 0 and not _is_replaced_by_ray(end, snapshot)
    ]
    return sorted(ends, key=lambda end: float("inf") if end.at_s is None else end.at_s)


def _is_replaced_by_ray(end: Ended, snapshot: Snapshot) -> bool:
    """Ray restarts what ends once or twice, and its job continues; more often it is a failure."""
    if "ray.io/cluster" not in labels_of(end.pod) or end.reason != "Error":
        return False
    failed = any(mapping(job, "status").get("jobStatus") == "FAILED" for job in snapshot.of("RayJob"))
    counts = [status.get("restartCount") for status in mappings(end.pod, "status", "containerStatuses")]
    often = any(isinstance(count, int) and count > _RAY_RESTARTS for count in counts)
    return (
        bool(snapshot.of("RayJob", "RayCluster")) and not failed and not often and phase(end.pod) != "Failed"
    )


def _ended(pod: Object) -> Iterator[Ended]:
    for status, init in _statuses(pod):
        # A container that runs again has recovered from its previous end.
        for when in ("state",) if mapping(status, "state", "running") else ("state", "lastState"):
            state = mapping(status, when, "terminated")
            code = state.get("exitCode")
            if isinstance(code, int):
                yield Ended(
                    pod=pod,
                    container=str(status.get("name", "")),
                    exit_code=code,
                    reason=str(state.get("reason", "")),
                    message=str(state.get("message", "")),
                    at_s=read_time(state.get("finishedAt")),
                    init=init,
                )
                break


def _statuses(pod: Object) -> Iterator[tuple[Object, bool]]:
    for status in mappings(pod, "status", "initContainerStatuses"):
        yield status, True
    for status in mappings(pod, "status", "containerStatuses"):
        yield status, False


def running_since(pod: Object) -> float | None:
    """When the last of its main containers began to run; None if one does not."""
    started_s = [
        read_time(mapping(status, "state", "running").get("startedAt"))
        for status in mappings(pod, "status", "containerStatuses")
    ]
    known = [at_s for at_s in started_s if at_s is not None]
    return max(known) if known and len(known) == len(started_s) else None


def rank_of(pod: Object) -> int | None:
    """The rank of its node in the job: by label, or by the number that its name ends with."""
    labels = labels_of(pod)
    rank = next((str(labels[name]) for name in _INDEX_LABELS if name in labels), "")
    if not rank.isdigit() and any(name in labels for name in _WITHOUT_RANKS):
        return None  # a number in such a name is chance, or the job's own
    if not rank.isdigit():
        number = re.search(r"-(\d+)(?:-[a-z0-9]{5})?$", name_of(pod))
        if number is None:
            return None
        rank = number[1]
    # In a PyTorchJob the master is rank 0, and worker 0 is rank 1; an elastic one has no master.
    role = str(labels.get("training.kubeflow.org/replica-type", "")).lower()
    return int(rank) + (1 if role == "worker" and not _is_elastic(pod) else 0)


def _is_elastic(pod: Object) -> bool:
    """The operator gives such a pod its rendezvous by torchrun's PET_* variables."""
    names = (
        str(variable.get("name"))
        for container in mappings(pod, "spec", "containers")
        for variable in mappings(container, "env")
    )
    return any(name.startswith("PET_RDZV") for name in names)


def exit_text(code: int) -> str:
    signal = _SIGNALS.get(code - 128)
    return f"exit code {code}" + (f" ({signal})" if signal else "")


# A pod that waits for another one (an init container, a rendezvous) shows a consequence. As long as the other
# pod is being scheduled, pulls its image, is created or gets ready, the cause is in progress, and nothing is
# removed because of the consequence.

CHECKPOINT_ANNOTATION = "paceline.dev/checkpoint-step"
_SAVED = re.compile(r"(?:saved|wrote|written)[^\n]*checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)", re.IGNORECASE)
_SAVED_AT = re.compile(
    r"checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)[^\n]*\b(?:saved|written|complete)", re.IGNORECASE
)
# A line about a checkpoint that was not written.
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
    mentions = [
        str(mapping(job, "metadata", "annotations").get(CHECKPOINT_ANNOTATION, "")) for job in snapshot.jobs
    ]
    steps = {int(text) for text in mentions if text.isdigit()}
    for line in (line for log in snapshot.logs for line in log.text.split("\n")):
        is_refused = _NOT.search(line) is not None or _GONE.search(line) is not None
        match = _MENTIONED.search(line) if is_refused else _SAVED.search(line) or _SAVED_AT.search(line)
        if match is None:
            continue
        if is_refused:
            steps.discard(int(match[1]))
        else:
            steps.add(int(match[1]))
    return max(steps, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A pod that is on its way to run."""

    pod: str
    what: str  # how far it is, such as "pulls its image"


# Reasons that a kubelet reports before it starts a container.
_CREATING = ("", "ContainerCreating", "PodInitializing")


def starting(snapshot: Snapshot) -> list[Starting]:
    """Pods that are scheduled, pulled, created or not ready yet. A pod in an init container waits itself."""
    pods = [pod for pod in snapshot.pods if not is_terminating(pod)]
    return [Starting(pod=name_of(pod), what=message) for pod in pods for message in _stage(pod, snapshot)]


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
    return [str(mapping(status, "state", "waiting").get("reason", "")) for status in statuses]


def _is_pulling(pod: Object, snapshot: Snapshot) -> bool:
    reasons = [
        event.get("reason")
        for event in events_of(snapshot, "Pulling", "Pulled", "Failed")
        if pod_of_event(snapshot, event) is pod
    ]
    return reasons[-1:] == ["Pulling"]


def has_running_init(pod: Object) -> bool:
    return any(
        mapping(status, "state", "running") for status in mappings(pod, "status", "initContainerStatuses")
    )


def ready_since(pod: Object) -> float | None:
    """None for a pod that is not ready. One that reports no readiness is ready when its containers run."""
    ready = condition(pod, "Ready")
    if not ready:
        return running_since(pod)
    return read_time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None


def waits_alone_since(snapshot: Snapshot, pod: Object) -> float | None:
    """Since when every other pod of the job is ready, so that this one can wait for none of them. None while
    one is starting, and where there is no other: then it is not known what it waits for."""
    peers = [
        other_pod for other_pod in snapshot.pods if other_pod is not pod and not has_running_init(other_pod)
    ]
    since = [ready_since(other) for other in peers if phase(other) != "Succeeded"]
    known = [at_s for at_s in since if at_s is not None]
    return max(known) if known and len(known) == len(since) else None

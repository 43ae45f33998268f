"""Hosts of an elastic job: pods that may come and go, told apart from the pod of its command.

A host that is deleted, evicted, drained or on a lost node is a lost host, and the job continues: the
operator makes the pod again, and the run goes on with the others until then. Only the command's end is the
job's. Until the fewest hosts run for the first time, a host that does not start is why the job does not.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from paceline.k8s.diagnose.pods import (
    condition,
    conditions,
    ended,
    exit_text,
    is_terminating,
    node_of,
    phase,
    pod_name_of,
    ready_since,
    running_since,
)
from paceline.k8s.diagnose.snapshot import (
    Object,
    Snapshot,
    labels_of,
    message_of,
    name_of,
    subject_of,
    uid_of,
)
from paceline.k8s.objects import DRAINED, ELASTIC_NODES, mapping, mappings

_SENT_AWAY = (DRAINED, 137, 143)
# By the label that an operator sets, its value on a host. The first label that a pod has decides.
_ROLES = (
    ("training.kubeflow.org/replica-type", "worker"),
    ("jobset.sigs.k8s.io/replicatedjob-name", "node"),
    ("ray.io/node-type", "worker"),
)
_INDEX = "batch.kubernetes.io/job-completion-index"
_LOST_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
_JOINED = re.compile(r"\bhost \S+ joined with \d+ of \d+ slots free")
_WHY = {
    "EvictionByEvictionAPI": "evicted",
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "its node is lost",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ended it",
}


@dataclass(frozen=True, slots=True)
class LostHost:
    uid: str
    name: str
    why: str


def fewest_hosts(snapshot: Snapshot) -> int | None:
    """None for a job that is not elastic."""
    for job in snapshot.jobs:
        least = str(mapping(job, "metadata", "annotations").get(ELASTIC_NODES, "")).partition(":")[0]
        if least.isdigit():
            return int(least)
    return None


def is_host(pod: Object) -> bool:
    labels = labels_of(pod)
    for name, value in _ROLES:
        if name in labels:
            return str(labels[name]).lower() == value
    return str(labels.get(_INDEX, "0")) != "0"


def find_lost_hosts(snapshot: Snapshot) -> list[LostHost]:
    """Hosts that were there, and leave or have left. Empty for a job that is not elastic, and for one whose
    command has ended: then its operator ends the hosts."""
    if fewest_hosts(snapshot) is None or _command_has_ended(snapshot):
        return []
    hosts = [pod for pod in snapshot.pods if is_host(pod)]
    found = [(pod, _why_lost(pod, snapshot)) for pod in hosts]
    return [LostHost(uid_of(pod), name_of(pod), why) for pod, why in found if why]


def has_fewest_hosts(snapshot: Snapshot) -> bool:
    """Whether as many hosts run as the run needs."""
    least = fewest_hosts(snapshot)
    return least is not None and sum(_runs(pod, snapshot) for pod in snapshot.pods if is_host(pod)) >= least


def without_lost_hosts(snapshot: Snapshot, *, has_run: bool = False) -> Snapshot:
    """What remains to be judged. `has_run`: the fewest hosts have run before."""
    if fewest_hosts(snapshot) is None:
        return snapshot
    hosts = [pod for pod in snapshot.pods if is_host(pod)]
    lost = {uid_of(pod) for pod in hosts if _why_lost(pod, snapshot)}
    left_out = [pod for pod in hosts if uid_of(pod) in lost]
    if _has_failed(snapshot):
        if _command_failed(snapshot):
            left_out = hosts
        else:
            left_out = [pod for pod in left_out if _is_sent_away(pod, snapshot)]
    elif has_run or lost or has_fewest_hosts(snapshot) or _has_joined(snapshot):
        left_out = [pod for pod in hosts if uid_of(pod) in lost or not _runs(pod, snapshot)]
    return _without(snapshot, left_out)


def _without(snapshot: Snapshot, pods: Collection[Object]) -> Snapshot:
    uids = {uid_of(pod) for pod in pods}
    kept_names = {name_of(pod) for pod in snapshot.pods if uid_of(pod) not in uids}
    objects = [
        obj
        for obj in snapshot.objects
        if not (obj.get("kind") == "Pod" and uid_of(obj) in uids)
        and not (obj.get("kind") == "Event" and _is_of_host(obj, kept_names))
    ]
    names = {name_of(pod) for pod in pods}
    logs = tuple(log for log in snapshot.logs if log.pod not in names or log.pod in kept_names)
    return replace(snapshot, objects=tuple(objects), logs=logs)


def _is_of_host(event: Object, kept: Collection[str]) -> bool:
    """Also of a host that is gone already, or copied onto the job by its operator."""
    subject = subject_of(event)
    if subject.get("kind") == "Pod":
        return str(subject.get("name")) not in kept
    copied = pod_name_of(event)
    is_copied = copied != subject.get("name") and copied not in kept
    return is_copied or "Restarting" in str(event.get("reason")) or "replica(s) failed" in message_of(event)


def _runs(pod: Object, snapshot: Snapshot) -> bool:
    return (
        phase(pod) == "Running"
        and not is_terminating(pod)
        and running_since(pod) is not None
        and ready_since(pod) is not None
        and not _is_on_lost_node(pod, snapshot)
    )


def _why_lost(pod: Object, snapshot: Snapshot) -> str:
    """Empty: it is not lost."""
    disrupted = condition(pod, "DisruptionTarget")
    end = next((end for end in ended(snapshot) if end.pod is pod), None)
    if disrupted.get("status") == "True":
        reason = str(disrupted.get("reason", ""))
        return _WHY.get(reason, reason)
    if is_terminating(pod):
        return "deleted"
    if phase(pod) == "Failed" and mapping(pod, "status").get("reason"):
        return str(mapping(pod, "status").get("reason"))
    if end is not None and not end.init:
        return "drained" if end.exit_code == DRAINED else f"{exit_text(end.exit_code)} {end.reason}".strip()
    if phase(pod) == "Running" and _is_on_lost_node(pod, snapshot):
        return f"its node {node_of(pod)} does not report"
    return ""


def _is_sent_away(pod: Object, snapshot: Snapshot) -> bool:
    """By others, not by an error of its own."""
    codes = [end.exit_code for end in ended(snapshot) if end.pod is pod]
    has_condition = condition(pod, "DisruptionTarget").get("status") == "True"
    return has_condition or all(code in _SENT_AWAY for code in codes)


def _is_on_lost_node(pod: Object, snapshot: Snapshot) -> bool:
    node = next((node for node in snapshot.nodes if name_of(node) == node_of(pod)), None)
    if node is None:
        return False
    taints = [taint for taint in mappings(node, "spec", "taints") if taint.get("key") in _LOST_TAINTS]
    return bool(taints) or condition(node, "Ready").get("status") in ("Unknown", "False")


def _has_failed(snapshot: Snapshot) -> bool:
    return any(
        (one.get("type"), one.get("status")) == ("Failed", "True")
        for job in snapshot.jobs
        for one in conditions(job)
    ) or _ray_failed(snapshot)


def _ray_failed(snapshot: Snapshot) -> bool:
    return any(mapping(job, "status").get("jobStatus") == "FAILED" for job in snapshot.of("RayJob"))


def _has_joined(snapshot: Snapshot) -> bool:
    """The command's log says that a host has joined the run."""
    commands = {name_of(pod) for pod in snapshot.pods if not is_host(pod)}
    return any(_JOINED.search(log.text) for log in snapshot.logs if log.pod in commands)


def _command_has_ended(snapshot: Snapshot) -> bool:
    return any(phase(pod) in ("Succeeded", "Failed") for pod in snapshot.pods if not is_host(pod))


def _command_failed(snapshot: Snapshot) -> bool:
    """By itself: it was not sent SIGTERM or SIGKILL because the job had failed."""
    ends = [end for end in ended(snapshot) if not is_host(end.pod)]
    return _ray_failed(snapshot) or any(end.exit_code not in _SENT_AWAY for end in ends)

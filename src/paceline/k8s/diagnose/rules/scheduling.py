"""Nodes for pods, now or ever. Rows 9 to 15."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.node_fit import (
    Need,
    allocatable,
    holders,
    is_autoscaled,
    matching,
    requests,
    too_large,
    too_many,
)
from paceline.k8s.diagnose.pods import condition, events_of, phase, pod_of_event
from paceline.k8s.diagnose.snapshot import Object, Snapshot, event_time, first_time, message_of, name_of
from paceline.k8s.objects import is_extended, mappings, read_time

NEVER_FITS = Failure(
    number=9,
    name="never-fits",
    what="no node could ever hold the pod",
    kind=FailureClass.CONFIG,
    cause="the job can never run on this cluster: {table}",
    why="even empty nodes have less than it requests, and no autoscaler has announced new nodes",
    command="kubectl get nodes -o custom-columns=NAME:.metadata.name,HAS:.status.allocatable",
    remedy=Remedy.STOP,
    patience_s=60.0,  # an autoscaler reports an added node only after some seconds
)
NOT_ADVERTISED = replace(
    NEVER_FITS,
    name="device-plugin",
    what="no node offers the device that the pod requests",
    cause="no node offers {resource}, which pod {pod} requests",
    why="the driver or the device plugin is not installed on the nodes, or reports no healthy device",
    command="kubectl get pods -A -o wide | grep -iE 'device-plugin|gpu-operator'",
)
CLUSTER_BUSY = Failure(
    number=10,
    name="cluster-busy",
    what="the nodes are full",
    kind=FailureClass.WAIT,
    cause="pod {pod} waits for resources: {detail}{held}",
    why="suitable nodes exist, but are in use{unsure}",
    command="kubectl get pods -A -o wide --field-selector=status.phase=Running",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=1800.0,
)
SCALING_UP = Failure(
    number=11,
    name="autoscaling",
    what="a node is being added",
    kind=FailureClass.WAIT,
    cause="a node is being added for pod {pod}: {detail}",
    why="a machine with GPUs takes minutes to start",
    command="kubectl get nodes -w",
    remedy=Remedy.WAIT,
    weight=Weight.MASK,  # it is the answer to nodes that are full
    patience_s=3600.0,
)
NOT_SCALING = replace(
    SCALING_UP,
    kind=FailureClass.CONFIG,
    cause="no node is added for pod {pod}: {detail}",
    why="the autoscaler checked all its node groups, and none fits or can grow",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.STOP,
    weight=Weight.CAUSE,
    patience_s=0.0,
)
PLACEMENT = Failure(
    number=12,
    name="placement",
    what="taints, selectors or affinities exclude the pod",
    kind=FailureClass.CONFIG,
    cause="no node is allowed for pod {pod}: {detail}",
    why="nodes have a taint that the pod does not tolerate, or lack a label that it requires",
    command="kubectl describe nodes | grep -E '^Name:|^Taints:|^Labels:'",
    remedy=Remedy.STOP,
    patience_s=60.0,  # as above: an empty node group may grow
)
NODES_OUT = replace(
    PLACEMENT,
    name="nodes-out",
    what="the nodes for the pod are temporarily unavailable",
    kind=FailureClass.WAIT,
    cause="the nodes that pod {pod} could run on are temporarily unavailable: {detail}",
    why="they are cordoned, not ready, under pressure or being repaired; the pod is scheduled when one "
    "recovers",
    command="kubectl get nodes",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
VOLUME_ZONE = Failure(
    number=13,
    name="volume-zone",
    what="a volume is in another zone, or does not exist",
    kind=FailureClass.CONFIG,
    cause="a volume excludes every node for pod {pod}: {detail}",
    why="it is in another zone, or was not created; WaitForFirstConsumer creates it in the pod's zone",
    command="kubectl describe pvc -n {namespace}",
    remedy=Remedy.STOP,
    patience_s=60.0,  # a claim is without a volume while one is provisioned
)
DEVICE_CLASS = Failure(
    number=14,
    name="device-class-missing",
    what="a DRA device class is missing",
    kind=FailureClass.CONFIG,
    cause="device class {device} does not exist on this cluster",
    why="its driver is not installed, or not enabled",
    command="kubectl get deviceclasses,resourceslices",
    remedy=Remedy.STOP,
)
GATED = Failure(
    number=15,
    name="scheduling-gated",
    what="a scheduling gate blocks the pod",
    kind=FailureClass.WAIT,
    cause="pod {pod} is blocked by gate {gate}",
    why="the controller that set the gate, such as a queue, removes it later",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.schedulingGates}}'",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
ROWS = (
    NEVER_FITS,
    NOT_ADVERTISED,
    CLUSTER_BUSY,
    SCALING_UP,
    NOT_SCALING,
    PLACEMENT,
    NODES_OUT,
    VOLUME_ZONE,
    DEVICE_CLASS,
    GATED,
)

_SOURCES = (Source.CLUSTER,)
_OUT = (
    r"node\(s\) were unschedulable|untolerated taint \{node\.(?:kubernetes|cloudprovider)\S*\.?\S*/[^}]*\}"
    r"|taint \{(?:node\.kubernetes\.io|ToBeDeletedBy|DeletionCandidate|karpenter\.sh/disrupt"
    r"|eks\.amazonaws\.com/unhealthy)[^}]*\}"
    r"|node\(s\) (?:were not ready|had disk pressure|had memory pressure|were unreachable)"
    r"|no nodes available to schedule pods"
)
TEXTS = (
    # A device plugin that runs on a node without a usable driver or container runtime.
    text(
        NOT_ADVERTISED,
        r"(?P<detail>No devices found\. Waiting indefinitely|did you (?:set the docker default runtime"
        r"|configure the NVIDIA Container Toolkit)|Incompatible (?:platform|strategy) detected"
        r"|(?:No|no) valid resources detected)",
        *_SOURCES,
    ),
    text(DEVICE_CLASS, r"device class (?P<device>\S+) does not exist", *_SOURCES),
    # The node that has the volume may be the one that is out of use.
    text(
        NODES_OUT,
        rf"nodes are available: (?=[^\n]*(?:volume node affinity|persistent volumes to bind))"
        rf"[^\n]*(?P<detail>{_OUT})",
        *_SOURCES,
    ),
    text(
        VOLUME_ZONE,
        r"(?P<detail>volume node affinity conflict|didn't match PersistentVolume's node affinity"
        r"|unbound immediate PersistentVolumeClaims"
        r"|(?:exceed max volume count|didn't find available persistent volumes to bind)[^\n]*)",
        *_SOURCES,
    ),
    text(
        VOLUME_ZONE,
        r'(?P<detail>persistentvolumeclaim "[^"]+" (?:not found|is being deleted)'
        r"|no available persistent volume\S*.*)",
        *_SOURCES,
    ),
    text(VOLUME_ZONE, r"(?P<detail>ProvisioningFailed.*|failed to provision volume.*)", *_SOURCES),
    # A group that is at its maximum, or whose last request failed, grows again when others end.
    text(
        CLUSTER_BUSY,
        r"(?P<detail>(?:pod didn't trigger scale-up|NotTriggerScaleUp)[^\n]*(?:max node group size reached"
        r"|in backoff)[^\n]*)",
        *_SOURCES,
    ),
    text(
        NOT_SCALING,
        r"(?P<detail>incompatible with (?:nodepool|provisioner).*)",
        *_SOURCES,
    ),
    text(CLUSTER_BUSY, r"(?P<detail>exceed limits for nodepool[^\n]*)", *_SOURCES),
    # The account's limit: it is free again when other machines end.
    text(
        NOT_SCALING,
        r"(?P<detail>VcpuLimitExceeded.*|MaxSpotInstanceCount.*)",
        *_SOURCES,
        doubt=Doubt.ALWAYS,
    ),
    text(
        NOT_SCALING,
        r"(?P<detail>(?:pod didn't trigger scale-up|NotTriggerScaleUp)[^\n]*"
        r"(?:taint|affinity|selector|didn't match|volume)[^\n]*)",
        *_SOURCES,
    ),
    # No group grows; nodes that are there may still become free.
    text(
        NOT_SCALING,
        r"(?P<detail>pod didn't trigger scale-up.*|NotTriggerScaleUp.*)",
        *_SOURCES,
        doubt=Doubt.ALWAYS,
    ),
    text(
        SCALING_UP,
        r"(?P<detail>pod triggered scale-up.*|TriggeredScaleUp.*|Pod should schedule on.*)",
        *_SOURCES,
    ),
    text(
        CLUSTER_BUSY,
        r"(?P<detail>\d+/\d+ nodes are (?:un)?available: .*\d+ Insufficient [\w./-]+.*)",
        *_SOURCES,
    ),
    text(
        CLUSTER_BUSY,
        r"(?P<detail>UnfulfillableCapacity[^\n]*|ICE cache[^\n]*|didn't have free ports[^\n]*)",
        *_SOURCES,
    ),
    text(NODES_OUT, rf"(?P<detail>{_OUT})", *_SOURCES),
    text(CLUSTER_BUSY, r"(?P<detail>InsufficientInstanceCapacity.*|insufficient capacity.*)", *_SOURCES),
    text(CLUSTER_BUSY, r"(?P<detail>Too many pods|\d+ Insufficient [\w./-]+)", *_SOURCES),
    text(
        PLACEMENT,
        r"(?P<detail>untolerated taint(?:\(s\))?(?: \{[^}]*\})?"
        r"|had taint \{[^}]*\}, that the pod didn't tolerate)",
        *_SOURCES,
    ),
    text(
        PLACEMENT,
        r"(?P<detail>didn't match (?:Pod's )?(?:node affinity/selector|node selector|pod \S*affinity\S*)"
        r"|didn't satisfy existing pods"
        r"|Insufficient quota for flavor)",
        *_SOURCES,
    ),
    text(
        PLACEMENT,
        r"(?P<detail>didn't match pod topology spread constraints)",
        *_SOURCES,
    ),
)
_INSUFFICIENT = re.compile(r"\d+ Insufficient ([\w.-]+/[\w.-]*\w)")
_OF_NODES = re.compile(r"\b0/(\d+) nodes are")
_GROWING = ("TriggeredScaleUp", "Nominated")


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    stuck = [pod for pod in snapshot.pods if _unscheduled(pod)]
    for event in events_of(snapshot, *_GROWING):
        pod = pod_of_event(snapshot, event)
        if _unscheduled(pod):
            line = f"event {event.get('reason')} of {name_of(pod)}: {message_of(event)}"
            yield Sign(SCALING_UP, (line,), event_time(event), pod, {"detail": message_of(event)})
    for pod in stuck:
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("reason") == "SchedulingGated":
            gates = ", ".join(str(gate.get("name")) for gate in mappings(pod, "spec", "schedulingGates"))
            line = f"pod/{name_of(pod)} PodScheduled=False, SchedulingGated: {gates}"
            yield Sign(GATED, (line,), _since(pod), pod, {"gate": gates or "without a name"})
        elif not is_grown_for(pod, snapshot):
            yield from _unschedulable(pod, snapshot)
    yield from _not_advertised(snapshot)


def _not_advertised(snapshot: Snapshot) -> Iterator[Sign]:
    """Events of pods without a recorded condition: the device is missing on every node, and all are known."""
    if is_autoscaled(snapshot.nodes):
        return
    for event in events_of(snapshot, "FailedScheduling"):
        pod = pod_of_event(snapshot, event)
        message = message_of(event)
        number = _OF_NODES.search(message)
        if number is None or condition(pod, "PodScheduled").get("message"):
            continue
        known = [node for node in snapshot.nodes if allocatable(node)]
        if not known or len(known) < int(number[1]):
            continue
        for name in _INSUFFICIENT.findall(message):
            if all(allocatable(node).get(name, 0) == 0 for node in known):
                line = f"event FailedScheduling: {message}"
                yield Sign(NOT_ADVERTISED, (line,), first_time(event), pod, {"resource": name})


def is_grown_for(pod: Object, snapshot: Snapshot) -> bool:
    """True if an autoscaler has reported that it adds a node for this pod."""
    return any(pod_of_event(snapshot, event) is pod for event in events_of(snapshot, *_GROWING))


def _unscheduled(pod: Object) -> bool:
    return phase(pod) == "Pending" and condition(pod, "PodScheduled").get("status") == "False"


def _since(pod: Object) -> float | None:
    return read_time(condition(pod, "PodScheduled").get("lastTransitionTime"))


def _unschedulable(pod: Object, snapshot: Snapshot) -> Iterator[Sign]:
    message = str(condition(pod, "PodScheduled").get("message", ""))
    if "Insufficient" not in message and "nodes are available" not in message:
        return
    line = f"pod/{name_of(pod)} PodScheduled=False, Unschedulable: {message}"
    allowed = matching(pod, snapshot.nodes)
    if allowed and not is_autoscaled(snapshot.nodes):
        gang = [other_pod for other_pod in snapshot.pods if requests(other_pod) == requests(pod)]
        needs = too_large(pod, allowed) or too_many(gang, allowed)
        if needs:
            yield Sign(NEVER_FITS, (line,), _since(pod), pod, {"table": _table(needs)})
            return
    if "Insufficient" in message:
        scarce = next((name for name in requests(pod) if is_extended(name)), "")
        held = holders(scarce, snapshot.pods) if scarce else []
        values = {"detail": message, "held": f" ({scarce} is used by {', '.join(held[:4])})" if held else ""}
        if not snapshot.nodes:
            values["unsure"] = "; whether they are large enough is unknown, because no node was recorded"
        yield Sign(CLUSTER_BUSY, (line,), _since(pod), pod, values)


def _table(needs: Sequence[Need]) -> str:
    return "; ".join(f"{need.resource}: needs {need.needs}, the maximum is {need.has}" for need in needs)

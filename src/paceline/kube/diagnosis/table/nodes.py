"""Was the container killed, or its node lost? Rows 27 to 32: what happens to a program, not in it."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.kube.diagnosis.failure import Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.kube.diagnosis.pods import condition, ended, node_of, phase, said_exit
from paceline.kube.diagnosis.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.diagnosis.times import read_time
from paceline.kube.reading import mapping, mappings
from paceline.kube.well_known import HYPERPOD_HEALTH

OOM_KILLED = Failure(
    number=27,
    name="oom-killed",
    what="the container used more memory than its limit",
    kind=FailureClass.FIXABLE,
    cause="container {container} of pod {pod} used more memory than its limit of {limit}",
    why="the kernel kills what grows beyond its limit; /dev/shm and the page cache of loaders count too",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    remedy=Remedy.FIX,
    change="memory",
    most=1,
)
SHARED_MEMORY = Failure(
    number=28,
    name="shared-memory",
    what="/dev/shm is too small",
    kind=FailureClass.FIXABLE,
    cause="/dev/shm of pod {pod} is full: {said}",
    why="loaders hand batches over in shared memory; a container has 64 MiB of it, if no volume says more",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.volumes}}'",
    remedy=Remedy.FIX,
    change="shared-memory",
    most=1,
)
EVICTED = Failure(
    number=29,
    name="evicted",
    what="the node threw the pod out",
    kind=FailureClass.INFRA,
    cause="node {node} threw pod {pod} out, because it ran low itself: {said}",
    why="a node in need evicts pods that use more than they asked for; elsewhere there may be room",
    command="kubectl describe node {node} | grep -A8 Conditions",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
EVICTED_STORAGE = replace(
    EVICTED,
    kind=FailureClass.FIXABLE,
    cause="pod {pod} was evicted, because it wrote more to local disk than it asked for: {said}",
    why="without a request for ephemeral-storage, a pod is the first to go when the node's disk fills",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    remedy=Remedy.FIX,
    change="ephemeral-storage",
    most=1,
    excludes_node=False,
)
PREEMPTED = Failure(
    number=30,
    name="preempted",
    what="the pod was preempted or its node drained",
    kind=FailureClass.INFRA,
    cause="pod {pod} was taken from node {node}: {said}",
    why="a job of higher priority, or the owner of the node, needed the place; it is nobody's fault",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.status.conditions}}'",
    remedy=Remedy.RESUBMIT,
    counted=False,
)
NODE_LOST = Failure(
    number=31,
    name="node-lost",
    what="the node does not answer any more",
    kind=FailureClass.INFRA,
    cause="node {node}, on which pod {pod} ran, does not answer any more",
    why="the machine is gone or cut off; its pods are forced out, and the next attempt stays away from it",
    command="kubectl describe node {node}",
    remedy=Remedy.RESUBMIT,
    patience_s=30.0,  # some only blink
    excludes_node=True,
)
GPU_HARDWARE = Failure(
    number=32,
    name="gpu-hardware",
    what="a GPU is broken",
    kind=FailureClass.INFRA,
    cause="a GPU of node {node} is broken: {said}",
    why="the hardware says so itself; the next attempt stays away from the node, and its owner must be told",
    command="kubectl cordon {node}",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
ROWS = (OOM_KILLED, SHARED_MEMORY, EVICTED, EVICTED_STORAGE, PREEMPTED, NODE_LOST, GPU_HARDWARE)

_SAID = (Source.CLUSTER,)
TEXTS = (
    text(
        SHARED_MEMORY,
        r"(?P<said>unable to (?:open|mmap|allocate|write to file) [^\n]*(?:shared memory|/torch_)[^\n]*)",
    ),
    text(
        SHARED_MEMORY,
        r"(?P<said>out of shared memory|insufficient shared memory|Error while creating shared memory)",
    ),
    text(SHARED_MEMORY, r"(?P<said>killed by signal: Bus error|Signal 7 \(SIGBUS\)|\bBus error\b)"),
    text(GPU_HARDWARE, r"(?P<said>uncorrectable (?:NVLink|ECC) error[^\n]*|ERROR_ECC_UNCORRECTABLE)"),
    text(
        GPU_HARDWARE,
        r"(?P<said>NVRM: Xid[^\n]*|GPU has fallen off the bus|\bGPU is lost\b|NVLink error was detected)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<said>Unable to determine the device handle for GPU|unspecified launch failure.*hardware)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<said>Nvidia(?:XID\[?\d+\]?Error|DoubleBitError|NVLinkError|FabricError|DeviceCountMismatch))",
    ),
    text(
        OOM_KILLED, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|^MemoryError\b|std::bad_alloc"
    ),
    text(
        OOM_KILLED,
        r"killed by signal: Killed|killed due to (?:the node running low on memory|memory pressure)",
    ),
    text(OOM_KILLED, r"\bOOMKilled\b|Memory cgroup out of memory|oom-kill:constraint", *_SAID),
    text(
        EVICTED_STORAGE,
        r"(?P<said>low on resource: ephemeral-storage.*"
        r"|exceed(?:s|ed) (?:its |the |total |limit of |local )*ephemeral.*)",
        *_SAID,
    ),
    text(
        EVICTED_STORAGE,
        r"(?P<said>ephemeral local storage usage exceeds.*|Usage of EmptyDir volume.*exceeds.*)",
        *_SAID,
    ),
    text(EVICTED, r"(?P<said>node was low on resource:.*|The node had condition: \[\w+Pressure\].*)", *_SAID),
    text(
        PREEMPTED, r"(?P<said>Preempted (?:by|in order to|to accommodate).*|TaintManagerEviction.*)", *_SAID
    ),
    text(
        PREEMPTED,
        r"(?P<said>imminent node shutdown|Node is shutting down|Spot (?:Instance )?interrupt\w*)",
        *_SAID,
    ),
    text(EVICTED, r"(?P<said>Pod was rejected: .*|Node didn't have enough (?:resource|capacity).*)", *_SAID),
    text(NODE_LOST, r"NodeNotReady|Node is not ready|Kubelet stopped posting node status|NodeLost", *_SAID),
)
_DISRUPTIONS = (
    "PreemptionByScheduler",
    "PreemptionByKubeScheduler",
    "EvictionByEvictionAPI",
    "DeletionByTaintManager",
    "TerminationByKubelet",
    "DeletionByPodGC",
)


def look(snapshot: Snapshot) -> Iterator[Sign]:
    ends = ended(snapshot)
    for one in ends:
        if one.reason == "OOMKilled":
            line = f"pod/{name_of(one.pod)} container {one.container}: OOMKilled, {said_exit(one.exit_code)}"
            values = {"container": one.container, "limit": _limit(one.pod, one.container)}
            yield Sign(OOM_KILLED, (line,), one.at_s, one.pod, values)
    for pod in snapshot.pods:
        yield from _thrown_out(pod)
    for node in snapshot.nodes:
        mine = [pod for pod in snapshot.pods if node_of(pod) == name_of(node) and phase(pod) != "Succeeded"]
        if mine:
            yield from _node(node, mine[0], hurt=bool(ends) or phase(mine[0]) != "Running")


def _thrown_out(pod: Object) -> Iterator[Sign]:
    status = mapping(pod, "status")
    reason, said = str(status.get("reason", "")), str(status.get("message", ""))
    target = condition(pod, "DisruptionTarget")
    at_s = read_time(target.get("lastTransitionTime")) or _finished(pod)
    if reason == "Evicted":
        line = f"pod/{name_of(pod)} was evicted: {said}"
        failure = EVICTED_STORAGE if "ephemeral" in said or "EmptyDir" in said else EVICTED
        yield Sign(failure, (line,), at_s, pod, {"said": said})
    elif reason == "NodeLost":
        yield Sign(NODE_LOST, (f"pod/{name_of(pod)}: NodeLost {said}",), at_s, pod)
    elif target.get("status") == "True" and target.get("reason") in _DISRUPTIONS:
        line = f"pod/{name_of(pod)} DisruptionTarget, {target.get('reason')}: {target.get('message', '')}"
        yield Sign(PREEMPTED, (line,), at_s, pod, {"said": str(target.get("reason"))})
    if condition(pod, "TerminationTarget").get("status") == "True":
        said = str(condition(pod, "TerminationTarget").get("message", "the queue wants its place back"))
        yield Sign(PREEMPTED, (f"pod/{name_of(pod)} TerminationTarget: {said}",), at_s, pod, {"said": said})


def _node(node: Object, pod: Object, *, hurt: bool) -> Iterator[Sign]:
    """`hurt`: something has failed. A node that complains while all of the job runs is left to its owner."""
    name = name_of(node)
    weight = None if hurt else Weight.NOTE
    ready, hardware = condition(node, "Ready"), condition(node, "AcceleratedHardwareReady")
    health = str(labels_of(node).get(HYPERPOD_HEALTH, "Schedulable"))
    lost = any(
        taint.get("key") == "node.kubernetes.io/unreachable" for taint in mappings(node, "spec", "taints")
    )
    if hardware.get("status") == "False":
        said = f"{hardware.get('reason', '')} {hardware.get('message', '')}".strip()
        at_s = read_time(hardware.get("lastTransitionTime"))
        line = f"node/{name} AcceleratedHardwareReady=False: {said}"
        yield Sign(GPU_HARDWARE, (line,), at_s, pod, {"node": name, "said": said}, weight=weight)
    elif health != "Schedulable":
        line = f"node/{name} has {HYPERPOD_HEALTH}={health}"
        yield Sign(GPU_HARDWARE, (line,), None, pod, {"node": name, "said": health}, weight=weight)
    if lost or (ready and ready.get("status") != "True"):
        said = f"Ready={ready.get('status', 'Unknown')}, {ready.get('reason', 'unreachable')}"
        at_s = read_time(ready.get("lastTransitionTime"))
        yield Sign(NODE_LOST, (f"node/{name} {said}",), at_s, pod, {"node": name})


def _finished(pod: Object) -> float | None:
    times = [
        read_time(mapping(one, "state", "terminated").get("finishedAt"))
        for one in mappings(pod, "status", "containerStatuses")
    ]
    return min((at_s for at_s in times if at_s is not None), default=None)


def _limit(pod: Object, container: str) -> str:
    found = (one for one in mappings(pod, "spec", "containers") if one.get("name") == container)
    return str(mapping(next(found, {}), "resources", "limits").get("memory", "its node's memory"))

"""Containers killed and nodes lost: what happens to a program from outside. Rows 27 to 32, 73 and 74."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import Ended, condition, ended, events_of, exit_text, node_of, phase
from paceline.k8s.diagnose.snapshot import (
    Object,
    Snapshot,
    first_time,
    labels_of,
    message_of,
    name_of,
    subject_of,
)
from paceline.k8s.objects import HYPERPOD_HEALTH, mapping, mappings, read_quantity, read_time, write_quantity

OOM_KILLED = Failure(
    number=27,
    name="oom-killed",
    what="the container used more memory than its limit",
    kind=FailureClass.FIXABLE,
    cause="container {container} of pod {pod} used more memory than its limit of {limit}",
    why="the kernel kills processes beyond the limit; /dev/shm and the page cache of loaders count too",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    remedy=Remedy.FIX,
    change="memory",
    most=1,
)
OUT_OF_MEMORY = replace(
    OOM_KILLED,
    cause="a process of the job ran out of memory: {detail}",
    why="the kernel or Ray's memory monitor kills processes beyond the limit; loaders and /dev/shm count too",
)
SHARED_MEMORY = Failure(
    number=28,
    name="shared-memory",
    what="/dev/shm is too small",
    kind=FailureClass.FIXABLE,
    cause="/dev/shm of pod {pod} is full: {detail}",
    why="data loaders pass batches in shared memory; a container has 64 MiB of it, unless a volume provides "
    "more",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.volumes}}'",
    remedy=Remedy.FIX,
    change="shared-memory",
    most=1,
)
EVICTED = Failure(
    number=29,
    name="evicted",
    what="the node evicted the pod",
    kind=FailureClass.INFRA,
    cause="node {node} evicted pod {pod}, because it ran low on resources: {detail}",
    why="a node under pressure evicts pods that use more than they requested; another node may have capacity",
    command="kubectl describe node {node} | grep -A8 Conditions",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
EVICTED_STORAGE = replace(
    EVICTED,
    kind=FailureClass.CONFIG,
    cause="pod {pod} was evicted, because it wrote more to local disk than its limit allows: {detail}",
    why="its limit of ephemeral-storage or the sizeLimit of an emptyDir is too small; write to a volume, or "
    "raise the limit",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    remedy=Remedy.STOP,
    excludes_node=False,
)
PREEMPTED = Failure(
    number=30,
    name="preempted",
    what="the pod was preempted or its node drained",
    kind=FailureClass.INFRA,
    cause="pod {pod} was removed from node {node}: {detail}",
    why="a job with higher priority, or the node's owner, needed the capacity; the job did not fail",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.status.conditions}}'",
    remedy=Remedy.RESUBMIT,
    counted=False,
)
NODE_LOST = Failure(
    number=31,
    name="node-lost",
    what="the node does not respond",
    kind=FailureClass.INFRA,
    cause="node {node}, on which pod {pod} ran, does not respond",
    why="the machine is lost or partitioned; its pods are deleted, and the next attempt avoids it",
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
    cause="a GPU of node {node} is broken: {detail}",
    why="the hardware reports the error; the next attempt avoids the node; notify its owner",
    command="kubectl cordon {node}",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
TERMINATED = Failure(
    number=73,
    name="terminated",
    what="a program was stopped externally (SIGTERM)",
    kind=FailureClass.INFRA,
    cause="the program of pod {pod} was stopped externally: {detail}",
    why="SIGTERM comes from the kubelet when a pod is deleted, drained or preempted; no error of the "
    "program precedes it",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
)
POD_DELETED = Failure(
    number=74,
    name="pod-deleted",
    what="a pod was deleted while the job ran",
    kind=FailureClass.INFRA,
    cause="pod {pod} was deleted while the job ran: {detail}",
    why="a user, a drain or a controller deleted it through the API; the program itself did not fail",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
)
ROWS = (
    OOM_KILLED,
    OUT_OF_MEMORY,
    SHARED_MEMORY,
    EVICTED,
    EVICTED_STORAGE,
    PREEMPTED,
    NODE_LOST,
    GPU_HARDWARE,
    TERMINATED,
    POD_DELETED,
)

_SOURCES = (Source.CLUSTER,)
TEXTS = (
    text(
        SHARED_MEMORY,
        r"(?P<detail>unable to (?:open|mmap|allocate|write to file) [^\n]*(?:shared memory|/torch_)[^\n]*)",
    ),
    text(
        SHARED_MEMORY,
        r"(?P<detail>out of shared memory|insufficient shared memory|Error while creating shared memory)",
    ),
    text(SHARED_MEMORY, r"(?P<detail>killed by signal: Bus error|Signal 7 \(SIGBUS\)|\bBus error\b)"),
    text(
        SHARED_MEMORY,
        r"(?P<detail>/dev/shm[^\n]*(?:No space left|too small|cannot allocate|full)[^\n]*"
        r"|No space left on device[^\n]*/dev/shm[^\n]*"
        r"|posix_fallocate failed[^\n]*)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<detail>uncorrectable (?:NVLink|ECC) error[^\n]*|ERROR_ECC_UNCORRECTABLE"
        r"|(?:CUDA|HIP) (?:driver )?(?:error|failure)\b[^\n]*(?:nvlink|hardware error|\bECC\b)[^\n]*)",
    ),
    # Xid 13, 31, 43 and 45 are faults of the program that used the GPU.
    text(
        GPU_HARDWARE,
        r"(?P<detail>Xid ?(?:\(PCI:[^)]*\))?:? ?(?!(?:13|31|43|45)\b)\d{2,3}\b[^\n]*"
        r"|fallen off the bus[^\n]*|\bGPU is lost\b[^\n]*"
        r"|NVLink (?:error|fatal)[^\n]*|\bXID (?!(?:13|31|43|45)\b)\d{2,3}\b[^\n]*)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<detail>(?:uncorrected|double[- ]bit|volatile uncorr\w*|row[- ]remap\w*[^\n]*fail\w*"
        r"|page retirement|DBE|SXid|GSP RPC"
        r"|RmInitAdapter failed)\b[^\n]*|(?:CUDA error: )?hardware stack error[^\n]*)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<detail>Unable to determine the device handle for (?:GPU|gpu)[^\n]*"
        r"|unspecified launch failure.*hardware"
        r"|GPU requires reset[^\n]*|GPU (?:\S+ )?(?:is|was marked|marked) unhealthy[^\n]*"
        r"|NvidiaGpuUnhealthy[^\n]*)",
    ),
    text(
        GPU_HARDWARE,
        r"(?P<detail>Nvidia(?:XID\[?\d+\]?\w*|DoubleBit\w*|NVLink\w*|Fabric\w*|DeviceCountMismatch|SXID\w*"
        r"|PageRetirement\w*|Power\w*"
        r"Error))",
    ),
    text(
        OUT_OF_MEMORY,
        r"(?P<detail>DefaultCPUAllocator: (?:can't allocate|not enough) memory"
        r"|^(?:numpy\S*\.)?\w*(?:Array)?MemoryError\b|std::bad_alloc"
        r"|\[Errno 12\] Cannot allocate memory[^\n]*|memory limit too low[^\n]*)",
    ),
    text(
        OUT_OF_MEMORY,
        r"(?P<detail>killed by signal: Killed|killed due to (?:the node running low on memory"
        r"|memory pressure)[^\n]*|ray\.exceptions\.OutOfMemory"
        r"|Out of memory: Killed process|oom_reaper: reaped|invoked oom-killer[^\n]*"
        r"|Detected \d+ oom[-_]kill event[^\n]*|cgroup out-of-memory handler[^\n]*)",
    ),
    text(
        OUT_OF_MEMORY,
        r"(?P<detail>\bOOMKilled\b[^\n]*|Memory cgroup out of memory[^\n]*|oom-kill:constraint[^\n]*)",
        *_SOURCES,
    ),
    text(
        EVICTED_STORAGE,
        r"(?P<detail>exceed(?:s|ed) (?:its |the |total |limit of |local )*ephemeral.*)",
        *_SOURCES,
    ),
    text(
        EVICTED_STORAGE,
        r"(?P<detail>ephemeral local storage usage exceeds.*|Usage of EmptyDir volume.*exceeds.*)",
        *_SOURCES,
    ),
    text(
        EVICTED,
        r"(?P<detail>node was low on resource:.*|The node had condition: \[\w+Pressure\].*)",
        *_SOURCES,
    ),
    text(
        PREEMPTED,
        r"(?P<detail>Preempted (?:by|in order to|to accommodate).*|preempting to accommodate[^\n]*"
        r"|TaintManagerEviction.*|\b(?-i:PreemptionBy(?:Kube)?Scheduler|DeletionByTaintManager"
        r"|TerminationByKubelet)\b[^\n]*|deleting due to NoExecute taint[^\n]*)",
        *_SOURCES,
    ),
    text(
        PREEMPTED,
        r"(?P<detail>imminent node shutdown|Node is shutting down|Spot (?:Instance )?interrupt\w*)",
        *_SOURCES,
    ),
    text(
        PREEMPTED,
        r"(?P<detail>\b(?:SpotInterruption\w*|RebalanceRecommendation|ScheduledChange|InstanceTerminating"
        r"|InstanceStopping"
        r"|DisruptionTerminating|DisruptionLaunching|TerminatingOnInterruption|EvictionByEvictionAPI"
        r"|EvictedByVPA)\b[^\n]*"
        r"|Evicted pod[^\n]*|(?:Spot|spot)[^\n]*interruption[^\n]*|Disrupting (?:Node|NodeClaim)[^\n]*"
        r"|marked for (?:eviction|deletion by)"
        r"[^\n]*|(?:Preempted|Evicted) (?:due to|to accommodate)[^\n]*|EvictedDueTo(?!PodsReady)\w+[^\n]*"
        r"|draining node[^\n]*)",
        *_SOURCES,
    ),
    text(
        EVICTED,
        r"(?P<detail>Pod was rejected: .*|Node didn't have enough (?:resource|capacity).*|\b(?-i:OutOf(?:cpu"
        r"|memory|pods|ephemeral|nvidia|aws|vpc|hugepages))\S*[^\n]*|TopologyAffinityError[^\n]*"
        r"|Predicate \w+ failed[^\n]*"
        r"|UnexpectedAdmissionError[^\n]*)",
        *_SOURCES,
        weight=Weight.MASK,  # the message may contain the kubelet's reason
    ),
    text(
        NODE_LOST,
        r"NodeNotReady|Node is not ready|Kubelet stopped posting node status|NodeLost|Node \S+ (?:has gone"
        r"|was deleted|is gone)"
        r"|\bPodGC\b|NodeStatusUnknown|node\S* (?:became|is) unreachable",
        *_SOURCES,
    ),
)
# A line of `kubectl get nodes`.
_LISTED_NODE = r"^(?P<node>\S+)\s+NotReady(?:,\S+)?\s+(?:\S+\s+)?\d+[dhms]\S*\s+v\d"
# After all rules with a cause: a signal only shows that the end was external.
_CODE = r"(?:exit ?code|return ?code|exit status|exited with(?: code)?) *[:=]? *"
LATE_TEXTS = (
    text(NODE_LOST, _LISTED_NODE, *_SOURCES, weight=Weight.MASK),
    text(
        OUT_OF_MEMORY,
        rf"(?P<detail>{_CODE}(?:-9|137)\b[^\n]*|Signal 9 \(SIGKILL\)[^\n]*|^Killed$)",
        Source.LOG,
        weight=Weight.MASK,
        doubt=Doubt.ALWAYS,  # a kubelet whose grace period is over sends the same signal
    ),
    text(
        SHARED_MEMORY,
        rf"(?P<detail>{_CODE}(?:-7|135)\b[^\n]*)",
        Source.LOG,
        weight=Weight.MASK,
    ),
    text(
        TERMINATED,
        rf"(?P<detail>SignalException: [^\n]*|{_CODE}(?:-15|-2|130|143)\b[^\n]*|Signal 15 \(SIGTERM\)[^\n]*"
        r"|Received (?:15|Signals\.SIGTERM|SIGTERM|signal 15)[^\n]*|got signal: 15[^\n]*"
        r"|Terminated by signal 15[^\n]*|killed by signal: Terminated[^\n]*)",
        Source.LOG,
        weight=Weight.CONSEQUENCE,
    ),
)
_TERMINATED = 143
_CLOCKS_S = 2.0  # times of objects are whole seconds, and node clocks differ
_DISRUPTIONS = (
    "PreemptionByScheduler",
    "PreemptionByKubeScheduler",
    "EvictionByEvictionAPI",
    "DeletionByTaintManager",
    "TerminationByKubelet",
    "DeletionByPodGC",
)


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    ends = ended(snapshot)
    for end in ends:
        if end.reason == "OOMKilled":
            line = f"pod/{name_of(end.pod)} container {end.container}: OOMKilled, {exit_text(end.exit_code)}"
            values = {"container": end.container, "limit": _limit(end.pod, end.container)}
            yield Sign(OOM_KILLED, (line,), end.at_s, end.pod, values)
        elif end.exit_code == _TERMINATED and not end.init:
            line = (
                f"pod/{name_of(end.pod)} container {end.container}: {exit_text(end.exit_code)} {end.reason}"
            )
            yield Sign(TERMINATED, (line,), end.at_s, end.pod, {"detail": exit_text(end.exit_code)})
    for pod in snapshot.pods:
        yield from _evicted(pod)
    yield from _deleted(snapshot, ends)
    for node in snapshot.nodes:
        pods = [pod for pod in snapshot.pods if node_of(pod) == name_of(node) and phase(pod) != "Succeeded"]
        if pods:
            yield from _node(node, pods[0], hurt=bool(ends) or phase(pods[0]) != "Running")


def _deleted(snapshot: Snapshot, ends: Sequence[Ended]) -> Iterator[Sign]:
    """A pod that is being deleted, or was, before anything of the job had failed.

    A controller deletes the rest of a gang when one pod has failed, so only the first deletion counts, and
    only while the job itself stays. A pod that ends well, or belongs to a deleted job, is left out.
    """
    if any("deletionTimestamp" in mapping(job, "metadata") for job in snapshot.jobs) or not _is_over(
        snapshot
    ):
        return
    failed = [end for end in ends if "deletionTimestamp" not in mapping(end.pod, "metadata")]
    first_s = min((end.at_s for end in failed if end.at_s is not None), default=float("inf"))
    for pod in snapshot.pods:
        at_s = read_time(mapping(pod, "metadata").get("deletionTimestamp"))
        if at_s is None or phase(pod) == "Succeeded":
            continue
        grace = mapping(pod, "metadata").get("deletionGracePeriodSeconds")
        asked_s = at_s - grace if isinstance(grace, int) else at_s
        if asked_s <= first_s + _CLOCKS_S:
            line = f"pod/{name_of(pod)} has a deletionTimestamp, and its job has none"
            yield Sign(POD_DELETED, (line,), asked_s, pod, {"detail": "it is terminating"})
    existing = {name_of(pod) for pod in snapshot.pods}
    for event in events_of(snapshot, "Killing"):
        subject = subject_of(event)
        at_s = first_time(event)
        name = str(subject.get("name", ""))
        if name in existing or at_s is None or at_s > first_s + _CLOCKS_S or "probe" in message_of(event):
            continue
        if any(_begun_after(job, at_s) for job in (*snapshot.jobs, *snapshot.pods)):
            continue
        line = f"event Killing of pod/{name}: {message_of(event)}; the pod was deleted, its job was not"
        yield Sign(POD_DELETED, (line,), at_s, {}, {"detail": "it was deleted", "pod": name})


def _is_over(snapshot: Snapshot) -> bool:
    """Whether the job has failed: a running job may recover."""
    if not snapshot.jobs:
        return True
    for job in snapshot.jobs:
        status = mapping(job, "status")
        if status.get("jobStatus") == "FAILED" or status.get("jobDeploymentStatus") == "Failed":
            return True
        if condition(job, "Failed").get("status") == "True":
            return True
    return False


def _begun_after(obj: Object, at_s: float) -> bool:
    born = read_time(mapping(obj, "metadata").get("creationTimestamp"))
    return born is not None and born > at_s


def _evicted(pod: Object) -> Iterator[Sign]:
    status = mapping(pod, "status")
    reason = str(status.get("reason", ""))
    message = str(status.get("message", ""))
    target = condition(pod, "DisruptionTarget")
    at_s = read_time(target.get("lastTransitionTime")) or _finished(pod)
    if reason == "Evicted":
        line = f"pod/{name_of(pod)} was evicted: {message}"
        is_its_own = "exceed" in message and ("ephemeral" in message or "EmptyDir" in message)
        failure = EVICTED_STORAGE if is_its_own else EVICTED
        yield Sign(failure, (line,), at_s, pod, {"detail": message})
    elif reason == "NodeLost":
        yield Sign(NODE_LOST, (f"pod/{name_of(pod)}: NodeLost {message}",), at_s, pod)
    elif target.get("status") == "True" and target.get("reason") in _DISRUPTIONS:
        line = f"pod/{name_of(pod)} DisruptionTarget, {target.get('reason')}: {target.get('message', '')}"
        yield Sign(PREEMPTED, (line,), at_s, pod, {"detail": str(target.get("reason"))})
    if condition(pod, "TerminationTarget").get("status") == "True":
        message = str(condition(pod, "TerminationTarget").get("message", "the queue reclaims its quota"))
        yield Sign(
            PREEMPTED, (f"pod/{name_of(pod)} TerminationTarget: {message}",), at_s, pod, {"detail": message}
        )


def _node(node: Object, pod: Object, *, hurt: bool) -> Iterator[Sign]:
    """`hurt`: something has failed. A node that complains while all of the job runs is left to its owner."""
    name = name_of(node)
    weight = None if hurt else Weight.NOTE
    ready = condition(node, "Ready")
    hardware = condition(node, "AcceleratedHardwareReady")
    health = str(labels_of(node).get(HYPERPOD_HEALTH, "Schedulable"))
    lost = any(
        taint.get("key") == "node.kubernetes.io/unreachable" for taint in mappings(node, "spec", "taints")
    )
    if hardware.get("status") == "False":
        message = f"{hardware.get('reason', '')} {hardware.get('message', '')}".strip()
        at_s = read_time(hardware.get("lastTransitionTime"))
        line = f"node/{name} AcceleratedHardwareReady=False: {message}"
        yield Sign(GPU_HARDWARE, (line,), at_s, pod, {"node": name, "detail": message}, weight=weight)
    elif health != "Schedulable":
        line = f"node/{name} has {HYPERPOD_HEALTH}={health}"
        yield Sign(GPU_HARDWARE, (line,), None, pod, {"node": name, "detail": health}, weight=weight)
    if lost or (ready and ready.get("status") != "True"):
        message = f"Ready={ready.get('status', 'Unknown')}, {ready.get('reason', 'unreachable')}"
        at_s = read_time(ready.get("lastTransitionTime"))
        yield Sign(NODE_LOST, (f"node/{name} {message}",), at_s, pod, {"node": name})


def _finished(pod: Object) -> float | None:
    times = [
        read_time(mapping(status, "state", "terminated").get("finishedAt"))
        for status in mappings(pod, "status", "containerStatuses")
    ]
    return min((at_s for at_s in times if at_s is not None), default=None)


def _limit(pod: Object, container: str) -> str:
    containers = (
        candidate for candidate in mappings(pod, "spec", "containers") if candidate.get("name") == container
    )
    limit = mapping(next(containers, {}), "resources", "limits").get("memory", "its node's memory")
    amount = read_quantity(limit)
    return str(limit) if amount is None else write_quantity(amount, "memory")

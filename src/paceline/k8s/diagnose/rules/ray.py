"""Failures that Ray and KubeRay report: status of a RayJob, its driver's log, exceptions. Rows 62 to 65.

The submitter's pod of a failed RayJob succeeds; only `RayJob.status` is FAILED, and its `message` holds
the end of the driver's log. Both are read like a log. Pods that the API server refuses are reported on the
RayCluster alone.
"""

from collections.abc import Iterator

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import condition, phase
from paceline.k8s.diagnose.snapshot import Snapshot, labels_of, name_of
from paceline.k8s.objects import mapping, read_time

RAY_ENVIRONMENT = Failure(
    number=62,
    name="ray-environment",
    what="Ray cannot set up the runtime environment of the job",
    kind=FailureClass.CONFIG,
    cause="Ray cannot set up the job's environment: {detail}",
    why="a package, a working_dir or a version of Ray or Python does not match; a retry fails in the "
    "same way",
    command="kubectl get rayjob {job} -n {namespace} -o jsonpath='{{.spec.runtimeEnvYAML}}'",
    remedy=Remedy.STOP,
)
RAY_INFEASIBLE = Failure(
    number=63,
    name="ray-infeasible",
    what="no node type of the Ray cluster fits a request",
    kind=FailureClass.CONFIG,
    cause="Ray has no node type for a request of the program: {detail}",
    why="workerGroupSpecs offer fewer CPUs, GPUs or custom resources than a task, an actor or a bundle "
    "requests",
    command="kubectl get raycluster -n {namespace} -o "
    "jsonpath='{{.items[*].spec.workerGroupSpecs[*].rayStartParams}}'",
    remedy=Remedy.STOP,
    patience_s=120.0,  # a worker may still be starting
)
RAY_NODE_LOST = Failure(
    number=64,
    name="ray-node-lost",
    what="Ray lost a node or its head",
    kind=FailureClass.INFRA,
    cause="Ray lost a node that the program used: {detail}",
    why="a pod of the Ray cluster was deleted, evicted or lost its network",
    command="kubectl get pods -n {namespace} -l ray.io/cluster -o wide",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
)
RAY_PROCESS_DIED = Failure(
    number=65,
    name="ray-process-died",
    what="a worker process of Ray was killed",
    kind=FailureClass.APP,
    cause="a worker process was killed on its node: {detail}",
    why="the kernel killed it for memory, or it crashed in native code; Ray itself sees only the closed "
    "connection",
    command="kubectl get pods -n {namespace} -l ray.io/cluster "
    "-o jsonpath='{{.items[*].spec.containers[*].resources}}'",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
    doubt=Doubt.ALWAYS,
)
RAY_OBJECT_STORE = Failure(
    number=79,
    name="ray-object-store",
    what="Ray's object store is full",
    kind=FailureClass.CONFIG,
    cause="the object store of a Ray node is full: {detail}",
    why="/dev/shm or object-store-memory is smaller than the objects that are in use at once; a retry needs "
    "the same amount",
    command="kubectl get raycluster -n {namespace} -o "
    "jsonpath='{{.items[*].spec.workerGroupSpecs[*].rayStartParams}}'",
    remedy=Remedy.STOP,
)
ROWS = (RAY_ENVIRONMENT, RAY_INFEASIBLE, RAY_NODE_LOST, RAY_PROCESS_DIED, RAY_OBJECT_STORE)

_LOG = (Source.LOG, Source.CLUSTER)
TEXTS = (
    text(
        RAY_OBJECT_STORE,
        r"(?P<detail>ObjectStoreFullError[^\n]*|(?:local )?object store is full[^\n]*|OutOfDiskError[^\n]*)",
        *_LOG,
    ),
    text(
        RAY_ENVIRONMENT,
        r"(?P<detail>RuntimeEnvSetupError[^\n]*|Failed to (?:set ?up|create"
        r"|install) (?:the )?runtime[ _]env\w*[^\n]*"
        r"|runtime_env setup failed[^\n]*|Version mismatch: The cluster was started with[^\n]*)",
        *_LOG,
    ),
    text(
        RAY_INFEASIBLE,
        r"(?P<detail>No available node types can fulfill[^\n]*|cannot be scheduled on any[^\n]*"
        r"|(?:request|demand|task|actor|bundle|placement group)s?[^\n]*\b(?:is |are )?infeasible\b[^\n]*"
        r"|(?:Task|Actor)UnschedulableError[^\n]*|PlacementGroupSchedulingError[^\n]*)",
        *_LOG,
        soft=True,
    ),
    # Others may hold what is requested, and release it.
    text(
        RAY_INFEASIBLE,
        r"(?P<detail>cannot be scheduled right now[^\n]*|Placement group[^\n]*timed? ?out[^\n]*"
        r"|Trial[^\n]*insufficient (?:cluster )?resources[^\n]*)",
        *_LOG,
        soft=True,
        doubt=Doubt.ALWAYS,
    ),
    text(
        RAY_NODE_LOST,
        r"(?P<detail>its node was lost[^\n]*|NodeDiedError[^\n]*|(?:The "
        r"|the )?[Nn]ode[^\n]{0,80}(?:has been marked dead|was marked "
        r"dead|was terminated|has been terminated|died|has been preempted)[^\n]*"
        r"|missed too many heartbeats[^\n]*|missing too many"
        r" heartbeats[^\n]*|health check failed due to[^\n]*)",
        *_LOG,
    ),
    text(
        RAY_NODE_LOST,
        r"(?P<detail>(?:ObjectLost|ObjectFetchTimedOut|OwnerDied|ObjectReconstructionFailed\w*"
        r"|LocalRayletDied)(?:Error|Exception)?\b[^\n]*"
        r"|GCS (?:has died|client[^\n]*disconnected)[^\n]*"
        r"|\braylet (?:process )?(?:has )?(?:died|crashed)[^\n]*"
        r"|Lost (?:reference|connection) to (?:the )?(?:head|GCS|raylet)[^\n]*"
        r"|The Ray head (?:node )?[^\n]*(?:unreachable|not responding|died)[^\n]*)",
        *_LOG,
    ),
    # A head that was never started, or is started with other settings, is not reached either.
    text(
        RAY_NODE_LOST,
        r"(?P<detail>(?:Failed|Unable) to connect to GCS[^\n]*|GCS is not reachable[^\n]*"
        r"|GcsUnavailable\w*[^\n]*|GCS has been unavailable[^\n]*"
        r"|current node timed out during startup[^\n]*|Connection to Ray head[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    # General words: what Ray's core reports of itself may be refused by it as well.
    text(
        RAY_NODE_LOST,
        r"(?P<detail>(?:ReferenceCountingAssertion|RaySystem)(?:Error|Exception)\b[^\n]*"
        r"|ray\.\S*RpcError\b[^\n]*)",
        *_LOG,
        doubt=Doubt.ALWAYS,
    ),
    text(
        RAY_PROCESS_DIED,
        r"(?P<detail>its process died[^\n]*|Worker unexpectedly exits with a connection error[^\n]*"
        r"|WorkerCrashedError[^\n]*"
        r"|The worker died unexpectedly while executing[^\n]*"
        r"|A worker died or was killed while executing[^\n]*)",
        *_LOG,
    ),
    text(
        RAY_PROCESS_DIED,
        r"(?P<detail>(?:ActorDied|RayActor|ActorUnavailable)Error[^\n]*|The actor (?:is dead|died)[^\n]*)",
        *_LOG,
        weight=Weight.CONSEQUENCE,
    ),
)
_REFUSED = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedCreate", "FailedToCreatePod")
_LONG_S = 600.0


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    """A RayJob whose cluster waits for workers that Ray's autoscaler has no type for."""
    clusters = snapshot.of("RayCluster")
    pods = [pod for pod in snapshot.pods if "ray.io/cluster" in labels_of(pod)]
    refused = any(event.get("reason") in _REFUSED for event in snapshot.events)
    for cluster in clusters:
        provisioned = condition(cluster, "RayClusterProvisioned")
        since = read_time(provisioned.get("lastTransitionTime"))
        missing = mapping(cluster, "status").get("state") != "ready" and provisioned.get("status") == "False"
        if not missing or refused or since is None or snapshot.at_s - since < _LONG_S:
            continue
        if any(phase(pod) != "Running" for pod in pods):
            continue  # the pods themselves show the reason
        why = f"{provisioned.get('reason')}: {provisioned.get('message')}"
        line = f"RayCluster/{name_of(cluster)} is not provisioned: {why}"
        yield Sign(
            RAY_INFEASIBLE,
            (line,),
            since,
            values={"detail": str(provisioned.get("message", ""))},
            weight=Weight.WAITING,
        )

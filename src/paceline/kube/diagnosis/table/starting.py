"""Does the container start: Secrets, command, GPU runtime, volumes, address, init? Rows 21 to 26."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.kube.diagnosis.failure import Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.kube.diagnosis.pods import ended, phase, said_exit
from paceline.kube.diagnosis.progress import starting, waits_alone_since
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of
from paceline.kube.diagnosis.times import read_time
from paceline.kube.reading import mapping, mappings

MISSING_REFERENCE = Failure(
    number=21,
    name="missing-reference",
    what="a Secret or ConfigMap is missing",
    kind=FailureClass.FIXABLE,
    cause="the pod needs {sort} {reference}, which is not in its namespace",
    why="the kubelet starts no container without it, and tries again by itself as soon as it is there",
    command="kubectl create {maker} {made} -n {namespace} --from-literal=KEY=VALUE",
    remedy=Remedy.FIX,
    change="secret",
    most=1,
)
BAD_COMMAND = Failure(
    number=22,
    name="bad-command",
    what="the command cannot be run",
    kind=FailureClass.CONFIG,
    cause="the command cannot be run: {said}",
    why="the image does not hold that program or file, or it may not be executed",
    command="docker run --rm -it --entrypoint sh {image}",
    remedy=Remedy.STOP,
)
GPU_RUNTIME = Failure(
    number=23,
    name="gpu-runtime",
    what="the node's GPU runtime is broken",
    kind=FailureClass.INFRA,
    cause="node {node} cannot give a container its GPU: {said}",
    why="the driver is not loaded, or is older than the CUDA of the image; another node is tried once",
    command="kubectl describe node {node} | grep -iE 'nvidia|Ready'",
    remedy=Remedy.RESUBMIT,
    most=1,
    excludes_node=True,
)
MOUNT_EXCLUSIVE = Failure(
    number=24,
    name="mount",
    what="a volume cannot be mounted",
    kind=FailureClass.CONFIG,
    cause="volume {volume} can be attached to one node only, and the job uses it from several",
    why="its access mode is ReadWriteOnce; pods on several nodes need ReadWriteMany (FSx, EFS, NFS)",
    command="kubectl get pvc -n {namespace} -o custom-columns=NAME:.metadata.name,MODES:.spec.accessModes",
    remedy=Remedy.STOP,
)
MOUNT = replace(
    MOUNT_EXCLUSIVE,
    kind=FailureClass.WAIT,
    cause="the volumes of pod {pod} are not mounted: {said}",
    why="the storage driver is at it, or is stuck; it is watched for 10 minutes",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=600.0,
)
NO_POD_IP = Failure(
    number=25,
    name="no-pod-ip",
    what="the node has no address left for the pod",
    kind=FailureClass.INFRA,
    cause="node {node} has no network address left for the pod",
    why="its subnet or its network interfaces are full; prefix delegation of the VPC CNI gives it more",
    command="kubectl set env daemonset aws-node -n kube-system ENABLE_PREFIX_DELEGATION=true",
    remedy=Remedy.RESUBMIT,
    patience_s=300.0,
)
INIT_STUCK = Failure(
    number=26,
    name="init-stuck",
    what="an init container does not end",
    kind=FailureClass.CONFIG,
    cause="init container {container} of pod {pod} waits, and all others are ready for {minutes} minutes",
    why="it waits until the master or head can be found by name: look at DNS, and at NetworkPolicies",
    command="kubectl logs {pod} -c {container} -n {namespace}",
    remedy=Remedy.STOP,
    weight=Weight.CONSEQUENCE,  # whatever keeps the master from starting is the cause
)
INIT_RUNNING = replace(
    INIT_STUCK,
    name="init-waiting",
    what="an init container waits, or is at work",
    kind=FailureClass.WAIT,
    cause="init container {container} of pod {pod} has not ended yet{for_whom}",
    why="it is at work, or waits for another pod: how long that takes is not known, so it is left alone",
    remedy=Remedy.WAIT,
    patience_s=None,
)
ROWS = (
    MISSING_REFERENCE,
    BAD_COMMAND,
    GPU_RUNTIME,
    MOUNT_EXCLUSIVE,
    MOUNT,
    NO_POD_IP,
    INIT_STUCK,
    INIT_RUNNING,
)

_SAID = (Source.CLUSTER,)
TEXTS = (
    text(
        GPU_RUNTIME,
        r"(?P<said>nvidia-container-cli[^\n]*|FailedCreatePodSandBox.*nvidia|no runtime for .{0,2}nvidia)",
    ),
    text(GPU_RUNTIME, r"(?P<said>CUDA driver version is insufficient|Found no NVIDIA driver)"),
    text(GPU_RUNTIME, r"(?P<said>NVIDIA driver on your system is too old|Failed to initialize NVML)"),
    text(
        GPU_RUNTIME, r"(?P<said>CUDA initialization: (?:CUDA )?(?:unknown error|driver|system not yet)[^\n]*)"
    ),
    text(
        GPU_RUNTIME,
        r"(?P<said>CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected"
        r"|No CUDA GPUs are available|device\(s\) is/are busy)",
    ),
    text(
        GPU_RUNTIME,
        r"(?P<said>no kernel image is available for execution|libcuda\.so\S*: cannot open shared)",
    ),
    text(
        GPU_RUNTIME,
        r"(?P<said>requested number of devices unavailable for \S+|UnexpectedAdmissionError)",
        *_SAID,
    ),
    text(
        MISSING_REFERENCE,
        r'(?P<sort>secret|configmap)s? "(?P<reference>[^"]+)" (?:is )?not found',
        Source.CLUSTER,
    ),
    text(
        MISSING_REFERENCE,
        r"couldn't find key \S+ in (?P<sort>Secret|ConfigMap) (?P<reference>\S+)"
        r"|references non-existent \w+ key",
        *_SAID,
    ),
    text(MOUNT_EXCLUSIVE, r'Multi-Attach error(?: for volume "(?P<volume>[^"]+)")?', *_SAID),
    text(
        MOUNT,
        r"(?P<said>Unable to (?:attach or )?mount volumes.*|(?:MountVolume|AttachVolume)\S* failed.*"
        r"|MapVolume\S* failed.*|timed? ?out (?:expired )?waiting for volumes to attach.*)",
        *_SAID,
    ),
    text(
        NO_POD_IP,
        r"failed to assign an IP address|no IP addresses available|InsufficientFreeAddressesInSubnet",
        *_SAID,
    ),
    text(BAD_COMMAND, r"(?P<said>(?:\"[^\s\"]*\": )?executable file not found in \$PATH)"),
    text(
        BAD_COMMAND,
        r"(?P<said>exec: \"[^\"]+\": (?:stat [^:]+: no such file or directory|permission denied))",
    ),
    text(BAD_COMMAND, r"(?P<said>python3?: can't open file '[^']+')"),
    text(
        BAD_COMMAND, r"(?P<said>^\S*(?:ba)?sh: (?:line )?(?:\d+: )?\S+: (?:command )?not found)", Source.LOG
    ),
)
_OPERATORS = ("init-pytorch", "wait-gcs-ready")
_LONG_S = 120.0
_STUCK_S = 600.0  # with all other pods ready; a name that is served late is found within minutes


def look(snapshot: Snapshot) -> Iterator[Sign]:
    for one in ended(snapshot):
        if one.exit_code in (126, 127, 128) and not one.init:
            said = one.message or said_exit(one.exit_code)
            line = f"pod/{name_of(one.pod)} container {one.container}: {one.reason}, {said}"
            image = _image(one.pod, one.container)
            # What the message says is more exact, so this counts only without it.
            yield Sign(
                BAD_COMMAND, (line,), one.at_s, one.pod, {"said": said, "image": image}, weight=Weight.MASK
            )
    for pod in snapshot.pods:
        if phase(pod) == "Pending":
            yield from _init(pod, snapshot)


def _init(pod: Object, snapshot: Snapshot) -> Iterator[Sign]:
    """An operator's init container waits for another pod; the job's own may be at work."""
    for status in mappings(pod, "status", "initContainerStatuses"):
        name = str(status.get("name", ""))
        begun = read_time(mapping(status, "state", "running").get("startedAt"))
        if begun is None or snapshot.at_s - begun <= _LONG_S:
            continue
        alone_s = waits_alone_since(snapshot, pod)
        since_s = begun if alone_s is None else max(begun, alone_s)
        is_stuck = name in _OPERATORS and alone_s is not None and snapshot.at_s - since_s > _STUCK_S
        minutes = f"{(snapshot.at_s - (since_s if is_stuck else begun)) / 60:.0f}"
        line = f"pod/{name_of(pod)} init container {name} runs since {minutes} minutes"
        others = [f"{one.pod} {one.what}" for one in starting(snapshot) if one.pod != name_of(pod)]
        values = {"container": name, "minutes": minutes, "for_whom": f"; {others[0]}" if others else ""}
        failure = INIT_STUCK if is_stuck else INIT_RUNNING
        yield Sign(failure, (line, *others[:1]), since_s if is_stuck else begun, pod, values)


def _image(pod: Object, container: str) -> str:
    found = (one for one in mappings(pod, "spec", "containers") if one.get("name") == container)
    return str(next(found, {}).get("image", ""))

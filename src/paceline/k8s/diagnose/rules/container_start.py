"""Start of containers: Secrets, command, GPU, volumes, sandbox, init containers. Rows 21-26, 75, 76."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import ended, exit_text, phase, starting, waits_alone_since
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of
from paceline.k8s.objects import mapping, mappings, read_time

MISSING_REFERENCE = Failure(
    number=21,
    name="missing-reference",
    what="a Secret or ConfigMap is missing",
    kind=FailureClass.FIXABLE,
    cause="the pod needs {sort} {reference}, which is not in its namespace",
    why="the kubelet starts no container without it, and retries automatically once it exists",
    command="kubectl get secrets,configmaps -n {namespace}",
    remedy=Remedy.FIX,
    change="secret",
    most=1,
    patience_s=30.0,  # it may be created a moment after the job
)
BAD_COMMAND = Failure(
    number=22,
    name="bad-command",
    what="the command cannot be run",
    kind=FailureClass.CONFIG,
    cause="the command cannot be run: {detail}",
    why="the image lacks that program or file, or it is not executable",
    command="docker run --rm -it --entrypoint sh {image}",
    remedy=Remedy.STOP,
)
GPU_RUNTIME = Failure(
    number=23,
    name="gpu-runtime",
    what="the node's GPU runtime is broken",
    kind=FailureClass.INFRA,
    cause="node {node} cannot give a container its GPU: {detail}",
    why="the driver is not loaded, or is older than the CUDA of the image; another node is tried once",
    command="kubectl describe node {node} | grep -iE 'nvidia|Ready'",
    remedy=Remedy.RESUBMIT,
    most=1,
    excludes_node=True,
)
GPU_MISSING = Failure(
    number=75,
    name="gpu-missing",
    what="the container has no GPU that its image can use",
    kind=FailureClass.CONFIG,
    cause="the container has no GPU that its image can use: {detail}",
    why="the pod requests no GPU, starts more processes than it has GPUs, or the image needs a newer "
    "driver or was not "
    "built for this GPU",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].resources}}'",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
CUDA_ARCHITECTURE = replace(
    GPU_MISSING,
    name="cuda-architecture",
    what="the image has no GPU code for the node's GPU",
    cause="the image has no code for the architecture of this GPU: {detail}",
    why="PyTorch or an extension was built for other compute capabilities (sm_XX); use a build that lists "
    "this one, or nodes with a GPU that it lists",
    command="kubectl exec {pod} -n {namespace} -- "
    "python -c 'import torch; print(torch.cuda.get_arch_list())'",
)
TPU_MISSING = replace(
    GPU_MISSING,
    number=80,
    name="tpu-missing",
    what="the container has no TPU that its image can use",
    cause="the container has no TPU that its image can use: {detail}",
    why="the pod requests no google.com/tpu, or the image lacks libtpu or a JAX or PyTorch/XLA built for it",
)
TPU_BUSY = replace(
    GPU_RUNTIME,
    number=81,
    name="tpu-busy",
    what="the TPU is in use by another process",
    cause="the TPU of node {node} is in use by another process: {detail}",
    why="a process of an earlier pod has not ended, or several processes of this pod open the same chips",
    command="kubectl get pods -A -o wide --field-selector spec.nodeName={node}",
    doubt=Doubt.ALWAYS,
)
SSH_LOGIN = Failure(
    number=78,
    name="ssh-login",
    what="the launcher cannot start processes on the other nodes",
    kind=FailureClass.CONFIG,
    cause="mpirun or deepspeed cannot start its processes on the other nodes: {detail}",
    why="keys, host keys, the modes of ~/.ssh or the launcher itself are missing in the image; a retry "
    "fails in the same way",
    command="kubectl logs {pod} -n {namespace} --tail=50",
    remedy=Remedy.STOP,
    weight=Weight.MASK,
)
SANDBOX = Failure(
    number=76,
    name="pod-sandbox",
    what="the node cannot set up the pod's network or container",
    kind=FailureClass.INFRA,
    cause="node {node} cannot set up the pod: {detail}",
    why="the container runtime or the network plugin of the node is starting, overloaded or broken; the "
    "kubelet retries",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
    weight=Weight.WAITING,
    patience_s=600.0,
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
    cause="the volumes of pod {pod} are not mounted: {detail}",
    why="the storage driver is still working, or is stuck; the kubelet retries, and no action is taken",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,  # the kubelet retries, and nothing shows that another attempt could do more
)
MOUNT_STUCK = replace(
    MOUNT,
    kind=FailureClass.INFRA,
    cause="the volumes of pod {pod} are not attached or mounted in time: {detail}",
    why="the storage driver or the node's client hangs, or an earlier node has not released the volume; "
    "after 10 minutes the job is restarted",
    remedy=Remedy.RESUBMIT,
    patience_s=600.0,
    most=2,
    excludes_node=True,
)
MOUNT_WRONG = replace(
    MOUNT_EXCLUSIVE,
    cause="the volumes of pod {pod} cannot be mounted as specified: {detail}",
    why="the path, the file system or the access point that the volume names does not exist for this node",
    command="kubectl describe pod {pod} -n {namespace}",
    patience_s=120.0,
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
    what="an init container does not finish",
    kind=FailureClass.CONFIG,
    cause="init container {container} of pod {pod} waits, and all others are ready for {minutes} minutes",
    why="it waits until the master or head resolves by name: check DNS and NetworkPolicies",
    command="kubectl logs {pod} -c {container} -n {namespace}",
    remedy=Remedy.STOP,
    weight=Weight.CONSEQUENCE,  # the cause is what keeps the master from starting
)
INIT_RUNNING = replace(
    INIT_STUCK,
    name="init-waiting",
    what="an init container is waiting or running",
    kind=FailureClass.WAIT,
    cause="init container {container} of pod {pod} has not finished yet{for_whom}",
    why="it is running, or waits for another pod; no action is taken",
    remedy=Remedy.WAIT,
    patience_s=None,
)
ROWS = (
    MISSING_REFERENCE,
    BAD_COMMAND,
    GPU_RUNTIME,
    MOUNT_EXCLUSIVE,
    MOUNT,
    MOUNT_STUCK,
    MOUNT_WRONG,
    NO_POD_IP,
    INIT_STUCK,
    INIT_RUNNING,
    GPU_MISSING,
    CUDA_ARCHITECTURE,
    TPU_MISSING,
    TPU_BUSY,
    SSH_LOGIN,
    SANDBOX,
)

_SOURCES = (Source.CLUSTER,)
TEXTS = (
    text(
        CUDA_ARCHITECTURE,
        r"(?P<detail>no kernel image is available[^\n]*|cudaErrorNoKernelImageForDevice[^\n]*"
        r"|(?:CUDA_ERROR|hipError)_?No_?Binary_?For_?GPU[^\n]*|unsupported gpu architecture[^\n]*"
        r"|Value 'sm_\w+' is not defined for option[^\n]*"
        r"|FlashAttention only supports [^\n]*GPUs or newer[^\n]*"
        r"|only supported on (?:GPUs|devices) with compute capability[^\n]*"
        r"|requires (?:a )?(?:GPU with )?(?:CUDA )?compute capability[^\n]*)",
    ),
    text(
        CUDA_ARCHITECTURE,
        r"(?P<detail>(?:CUDA capability sm_\w+ )?is not compatible with the current PyTorch "
        r"installation[^\n]*|PyTorch no longer supports this GPU[^\n]*)",
        soft=True,
    ),
    # An image that needs a newer driver than the node has, and a pod without a GPU, do not recover.
    text(
        GPU_MISSING,
        r"(?P<detail>unsatisfied condition: [^\n]*|CUDA driver version is insufficient[^\n]*"
        r"|Found no NVIDIA driver[^\n]*"
        r"|NVIDIA driver on your system is too old[^\n]*"
        r"|forward compatibility was attempted on non supported HW[^\n]*)",
    ),
    text(
        GPU_MISSING,
        r"(?P<detail>CUDA_ERROR_NO_DEVICE[^\n]*|no CUDA-capable device is detected[^\n]*"
        r"|No CUDA GPUs are available[^\n]*|invalid device "
        r"ordinal[^\n]*|libcuda\.so\S*: cannot open shared[^\n]*"
        r"|Torch not compiled with CUDA enabled[^\n]*|ProcessGroupNCCL is only supported with GPUs[^\n]*"
        r"|Could not load dynamic library 'libcud\w+[^\n]*|CUDA_VISIBLE_DEVICES[^\n]*"
        r"(?:invalid|no device)[^\n]*|CUDA is not available[^\n]*)",
    ),
    text(
        GPU_MISSING,
        r"(?P<detail>no runtime for .{0,2}nvidia[^\n]*|unknown runtime specified[^\n]*"
        r"|could not select device driver[^\n]*"
        r"|RuntimeHandler \S* ?not supported[^\n]*)",
        *_SOURCES,
    ),
    text(
        GPU_RUNTIME,
        r"(?P<detail>nvidia-container-cli[^\n]*|FailedCreatePodSandBox.*nvidia"
        r"|nvidia-container-runtime[^\n]*error[^\n]*)",
    ),
    text(
        GPU_RUNTIME,
        r"(?P<detail>Failed to initialize NVML[^\n]*|couldn't communicate with the NVIDIA driver[^\n]*"
        r"|Driver/library version mismatch[^\n]*"
        r"|NVML: (?:Driver Not Loaded|Unknown Error)[^\n]*)",
    ),
    text(
        GPU_RUNTIME,
        r"(?P<detail>CUDA initialization: (?:driver|system not yet)[^\n]*|system not yet initialized[^\n]*"
        r"|CUDA error: system (?:has unsupported|driver mismatch|not yet)[^\n]*)",
    ),
    # A driver that is broken, or a program that forks after it has used CUDA or hides its devices.
    text(
        GPU_RUNTIME,
        r"(?P<detail>CUDA initialization: (?:CUDA )?unknown error[^\n]*|CUDA unknown error[^\n]*"
        r"|CUDA error: (?:unknown error|initialization error)[^\n]*)",
        doubt=Doubt.ALWAYS,
    ),
    text(GPU_RUNTIME, r"(?P<detail>device\(s\) is/are busy[^\n]*|all CUDA-capable devices are busy[^\n]*)"),
    text(
        GPU_RUNTIME,
        r"(?P<detail>(?:requested number of devices|no healthy devices) (?:unavailable|present)[^\n]*"
        r"|device plugin[^\n]*(?:fail|error|not registered)[^\n]*"
        r"|UnexpectedAdmissionError[^\n]*)",
        *_SOURCES,
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
        *_SOURCES,
    ),
    text(
        MISSING_REFERENCE,
        r'object "[^"/]*"/"(?P<reference>[^"]+)" not registered',
        *_SOURCES,
        weight=Weight.WAITING,
    ),
    # An attachment without a pod that uses it is left from a node that was lost: it is released in minutes.
    text(
        MOUNT_STUCK, r"(?P<detail>Multi-Attach error[^\n]*exclusively attached to one node[^\n]*)", *_SOURCES
    ),
    text(MOUNT_EXCLUSIVE, r'Multi-Attach error(?: for volume "(?P<volume>[^"]+)")?', *_SOURCES),
    # A path, an access point or a server that does not exist, and a driver that is not installed.
    text(
        MOUNT_WRONG,
        r"(?P<detail>(?:mount|MountVolume)[^\n]*(?:reason given by server: No such file"
        r"|hostPath type check failed|wrong fs type|Is the MGS "
        r"specification correct|Failed to resolve|Name or service not known|access point[^\n]*not"
        r"|file system[^\n]*does not exist"
        r"|subPath|not a directory|bad option|unknown filesystem|special device[^\n]*does not exist"
        r"|Could not mount \"\"|no such file or directory|mount point[^\n]*does not exist"
        r"|not found in the list of registered CSI drivers|volumeHandle|invalid volume ?(?:id|handle)"
        r"|code = (?:NotFound|InvalidArgument)|volume attribute[^\n]*(?:missing|required|invalid)"
        r"|attribute is not valid|illegal NFS|unsupported (?:volume|fs|filesystem))[\s\S]{0,200}"
        r"|AttachVolume\S* failed[^\n]*(?:InvalidVolume\.(?:NotFound|ZoneMismatch)|NotFound|not found"
        r"|does not exist|(?:different|same|another) (?:availability )?zone|code = InvalidArgument)[^\n]*"
        r"|can't find in /etc/fstab[^\n]*"
        r"|failed to (?:prepare|create) subPath[^\n]*|error mounting \S+ to rootfs[^\n]*)",
        *_SOURCES,
    ),
    text(
        MOUNT_STUCK,
        r"(?P<detail>(?:Unable to (?:attach or )?mount volumes|(?:Mount|Attach|Map)Volume\S* failed)[^\n]*"
        r"(?:timed out|timeout|DeadlineExceeded|deadline exceeded|code = (?:Unavailable|Aborted)"
        r"|being deleted|already exists|transport|connection refused|in use|VolumeInUse"
        r"|attaching|detaching)[^\n]*"
        r"|timed? ?out (?:expired )?waiting for (?:volumes to attach|external-attacher)[^\n]*)",
        *_SOURCES,
    ),
    text(
        MOUNT,
        r"(?P<detail>Could not mount[^\n]*|mount\.(?:lustre|nfs4?|efs|cifs|s3)[^\n]*(?:fail|error"
        r"|timed out)[^\n]*"
        r"|Unable to (?:attach or )?mount volumes.*|(?:MountVolume|AttachVolume)\S* failed.*"
        r"|MapVolume\S* failed.*|timed? ?out (?:expired )?waiting for volumes to attach.*)",
        *_SOURCES,
    ),
    text(
        NO_POD_IP,
        r"failed to assign an IP address|no IP addresses available|InsufficientFreeAddressesInSubnet",
        *_SOURCES,
    ),
    text(
        SANDBOX,
        r"(?P<detail>Failed to create pod sandbox[^\n]*|FailedCreatePodSandBox[^\n]*|failed to (?:reserve"
        r"|setup|set up) (?:sandbox|container|network)"
        r"[^\n]*|cni plugin not initialized[^\n]*|networkPlugin cni failed[^\n]*"
        r"|NetworkPluginNotReady[^\n]*|network is not ready[^\n]*"
        r"|CreateContainerError[^\n]*(?:context deadline|reserved|transport)[^\n]*|FailedKillPod[^\n]*"
        r"|failed to sync (?:secret|configmap) cache"
        r"[^\n]*|SandboxChanged[^\n]*)",
        *_SOURCES,
    ),
    text(
        BAD_COMMAND,
        r"(?P<detail>no command specified[^\n]*|chdir to cwd[^\n]*|FailedPostStartHook[^\n]*"
        r"|OCI runtime (?:create|exec) failed(?![^\n]*(?:/proc/|/sys/|cgroup|/run/|parent process))"
        r"[^\n]*no such file[^\n]*)",
        *_SOURCES,
    ),
    # Processes, namespaces and control groups are the runtime's own.
    text(
        SANDBOX,
        r"(?P<detail>(?:OCI runtime \w+ failed|failed to create (?:shim|containerd) task|runc create failed)"
        r"(?![^\n]*exec: )[^\n]*(?:parent process|/proc/|/sys/fs/|cgroup|/run/|context deadline|ttrpc"
        r"|transport|resource temporarily unavailable|signal: killed|timed? ?out)[^\n]*)",
        *_SOURCES,
    ),
    text(BAD_COMMAND, r"(?P<detail>(?:\"[^\s\"]*\": )?executable file not found in \$PATH)"),
    text(
        BAD_COMMAND,
        r"(?P<detail>exec: \"[^\"]+\": (?:stat [^:]+: no such file or directory|permission denied))",
    ),
    text(
        BAD_COMMAND,
        r"(?P<detail>python[\d.]*: can't open file '[^']+'(?!: \[Errno (?:1|5|13|116)\])"
        r"|python[\d.]*: No module named [^\n]*"
        r"|Error while finding module specification for [^\n]*)",
    ),
    text(
        BAD_COMMAND,
        r"(?P<detail>^\S*(?:ba)?sh: (?:line )?(?:\d+: )?(?:\S+: (?:command )?not found|cd: can't cd to [^\n]*"
        r"|(?:\S+: )?cannot create \S+: Directory nonexistent))",
        Source.LOG,
    ),
)
LATE_TEXTS = (
    text(
        SSH_LOGIN,
        r"(?P<detail>Permission denied \((?:publickey|password|keyboard)[^\n]*"
        r"|Host key verification failed[^\n]*|Authentication refused: bad ownership[^\n]*"
        r"|host=\S+ was not reachable via ssh[^\n]*|launcher '\w+' not installed[^\n]*"
        r"|ssh: not found[^\n]*|The value of the MCA parameter \"plm_rsh_agent\"[^\n]*)",
        Source.LOG,
    ),
    # The daemons did not start; the lines above may give the reason.
    text(
        SSH_LOGIN,
        r"(?P<detail>[OP]RTE was unable to reliably start one or more daemons[^\n]*)",
        Source.LOG,
        weight=Weight.CONSEQUENCE,
        doubt=Doubt.ALWAYS,
    ),
    text(
        TPU_MISSING,
        r"(?P<detail>Failed to open libtpu\.so[^\n]*|libtpu\.so: cannot open shared object[^\n]*"
        r"|Unknown backend:? '?tpu[^\n]*|No TPU devices? (?:found|were found)[^\n]*"
        r"|No (?:jax )?TPU backend[^\n]*)",
        Source.LOG,
        weight=Weight.MASK,
        soft=True,
    ),
    text(
        TPU_BUSY,
        r"(?P<detail>The TPU is already in use by[^\n]*|libtpu\S* (?:is )?already in use[^\n]*"
        r"|TPU[^\n]*(?:UNAVAILABLE|\bbusy\b)[^\n]*|/dev/(?:vfio|accel)\d*[^\n]*busy[^\n]*)",
        Source.LOG,
    ),
)
_OPERATORS = ("init-pytorch", "wait-gcs-ready")
_LONG_S = 120.0
_STUCK_S = 600.0  # with all other pods ready; a late DNS name resolves within minutes


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    for end in ended(snapshot):
        if end.exit_code in (126, 127, 128) and not end.init:
            message = end.message or exit_text(end.exit_code)
            line = f"pod/{name_of(end.pod)} container {end.container}: {end.reason}, {message}"
            image = _image(end.pod, end.container)
            # The message is more exact, so this counts only without it.
            yield Sign(
                BAD_COMMAND,
                (line,),
                end.at_s,
                end.pod,
                {"detail": message, "image": image},
                weight=Weight.MASK,
            )
    for pod in snapshot.pods:
        if phase(pod) == "Pending":
            yield from _init(pod, snapshot)


def _init(pod: Object, snapshot: Snapshot) -> Iterator[Sign]:
    """An operator's init container waits for another pod; the job's own may be at work."""
    for status in mappings(pod, "status", "initContainerStatuses"):
        name = str(status.get("name", ""))
        started_s = read_time(mapping(status, "state", "running").get("startedAt"))
        if started_s is None or snapshot.at_s - started_s <= _LONG_S:
            continue
        alone_s = waits_alone_since(snapshot, pod)
        since_s = started_s if alone_s is None else max(started_s, alone_s)
        is_stuck = name in _OPERATORS and alone_s is not None and snapshot.at_s - since_s > _STUCK_S
        minutes = f"{(snapshot.at_s - (since_s if is_stuck else started_s)) / 60:.0f}"
        line = f"pod/{name_of(pod)} init container {name} has been running for {minutes} minutes"
        starting_pods = [
            f"{pod_starting.pod} {pod_starting.what}"
            for pod_starting in starting(snapshot)
            if pod_starting.pod != name_of(pod)
        ]
        values = {
            "container": name,
            "minutes": minutes,
            "for_whom": f"; {starting_pods[0]}" if starting_pods else "",
        }
        failure = INIT_STUCK if is_stuck else INIT_RUNNING
        yield Sign(failure, (line, *starting_pods[:1]), since_s if is_stuck else started_s, pod, values)


def _image(pod: Object, container: str) -> str:
    containers = (
        candidate for candidate in mappings(pod, "spec", "containers") if candidate.get("name") == container
    )
    return str(next(containers, {}).get("image", ""))

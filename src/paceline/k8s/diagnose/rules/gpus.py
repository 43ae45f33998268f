"""GPU memory and the network between ranks, as CUDA, NCCL, Gloo and EFA report them. Rows 33-38, 51."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import pod_named
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of
from paceline.k8s.objects import EFA, mapping, mappings

CUDA_OOM = Failure(
    number=33,
    name="cuda-oom",
    what="the GPU's memory is full",
    kind=FailureClass.CONFIG,
    cause="rank {rank} ran out of GPU memory",
    why="model, optimizer and activations of one batch do not fit; a retry fails in the same way",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -m1 -A9 -i 'out of memory'",
    remedy=Remedy.STOP,
)
NCCL_TIMEOUT = Failure(
    number=34,
    name="nccl-timeout",
    what="a collective operation timed out",
    kind=FailureClass.INFRA,
    cause="the ranks waited for each other in a collective operation until it timed out, first rank {rank}",
    why="no rank died before; a link or a GPU was slow, or the ranks execute different operations",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -m1 -B5 Watchdog",
    remedy=Remedy.RESUBMIT,
    weight=Weight.CONSEQUENCE,
    most=2,
)
NCCL_ERROR = replace(
    NCCL_TIMEOUT,
    number=35,
    name="nccl-error",
    what="NCCL lost a connection",
    cause="NCCL lost a connection or a system call failed, first seen by rank {rank}: {detail}",
    why="the network between nodes broke, or a peer disappeared without closing its connections",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -m5 'NCCL WARN'",
    most=None,
)
RENDEZVOUS = Failure(
    number=36,
    name="rendezvous",
    what="the rendezvous did not complete",
    kind=FailureClass.INFRA,
    cause="the rendezvous did not complete: {detail}",
    why="a rank is missing or unreachable by name: DNS, a NetworkPolicy or a service mesh",
    command="kubectl get pods -n {namespace} -o wide",
    remedy=Remedy.RESUBMIT,
    weight=Weight.CONSEQUENCE,
)
RENDEZVOUS_MESH = replace(
    RENDEZVOUS,
    kind=FailureClass.FIXABLE,
    cause="the rendezvous did not complete, because a service mesh intercepts traffic: {detail}",
    why="a sidecar intercepts the pod's traffic; disable it with the annotation sidecar.istio.io/inject: "
    "'false'",
    command="kubectl get namespace {namespace} --show-labels",
    remedy=Remedy.FIX,
    weight=Weight.CAUSE,
    change="mesh",
    most=1,
)
RENDEZVOUS_WRONG = replace(
    RENDEZVOUS,
    name="rendezvous-address",
    what="the address of rank 0 is invalid",
    kind=FailureClass.CONFIG,
    cause="the address of rank 0 is not a host address: {detail}",
    why="MASTER_ADDR or --rdzv-endpoint is empty, a wildcard or a netmask; a retry fails in the same way",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].env}}'",
    remedy=Remedy.STOP,
    weight=Weight.MASK,
    doubt=Doubt.AFTER_PROGRESS,
)
PEER_LOST = replace(
    NCCL_ERROR,
    number=77,
    name="peer-lost",
    what="a rank lost its connection to the others",
    cause="rank {rank} lost its connection to the other ranks: {detail}",
    why="another process or its node ended, or the network between them broke; its own log holds the cause",
    command="kubectl get pods -n {namespace} -o wide",
)
EFA_UNUSED = Failure(
    number=37,
    name="efa-unused",
    what="EFA was requested, and is not used",
    kind=FailureClass.CONFIG,
    cause="EFA was requested, but NCCL does not use it: {detail}",
    why="the image lacks the aws-ofi-nccl plugin, or the pod lacks the device; training would be slow "
    "over TCP",
    command="kubectl exec {pod} -n {namespace} -- fi_info -p efa",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
EFA_MEMORY = Failure(
    number=38,
    name="efa-memory",
    what="EFA or InfiniBand cannot pin memory",
    kind=FailureClass.CONFIG,
    cause="the network device cannot register memory: {detail}",
    why="locked memory is limited (memlock) or huge pages are used up; FI_EFA_USE_HUGE_PAGE=0 disables them",
    command="kubectl exec {pod} -n {namespace} -- sh -c 'ulimit -l'",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
NETWORK_SETUP = Failure(
    number=51,
    name="network-setup",
    what="NCCL, Gloo or libfabric is misconfigured",
    kind=FailureClass.CONFIG,
    cause="the collective library cannot use the network as configured: {detail}",
    why="an interface name, a device, a plugin or a library version does not match the node; a retry fails "
    "in the same way",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].env}}'",
    remedy=Remedy.STOP,
    weight=Weight.MASK,  # a fallback may have been used, and then the program failed of something else
    doubt=Doubt.AFTER_PROGRESS,
)
ROWS = (
    CUDA_OOM,
    NCCL_TIMEOUT,
    NCCL_ERROR,
    RENDEZVOUS,
    RENDEZVOUS_MESH,
    RENDEZVOUS_WRONG,
    PEER_LOST,
    EFA_UNUSED,
    EFA_MEMORY,
    NETWORK_SETUP,
)

_LOG = (Source.LOG, Source.CLUSTER)  # the end of a log is also what a container leaves as its message
_OF_PEER = (
    r"(?:peer|remote|receiver|reset|refused|unreachable|timed? ?out|retr(?:y|ies)|closed|unrespons|12\b)"
)
TEXTS = (
    text(CUDA_OOM, r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY", *_LOG),
    text(
        CUDA_OOM,
        r"(?:cublas|cudnn)\w*_ALLOC_FAILED|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        *_LOG,
    ),
    text(
        CUDA_OOM,
        r"Cuda failure (?:2 )?'?out of memory|RESOURCE_EXHAUSTED: Out of memory (?:while|allocating)",
        *_LOG,
    ),
    text(CUDA_OOM, r"Failed to (?:CUDA|cudaMalloc|allocate)[^\n]*out of memory", *_LOG),
    text(
        EFA_MEMORY,
        r"(?P<detail>NET/OFI Unable to register memory[^\n]*|fi_mr_reg[^\n]*Cannot allocate memory[^\n]*)",
        *_LOG,
    ),
    text(
        EFA_MEMORY,
        r"(?P<detail>ibv_(?:reg_mr|create_\w+|modify_qp)\w*[^\n]*(?:Cannot allocate memory|errno 12"
        r"|ENOMEM)[^\n]*)",
        *_LOG,
    ),
    text(EFA_MEMORY, r"(?P<detail>(?:RLIMIT_MEMLOCK|memlock|locked[- ]memory limit)[^\n]*)", *_LOG),
    text(EFA_MEMORY, r"(?P<detail>os\.fork[^\n]*Cannot allocate memory)", *_LOG),
    text(
        EFA_MEMORY,
        r"(?P<detail>(?:NET/OFI|libfabric|NET/IB|\befa)[^\n]*"
        r"(?:Cannot allocate memory|ENOMEM|RC: -12)[^\n]*)",
        *_LOG,
    ),
    text(
        EFA_UNUSED,
        r"(?P<detail>NET/OFI (?:No eligible providers were found|(?:Couldn't"
        r"|Could not) find any optimal provider))",
        *_LOG,
        weight=Weight.MASK,
    ),
    text(
        EFA_UNUSED,
        r"(?P<detail>fi_getinfo:? (?:provider efa output empty list|[^\n]*No data available[^\n]*"
        r"|[^\n]*-61\b[^\n]*))",
        *_LOG,
        weight=Weight.MASK,
    ),
    text(
        EFA_UNUSED,
        r"(?P<detail>(?:NET/OFI|aws-ofi-nccl|\befa)[^\n]*(?:no (?:efa )?devices?|not (?:find|found)"
        r"|No such device)[^\n]*)",
        *_LOG,
        weight=Weight.MASK,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>(?:Bootstrap|NET/Socket|NET/IB) ?: ?[Nn]o (?:\w+ ){0,3}(?:interface"
        r"|device)s?(?: \w+)? ?found[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>(?:no (?:usable|valid|matching|such) (?:network |socket )?interface"
        r"|Unable to find (?:address|interface) for|Unable to resolve interface|interface \S+ (?:not found"
        r"|does not exist)"
        r"|NCCL_SOCKET_IFNAME[^\n]*(?:not found|no match|no such)|connecting to address +with family)[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>makeDeviceFor(?:Interface|Hostname)\(\)[^\n]*|ifa != nullptr[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>ss1\.ss_family == ss2\.ss_family[^\n]*|Address family not supported by protocol[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>NET/OFI[^\n]*(?:Couldn't open|Failed to (?:initialize|open|create)"
        r"|Disabling shared memory failed"
        r"|Creating new endpoint|Protocol not available|Function not implemented|not supported"
        r"|Invalid argument)[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>lib(?:fabric|efa|ibverbs|nccl(?:-net|-ofi)?|rdmacm)\S*: (?:cannot open shared object"
        r"|undefined symbol"
        r"|version `)[^\n]*)",
        *_LOG,
    ),
    # Queue pairs that cannot be connected: the GID, the HCA or the routing of the fabric does not match.
    text(
        NETWORK_SETUP,
        r"(?P<detail>ibv_\w+ failed[^\n]*(?:Network is unreachable|No route to host|Invalid argument"
        r"|No data available|Bad address|Operation not supported|No such device|Protocol not supported"
        r"|Operation not permitted|Permission denied|errno (?:1|13|14|19|22|61|95|101|113)\b)[^\n]*)",
        *_LOG,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>Duplicate GPU detected[^\n]*|rank \d+ of \d+ ranks has already checked in[^\n]*)",
        *_LOG,
        weight=Weight.CAUSE,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>(?:NCCL[^\n]*version mismatch|mismatched? NCCL version"
        r"|NCCL version[^\n]* does not match)[^\n]*)",
        *_LOG,
        weight=Weight.CAUSE,
    ),
    text(
        NETWORK_SETUP,
        r"(?P<detail>/dev/infiniband[^\n]*(?:No such file|not found|Permission denied)[^\n]*"
        r"|(?:ibv_open_device|ibv_get_device_list|rdma_\w+)[^\n]*fail[^\n]*)",
        *_LOG,
    ),
    # Ranks at different operations, and a network that was never set up, end alike before the first steps.
    text(
        NCCL_TIMEOUT,
        r"(?:\[?Rank (?P<rank>\d+)\]? ?)?Watchdog caught collective operation timeout"
        r"|milliseconds before timing out|Some NCCL operations have failed or timed out"
        r"|taking the entire process down|terminated or joined.*heartbeat monitor thread"
        r"|watchdog got stuck for|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|monitoredBarrier|failed to pass monitored ?Barrier|collective[^\n]*timed out",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    text(
        RENDEZVOUS_WRONG,
        r"(?P<detail>client socket has (?:timed out|failed to connect)[^\n]*[(\[ :]"
        r"(?:0\.0\.0\.0|255\.\d+\.\d+\.\d+|None|null|,)[,\]:) ][^\n]*"
        r"|network addresses of \((?:0\.0\.0\.0|255\.\d+\.\d+\.\d+|None|null|) ?,[^\n]*)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<detail>retrieving ncclUniqueId from [^\n]*|store->get\([^\n]*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<detail>failed to listen on any local network address|wait timeout after \d+ms.*)",
        *_LOG,
    ),
    text(
        RENDEZVOUS,
        r"(?P<detail>(?:sendBytes|recvBytes)\S* failed[^\n]*|Did the remote server shutdown.*)",
        *_LOG,
    ),
    text(
        RENDEZVOUS,
        r"(?P<detail>(?:failed to bind to \S+ \(errno: 98|EADDRINUSE)[^\n]*|\[Errno 98\][^\n]*)",
        *_LOG,
        soft=True,
        doubt=Doubt.ALWAYS,  # a process that has not ended yet, or two programs with one port
    ),
    text(RENDEZVOUS, r"(?P<detail>client socket has (?:timed out|failed to connect)[^\n]*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<detail>Timed out after .* waiting for clients\. (?P<met>\d+)/(?P<all>\d+) clients joined)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<detail>Rendezvous(?:Connection|Timeout|Closed|State)Error[^\n]*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<detail>recvValue failed[^\n]*|failed to recv, got 0 bytes|DistStoreError[^\n]*"
        r"|Timed out initializing process group[^\n]*|cluster registration failed[^\n]*"
        r"|TCPStore[^\n]*(?:time|fail)"
        r"[^\n]*|Timed out waiting for (?:the )?(?:rendezvous|workers|peers|other)[^\n]*)",
        *_LOG,
    ),
    # A store of torch.distributed that does not answer raises a plain RuntimeError.
    text(
        RENDEZVOUS,
        r"(?P<detail>^(?:RuntimeError|TimeoutError|ValueError): (?:Socket Timeout|Timeout waiting for key"
        r"|host not found"
        r"|Stop_waiting response is expected|Connection reset by peer|Connection refused|Broken pipe"
        r"|Wait timeout|Interrupted system call|failed to recv)[^\n]*)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<detail>DistNetworkError[^\n]*|connection to the C10d store has failed)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<detail>\b(?:c10d|TCPStore|master|rendezvous|rdzv|etcd"
        r"|MASTER_ADDR)\b[^\n]*(?:Connection (?:refused|reset|timed out)"
        r"|Broken pipe|Socket Timeout)[^\n]*)",
        *_LOG,
    ),
    # A warning: the store tries again until its timeout.
    text(
        RENDEZVOUS,
        r"(?P<detail>network addresses of .* cannot be retrieved)",
        *_LOG,
        soft=True,
        doubt=Doubt.ALWAYS,
    ),
)
# After the program's mistakes with NCCL, which have messages like network failures.
LATE_TEXTS = (
    text(
        NCCL_ERROR,
        r"(?P<detail>(?:Gloo connectFullMesh|gloo/transport/)[^\n]*"
        r"(?:time-?d? ?out|reset|refused|closed|unreachable|Broken pipe)[^\n]*)",
        *_LOG,
    ),
    text(
        NCCL_ERROR,
        r"(?P<detail>(?:Gloo connectFullMesh|gloo/transport/)[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    text(
        NCCL_ERROR,
        rf"(?P<detail>(?:NET/(?:OFI|IB|Socket)|libfabric|\befa|\bmlx5)[^\n]*{_OF_PEER}[^\n]*"
        r"|NET/IB[^\n]*completion from peer[^\n]*)",
        *_LOG,
    ),
    text(
        NCCL_ERROR,
        r"(?P<detail>NET/(?:OFI|IB)[^\n]*complet(?:ed|ion) with (?:an )?error[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    text(
        NCCL_ERROR,
        r"(?P<detail>\b(?:port (?:error|down)|link (?:down|flap\w*|error)|Got async event)[^\n]*)",
        *_LOG,
    ),
    text(
        NCCL_ERROR,
        r"(?P<detail>remote process exited[^\n]*|NCCL communicator (?:was|has been) aborted[^\n]*"
        r"|ncclRemoteError[^\n]*)",
        *_LOG,
    ),
    text(NCCL_ERROR, r"(?P<detail>NCCL WARN[^\n]*(?:closed by remote|reset by peer|error 12)[^\n]*)", *_LOG),
    # An address that nothing listens on, or that is behind a firewall: the set-up, or a peer that ended.
    text(
        NCCL_ERROR,
        r"(?P<detail>(?:NCCL WARN|\bWARN Call to)[^\n]*(?:failed|timed? ?out)[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    text(
        NCCL_ERROR,
        r"(?P<detail>(?:Connection|Socket) (?:closed|reset) by (?:remote )?peer[^\n]*"
        r"|gloo[^\n]*(?:Connection reset|Read error)"
        r"[^\n]*|torch lost a peer[^\n]*)",
        *_LOG,
    ),
    # A system call, a CUDA call or a check inside NCCL: at the start it is as likely the set-up.
    text(
        NCCL_ERROR,
        r"(?P<detail>nccl(?:System|Internal|UnhandledCuda|InProgress)Error[^\n]*|NCCL error in:[^\n]*"
        r"|NCCL error: [^\n]*|NCCL Error \d[^\n]*|unhandled (?:system|cuda) error[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
    text(
        PEER_LOST,
        r"(?P<detail>(?:JAX distributed service detected fatal errors|coordination service: UNAVAILABLE"
        r"|Failed to send RPC to coordination service|Polled an error from coordination service"
        r"|heartbeat timeout\. This indicates that the remote task|lame workers found)[^\n]*)",
        *_LOG,
    ),
    text(
        PEER_LOST,
        r"(?P<detail>ORTE has lost communication with a remote daemon[^\n]*"
        r"|PRTE has lost communication with a remote daemon[^\n]*|HorovodInternalError[^\n]*"
        r"|mpirun noticed that process rank \d+ [^\n]*exited on signal (?:9|15)\b[^\n]*)",
        *_LOG,
    ),
    # A peer that is not there yet, or not any more: pods have names only while they exist.
    text(
        RENDEZVOUS,
        r"(?P<detail>(?:\.svc\b|headless|-master|-worker|-head|MASTER_ADDR|[a-z]-\d+\.)[^\n]{0,80}"
        r"(?:Name or service not known|name resolution|not resolve|no such host|gai error|getaddrinfo"
        r"|NXDOMAIN)[^\n]*)",
        *_LOG,
    ),
    text(
        RENDEZVOUS,
        r"(?P<detail>(?:socket\.gaierror|getaddrinfo)[^\n]*)",
        *_LOG,
        doubt=Doubt.ALWAYS,  # the name of something else, perhaps
    ),
)
_MESHES = ("istio-proxy", "linkerd-proxy", "envoy-sidecar")


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    for log in snapshot.logs:
        pod = pod_named(snapshot, log.pod)
        if (
            _asks_for_efa(pod)
            and "NET/Socket" in log.text
            and "Selected provider is efa" not in log.text.replace("Provider", "provider")
        ):
            line = next(line for line in log.text.splitlines() if "NET/Socket" in line)
            message = "it uses plain sockets (NET/Socket)"
            yield Sign(EFA_UNUSED, (f"log of {log.pod}: {line.strip()}",), None, pod, {"detail": message})
        mesh = _mesh(pod)
        if mesh and any(row.failure is RENDEZVOUS and row.words.search(log.text) for row in TEXTS):
            values = {"detail": f"container {mesh} in pod {name_of(pod)}"}
            yield Sign(RENDEZVOUS_MESH, (f"pod/{name_of(pod)} has a container {mesh}",), None, pod, values)


def _asks_for_efa(pod: Object) -> bool:
    return any(
        EFA in mapping(container, "resources", "limits") for container in mappings(pod, "spec", "containers")
    )


def _mesh(pod: Object) -> str:
    held = [*mappings(pod, "spec", "containers"), *mappings(pod, "spec", "initContainers")]
    return next((str(container["name"]) for container in held if container.get("name") in _MESHES), "")

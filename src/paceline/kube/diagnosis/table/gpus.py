"""Do the ranks reach each other, and have GPU memory? Rows 33 to 38: what CUDA, NCCL and EFA say in logs."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.kube.diagnosis.failure import Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.kube.diagnosis.pods import pod_named
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of
from paceline.kube.reading import mapping, mappings
from paceline.kube.well_known import EFA

CUDA_OOM = Failure(
    number=33,
    name="cuda-oom",
    what="the GPU's memory is full",
    kind=FailureClass.CONFIG,
    cause="rank {rank} ran out of GPU memory",
    why="model, optimizer and activations of one batch do not fit; nor will they the next time",
    command="paceline train --mode fsdp --batch-size SMALLER …",
    remedy=Remedy.STOP,
)
NCCL_TIMEOUT = Failure(
    number=34,
    name="nccl-timeout",
    what="a collective operation timed out",
    kind=FailureClass.INFRA,
    cause="the ranks waited for each other in a collective operation until it timed out, first rank {rank}",
    why="no rank died before; a link or a GPU was slow, or the ranks are not at the same operation",
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
    cause="NCCL lost a connection or a system call failed, first seen by rank {rank}: {said}",
    why="the network between nodes broke, or a peer vanished without a word",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -m5 'NCCL WARN'",
    most=None,
)
RENDEZVOUS = Failure(
    number=36,
    name="rendezvous",
    what="the ranks did not all meet",
    kind=FailureClass.INFRA,
    cause="the ranks did not all meet: {said}",
    why="somebody is missing, or cannot be reached by name: DNS, a NetworkPolicy, or a service mesh",
    command="kubectl get pods -n {namespace} -o wide",
    remedy=Remedy.RESUBMIT,
    weight=Weight.CONSEQUENCE,
)
RENDEZVOUS_MESH = replace(
    RENDEZVOUS,
    kind=FailureClass.FIXABLE,
    cause="the ranks did not meet, because a service mesh sits between them: {said}",
    why="a sidecar takes the pod's traffic; the annotation sidecar.istio.io/inject: 'false' keeps it out",
    command="kubectl get namespace {namespace} --show-labels",
    remedy=Remedy.FIX,
    weight=Weight.CAUSE,
    change="mesh",
    most=1,
)
EFA_UNUSED = Failure(
    number=37,
    name="efa-unused",
    what="EFA was asked for, and is not used",
    kind=FailureClass.CONFIG,
    cause="EFA was asked for, and NCCL does not use it: {said}",
    why="the image lacks the aws-ofi-nccl plugin, or the pod lacks the device; training would crawl over TCP",
    command="kubectl exec {pod} -n {namespace} -- fi_info -p efa",
    remedy=Remedy.STOP,
)
EFA_MEMORY = Failure(
    number=38,
    name="efa-memory",
    what="EFA cannot pin memory",
    kind=FailureClass.CONFIG,
    cause="EFA cannot register memory: {said}",
    why="huge pages are used up, or locked memory is limited; FI_EFA_USE_HUGE_PAGE=0 does without them",
    command="kubectl get pod {pod} -n {namespace} -o yaml | grep -A1 FI_EFA_USE_HUGE_PAGE",
    remedy=Remedy.STOP,
)
ROWS = (CUDA_OOM, NCCL_TIMEOUT, NCCL_ERROR, RENDEZVOUS, RENDEZVOUS_MESH, EFA_UNUSED, EFA_MEMORY)

_LOG = (Source.LOG, Source.CLUSTER)  # the end of a log is also what a container leaves as its message
TEXTS = (
    text(CUDA_OOM, r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY", *_LOG),
    text(CUDA_OOM, r"(?:cublas|cudnn)\w*_(?:ALLOC_FAILED)|HIP out of memory", *_LOG),
    text(EFA_MEMORY, r"(?P<said>NET/OFI Unable to register memory.*)", *_LOG),
    text(
        EFA_MEMORY, r"(?P<said>os\.fork.*Cannot allocate memory|fi_mr_reg.*Cannot allocate memory.*)", *_LOG
    ),
    text(
        EFA_UNUSED,
        r"(?P<said>NET/OFI (?:No eligible providers were found|Couldn't find any optimal provider))",
        *_LOG,
    ),
    text(EFA_UNUSED, r"(?P<said>fi_getinfo: provider efa output empty list)", *_LOG),
    text(NCCL_TIMEOUT, r"(?:\[?Rank (?P<rank>\d+)\]? ?)?Watchdog caught collective operation timeout", *_LOG),
    text(
        NCCL_TIMEOUT, r"milliseconds before timing out|Some NCCL operations have failed or timed out", *_LOG
    ),
    text(
        NCCL_TIMEOUT, r"taking the entire process down|terminated or joined.*heartbeat monitor thread", *_LOG
    ),
    text(NCCL_TIMEOUT, r"watchdog got stuck for|Timed out waiting \d+ms for (?:recv|send) operation", *_LOG),
    text(RENDEZVOUS, r"(?P<said>retrieving ncclUniqueId from [^\n]*|store->get\([^\n]*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<said>failed to listen on any local network address|wait timeout after \d+ms.*)",
        *_LOG,
    ),
    text(
        RENDEZVOUS,
        r"(?P<said>(?:sendBytes|recvBytes)\S* failed[^\n]*|Did the remote server shutdown.*)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<said>failed to bind to \S+ \(errno: 98[^\n]*)", *_LOG, soft=True),
    text(RENDEZVOUS, r"(?P<said>client socket has timed out after .* while trying to connect to .*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<said>Timed out after .* waiting for clients\. (?P<met>\d+)/(?P<all>\d+) clients joined)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<said>Rendezvous(?:Connection|Timeout|Closed)Error[^\n]*)", *_LOG),
    text(
        RENDEZVOUS,
        r"(?P<said>recvValue failed[^\n]*|failed to recv, got 0 bytes|DistStoreError[^\n]*)",
        *_LOG,
    ),
    text(RENDEZVOUS, r"(?P<said>DistNetworkError[^\n]*|connection to the C10d store has failed)", *_LOG),
    text(RENDEZVOUS, r"(?P<said>network addresses of .* cannot be retrieved)", *_LOG, soft=True),
)
# After the program's own mistakes with NCCL, which look like the network's.
LATE_TEXTS = (
    text(NCCL_ERROR, r"(?P<said>(?:Gloo connectFullMesh|gloo/transport/)[^\n]*)", *_LOG),
    text(
        NCCL_ERROR, r"(?P<said>NET/(?:OFI|IB)[^\n]*complet(?:ed|ion) (?:with error|from peer)[^\n]*)", *_LOG
    ),
    text(NCCL_ERROR, r"(?P<said>nccl(?:System|Remote|Internal|UnhandledCuda)Error[^\n]*)", *_LOG),
    text(
        NCCL_ERROR, r"(?P<said>NCCL error in:[^\n]*|NCCL error: [^\n]*|unhandled system error[^\n]*)", *_LOG
    ),
    text(
        NCCL_ERROR,
        r"(?P<said>NCCL WARN[^\n]*(?:failed|closed by remote|reset by peer|error 12|timed? ?out)[^\n]*)",
        *_LOG,
    ),
    text(
        NCCL_ERROR,
        r"(?P<said>Connection closed by peer[^\n]*|gloo[^\n]*(?:Connection reset|Read error)[^\n]*)",
        *_LOG,
    ),
)
_MESHES = ("istio-proxy", "linkerd-proxy", "envoy-sidecar")


def look(snapshot: Snapshot) -> Iterator[Sign]:
    for log in snapshot.logs:
        pod = pod_named(snapshot, log.pod)
        if (
            _asks_for_efa(pod)
            and "NET/Socket" in log.text
            and "Selected provider is efa" not in log.text.replace("Provider", "provider")
        ):
            line = next(line for line in log.text.splitlines() if "NET/Socket" in line)
            said = "it talks over plain sockets (NET/Socket)"
            yield Sign(EFA_UNUSED, (f"log of {log.pod}: {line.strip()}",), None, pod, {"said": said})
        mesh = _mesh(pod)
        if mesh and any(one.failure is RENDEZVOUS and one.words.search(log.text) for one in TEXTS):
            values = {"said": f"container {mesh} in pod {name_of(pod)}"}
            yield Sign(RENDEZVOUS_MESH, (f"pod/{name_of(pod)} has a container {mesh}",), None, pod, values)


def _asks_for_efa(pod: Object) -> bool:
    return any(
        EFA in mapping(container, "resources", "limits") for container in mappings(pod, "spec", "containers")
    )


def _mesh(pod: Object) -> str:
    held = [*mappings(pod, "spec", "containers"), *mappings(pod, "spec", "initContainers")]
    return next((str(one["name"]) for one in held if one.get("name") in _MESHES), "")

"""What every pod of a job carries, whichever kind of object it belongs to.

Strict by default: a pod passes Pod Security "restricted", has no API token, and
takes every secret by reference. `relaxed` says in words what `compat` gives up.
"""

from paceline.k8s.objects import EFA, GPU, ZONE
from paceline.k8s.spec.job import (
    CACHE,
    CONFIG,
    PORT,
    RESULTS,
    SHM,
    JobSpec,
    Profile,
    Rendezvous,
    Size,
    TorchrunSpec,
)
from paceline.plan.codec import Json

Object = dict[str, Json]

USER = 1000  # of our image, and of rayproject's
GRACE_S = 120  # time for a last checkpoint after SIGTERM


def labels(intent: JobSpec) -> Object:
    """One selector finds every object of a job, of whatever kind."""
    return {
        "app.kubernetes.io/name": "paceline",
        "app.kubernetes.io/instance": intent.name,
        "app.kubernetes.io/managed-by": "paceline",
    }


def metadata(intent: JobSpec, name: str) -> Object:
    where: Object = {} if intent.namespace is None else {"namespace": intent.namespace}
    return {"name": name, **where, "labels": labels(intent)}


def pod(intent: JobSpec, containers: list[Object], more: Object, *, needs_api: bool = False) -> Object:
    """A pod template with `more` fields. `needs_api`: something in it talks to Kubernetes by a token."""
    secrets: Object = {}
    if intent.pull_secret is not None:
        secrets = {"imagePullSecrets": [{"name": intent.pull_secret}]}
    return {
        # A mesh's sidecar breaks the connections of workers to each other.
        "metadata": {"labels": labels(intent), "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            **({} if needs_api else {"automountServiceAccountToken": False}),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": pod_security(intent),
            **secrets,
            **more,
            "containers": list(containers),
        },
    }


def container(intent: JobSpec, name: str, asked: Object, **more: Json) -> Object:
    """`asked` is its resources."""
    variables: list[Json] = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    for one in intent.secrets:
        reference: Object = {"secretKeyRef": {"name": one.secret, "key": one.key}}
        variables.append({"name": one.name, "valueFrom": reference})
    return {
        "name": name,
        "image": intent.image,
        "imagePullPolicy": "IfNotPresent",
        **more,
        "env": variables,
        "resources": asked,
        **container_security(intent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def resources(size: Size) -> Object:
    """Requests equal limits: Ray reads them to know what it has, and devices must."""
    asked: Object = {"cpu": str(size.cpus), "memory": size.memory}
    if size.gpus:
        asked[GPU] = str(size.gpus)
    return {"requests": dict(asked), "limits": dict(asked)}


def gpu_toleration(size: Size) -> Object:
    """Nodes with GPUs are usually kept free of everybody who does not say this."""
    if not size.gpus:
        return {}
    return {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]}


def pod_security(intent: JobSpec) -> Object:
    seccomp: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    if intent.profile is Profile.COMPAT:
        return seccomp
    user: Object = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER}
    return {**user, "fsGroupChangePolicy": "OnRootMismatch", **seccomp}


def container_security(intent: JobSpec) -> Object:
    if intent.profile is Profile.COMPAT:
        return {}
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def describe_relaxations(profile: Profile) -> list[str]:
    """What a profile gives up, in words."""
    if profile is Profile.STRICT:
        return []
    return [
        "containers may run as root (no runAsNonRoot, no runAsUser)",
        "programs in them may gain privileges (no allowPrivilegeEscalation: false)",
        "they keep the default capabilities (no drop: [ALL])",
        "so a namespace that enforces Pod Security restricted refuses these pods",
    ]


# The same for all kinds: image, resources, variables, volumes. A kind decides only
# how a pod learns who it is, and says so to `arguments`.

GPUS = "gpus"  # what pods call their claim
_ALWAYS = {
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAME": "^lo",
}
_WITH_EFA = {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1", "FI_EFA_USE_HUGE_PAGE": "0"}
_DEBUG = {
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}


def require_torch(intent: JobSpec) -> TorchrunSpec:
    assert intent.torch is not None, "wishes for this kind say how torchrun starts"
    return intent.torch


def torchrun_arguments(intent: JobSpec, *, rank: str, master: str, port: str = str(PORT)) -> list[Json]:
    """Of torchrun: `rank` and `master` in words that the kubelet fills in, such as $(RANK)."""
    torch, pods = require_torch(intent), intent.pods
    nodes = f"{pods.wanted}" if pods.least == pods.most else f"{pods.least}:{pods.most}"
    words = [f"--nnodes={nodes}", f"--nproc_per_node={torch.procs}"]
    if torch.rendezvous is Rendezvous.STATIC:
        words += [f"--node_rank={rank}", f"--master_addr={master}", f"--master_port={port}"]
        words += ["--rdzv_backend=static"]
    else:
        words += ["--rdzv_backend=c10d", f"--rdzv_endpoint={master}:{port}"]
        words += [f"--max_restarts={intent.limits.retries}"]
    return [*words, f"--rdzv_id={intent.name}", *intent.command]


def variables(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    plain = {"JOB_NAME": intent.name, **_ALWAYS}
    plain |= {"HF_HOME": f"{CACHE}/huggingface"} if torch.has_cache else {}
    plain |= _WITH_EFA if torch.options.efa else {}
    plain |= _DEBUG if torch.options.torch_debug else {}
    plain |= dict(torch.variables)
    found: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    for one in intent.secrets:
        reference: Object = {"secretKeyRef": {"name": one.secret, "key": one.key}}
        found.append({"name": one.name, "valueFrom": reference})
    return found


def torchrun_resources(intent: JobSpec) -> Object:
    """Memory is bounded, devices are as they must be; a CPU that nobody else needs may be used."""
    size, torch = intent.worker, require_torch(intent)
    devices: Object = {GPU: str(size.gpus)} if size.gpus and not torch.options.gpu_claims else {}
    devices |= {EFA: str(torch.options.efa)} if torch.options.efa else {}
    bounded: Object = {"memory": size.memory, **devices}
    claims: Object = {"claims": [{"name": GPUS}]} if torch.options.gpu_claims else {}
    return {"requests": {"cpu": str(size.cpus), **bounded}, "limits": dict(bounded), **claims}


def mounts(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    found: list[Json] = [{"name": "shm", "mountPath": SHM}]
    for volume in torch.volumes:
        only: Object = {"readOnly": True} if volume.is_read_only else {}
        found.append({"name": volume.claim, "mountPath": volume.path, **only})
    if torch.results == RESULTS:
        found.append({"name": "results", "mountPath": RESULTS})
    if torch.config is not None:
        found.append({"name": "config", "mountPath": CONFIG, "readOnly": True})
    if torch.has_cache:
        found.append({"name": "cache", "mountPath": CACHE})
    return found


def volumes(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    # Memory of the pod, not of the node, and counted in its limit.
    found: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": torch.options.shm}}]
    for volume in torch.volumes:
        claim: Object = {"claimName": volume.claim}
        claim |= {"readOnly": True} if volume.is_read_only else {}
        found.append({"name": volume.claim, "persistentVolumeClaim": claim})
    if torch.results == RESULTS:
        found.append({"name": "results", "emptyDir": {}})
    if torch.config is not None:
        found.append({"name": "config", "configMap": {"name": config_name(intent)}})
    if torch.has_cache:
        found.append({"name": "cache", "emptyDir": {}})
    return found


def torchrun_security(intent: JobSpec) -> Object:
    """Of the container. EFA locks memory that it registers: the one exception from `restricted`."""
    found = container_security(intent)
    if not require_torch(intent).options.efa:
        return found
    add: Object = {"add": ["IPC_LOCK"]}
    if intent.profile is Profile.COMPAT:
        return {"securityContext": {"capabilities": add}}
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}}


def placement(intent: JobSpec) -> Object:
    """Which nodes will do."""
    torch = require_torch(intent)
    found: Object = dict(gpu_toleration(intent.worker))
    if torch.node_labels:
        found["nodeSelector"] = dict(torch.node_labels)
    if torch.options.efa and intent.pods.most > 1:  # EFA does not leave a zone
        mine: Object = {"labelSelector": {"matchLabels": labels(intent)}, "topologyKey": ZONE}
        found["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [mine]}}
    return found


def torchrun_container(intent: JobSpec, name: str, **more: Json) -> Object:
    """`more` stands behind the image: the command, ports, variables."""
    return {
        "name": name,
        "image": intent.image,
        "imagePullPolicy": "IfNotPresent",
        **more,
        "resources": torchrun_resources(intent),
        **torchrun_security(intent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(intent),
    }


def template(intent: JobSpec, one: Object, **more: Json) -> Object:
    """The pod with this container."""
    account = require_torch(intent).service_account
    who: Object = {} if account is None else {"serviceAccountName": account}
    return pod(
        intent, [one], {**who, **placement(intent), **claimed(intent), **more, "volumes": volumes(intent)}
    )


def claimed(intent: JobSpec) -> Object:
    """Each pod has a claim of its own, made from the template that comes with the job."""
    if not require_torch(intent).options.gpu_claims:
        return {}
    return {"resourceClaims": [{"name": GPUS, "resourceClaimTemplateName": claim_name(intent)}]}


def claim_name(intent: JobSpec) -> str:
    return f"{intent.name}-gpus"


def job_metadata(intent: JobSpec) -> Object:
    """Of the job itself: Kueue looks for its queue there."""
    options = require_torch(intent).options
    queue: Object = {} if options.queue is None else {"kueue.x-k8s.io/queue-name": options.queue}
    queue |= {} if options.priority is None else {"kueue.x-k8s.io/priority-class": options.priority}
    where: Object = {} if intent.namespace is None else {"namespace": intent.namespace}
    return {"name": intent.name, **where, "labels": {**labels(intent), **queue}}


def config_name(intent: JobSpec) -> str:
    return f"{intent.name}-config"

"""Common parts of the pods of a job, for every kind of object.

Strict by default: a pod passes Pod Security "restricted", has no API token, and
takes every secret by reference. `relaxed` describes what `compat` gives up.
"""

from paceline.k8s.objects import EFA, ELASTIC_NODES, GPU, INSTANCE_TYPE, ZONE
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

USER = 1000  # of paceline's image, and of rayproject's
GRACE_S = 120  # time for a last checkpoint after SIGTERM


def labels(intent: JobSpec) -> Object:
    """One selector finds every object of a job, of any kind."""
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
    fields = intent.fields
    return {
        "metadata": {
            "labels": {**labels(intent), **dict(fields.labels)},
            # A mesh's sidecar breaks the connections of workers to each other.
            "annotations": {"sidecar.istio.io/inject": "false", **dict(fields.annotations)},
        },
        "spec": {
            **({} if needs_api else {"automountServiceAccountToken": False}),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": pod_security(intent),
            **secrets,
            **_scheduling(intent),
            **more,
            "containers": list(containers),
        },
    }


def _scheduling(intent: JobSpec) -> Object:
    fields = intent.fields
    scheduling: Object = {}
    if fields.priority_class is not None:
        scheduling["priorityClassName"] = fields.priority_class
    if fields.scheduler is not None:
        scheduling["schedulerName"] = fields.scheduler
    if fields.host_network:
        # Names of the cluster stay resolvable.
        scheduling |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return scheduling


def container(intent: JobSpec, name: str, amounts: Object, **more: Json) -> Object:
    """`amounts`: its resource requests and limits."""
    variables: list[Json] = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    variables += [{"name": name, "value": value} for name, value in intent.fields.variables]
    for secret in intent.secrets:
        reference: Object = {"secretKeyRef": {"name": secret.secret, "key": secret.key}}
        variables.append({"name": secret.name, "valueFrom": reference})
    return {
        "name": name,
        "image": intent.image,
        "imagePullPolicy": "IfNotPresent",
        **more,
        "env": variables,
        **env_from(intent),
        "resources": amounts,
        **container_security(intent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def env_from(intent: JobSpec) -> Object:
    sources: list[Json] = [{kind: {"name": name}} for kind, name in intent.fields.env_from]
    return {"envFrom": sources} if sources else {}


def resources(intent: JobSpec, size: Size) -> Object:
    """Requests equal limits: Ray reads them to know what it has, and devices must."""
    requests: Object = {"cpu": str(size.cpus), "memory": size.memory, **_disk(intent)}
    if size.gpus:
        requests[GPU] = str(size.gpus)
    return {"requests": dict(requests), "limits": dict(requests)}


def _disk(intent: JobSpec) -> Object:
    size = intent.fields.ephemeral_storage
    return {} if size is None else {"ephemeral-storage": size}


def tolerations(intent: JobSpec, size: Size) -> Object:
    """Nodes with GPUs usually have a taint that repels pods without this toleration."""
    entries: list[Json] = []
    if size.gpus:
        entries.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
    for toleration in intent.fields.tolerations:
        entry: Object = {"key": toleration.key, "operator": "Exists" if toleration.value is None else "Equal"}
        entry |= {} if toleration.value is None else {"value": toleration.value}
        entry |= {} if toleration.effect is None else {"effect": toleration.effect}
        entries.append(entry)
    return {"tolerations": entries} if entries else {}


def node_labels(intent: JobSpec) -> dict[str, str]:
    """Labels of the nodes on which workers may run."""
    fields = intent.fields
    machine = {} if fields.instance_type is None else {INSTANCE_TYPE: fields.instance_type}
    return {**dict(fields.node_labels), **machine}


def runtime_class(intent: JobSpec) -> Object:
    """Of workers only: the runtime of GPUs is not on the nodes of a head."""
    name = intent.fields.runtime_class
    return {} if name is None else {"runtimeClassName": name}


def deadline(intent: JobSpec) -> Object:
    running_s = intent.limits.running_s
    return {} if running_s is None else {"activeDeadlineSeconds": running_s}


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
    """Describes what a profile gives up."""
    if profile is Profile.STRICT:
        return []
    return [
        "containers may run as root (no runAsNonRoot, no runAsUser)",
        "processes may gain privileges (no allowPrivilegeEscalation: false)",
        "containers keep the default capabilities (no drop: [ALL])",
        "a namespace that enforces Pod Security restricted rejects these pods",
    ]


# The same for all kinds: image, resources, variables, volumes. A kind decides only
# how a pod gets its identity, and passes that to `arguments`.

GPUS = "gpus"  # name of the claim in pods
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
    assert intent.torch is not None, "a spec for this kind has torchrun's settings"
    return intent.torch


def torchrun_arguments(intent: JobSpec, *, rank: str, master: str, port: str = str(PORT)) -> list[Json]:
    """Arguments of torchrun: `rank` and `master` are references that the kubelet expands, such as $(RANK)."""
    torch = require_torch(intent)
    if torch.is_raw:
        return list(intent.command[1:])
    pods = intent.pods
    flags = intent.rendezvous
    nodes = f"{pods.wanted}" if pods.least == pods.most else f"{pods.least}:{pods.most}"
    argv = [f"--nnodes={nodes}", f"--nproc_per_node={torch.procs}"]
    if torch.rendezvous is Rendezvous.STATIC:
        argv += [f"--node_rank={rank}", f"--master_addr={flags.master_addr or master}"]
        argv += [f"--master_port={flags.master_port or port}", "--rdzv_backend=static"]
    else:
        endpoint = flags.rdzv_endpoint or f"{master}:{port}"
        argv += ["--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}"]
    return [*argv, *restarts_of_processes(intent), f"--rdzv_id={rendezvous_id(intent)}", *intent.command]


def rendezvous_id(intent: JobSpec) -> str:
    return intent.rendezvous.rdzv_id or intent.name


def restarts_of_processes(intent: JobSpec) -> list[str]:
    """torchrun starts its own processes again; with c10d those of all nodes."""
    count = intent.rendezvous.max_restarts
    if count is None and require_torch(intent).rendezvous is Rendezvous.C10D:
        count = intent.limits.retries
    return [] if count is None else [f"--max_restarts={count}"]


def variables(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    plain = {"JOB_NAME": intent.name, **_ALWAYS}
    plain |= {"HF_HOME": f"{CACHE}/huggingface"} if torch.has_cache else {}
    plain |= _WITH_EFA if torch.options.efa else {}
    plain |= _DEBUG if torch.options.torch_debug else {}
    plain |= dict(intent.fields.variables)
    entries: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    for secret in intent.secrets:
        reference: Object = {"secretKeyRef": {"name": secret.secret, "key": secret.key}}
        entries.append({"name": secret.name, "valueFrom": reference})
    return entries


def torchrun_resources(intent: JobSpec) -> Object:
    """Memory and devices have limits; CPU has only a request, so that idle CPUs can be used."""
    size = intent.worker
    torch = require_torch(intent)
    devices: Object = {GPU: str(size.gpus)} if size.gpus and not torch.options.gpu_claims else {}
    devices |= {EFA: str(torch.options.efa)} if torch.options.efa else {}
    bounded: Object = {"memory": size.memory, **_disk(intent), **devices}
    claims: Object = {"claims": [{"name": GPUS}]} if torch.options.gpu_claims else {}
    return {"requests": {"cpu": str(size.cpus), **bounded}, "limits": dict(bounded), **claims}


def mounts(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    entries: list[Json] = [{"name": "shm", "mountPath": SHM}]
    for volume in torch.volumes:
        only: Object = {"readOnly": True} if volume.is_read_only else {}
        entries.append({"name": volume.claim, "mountPath": volume.path, **only})
    if torch.results == RESULTS:
        entries.append({"name": "results", "mountPath": RESULTS})
    if intent.files:
        entries.append({"name": "config", "mountPath": CONFIG, "readOnly": True})
    if torch.has_cache:
        entries.append({"name": "cache", "mountPath": CACHE})
    return entries


def volumes(intent: JobSpec) -> list[Json]:
    torch = require_torch(intent)
    # Memory of the pod, not of the node, and counted in its limit.
    entries: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": torch.options.shm}}]
    for volume in torch.volumes:
        claim: Object = {"claimName": volume.claim}
        claim |= {"readOnly": True} if volume.is_read_only else {}
        entries.append({"name": volume.claim, "persistentVolumeClaim": claim})
    if torch.results == RESULTS:
        entries.append({"name": "results", "emptyDir": {}})
    if intent.files:
        entries.append({"name": "config", "configMap": {"name": config_name(intent)}})
    if torch.has_cache:
        entries.append({"name": "cache", "emptyDir": {}})
    return entries


def torchrun_security(intent: JobSpec) -> Object:
    """Container security context. EFA locks memory that it registers: the one exception from `restricted`."""
    context = container_security(intent)
    if not require_torch(intent).options.efa:
        return context
    add: Object = {"add": ["IPC_LOCK"]}
    if intent.profile is Profile.COMPAT:
        return {"securityContext": {"capabilities": add}}
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}}


def placement(intent: JobSpec) -> Object:
    """Which nodes will do."""
    torch = require_torch(intent)
    fields: Object = tolerations(intent, intent.worker)
    if node_labels(intent):
        fields["nodeSelector"] = dict(node_labels(intent))
    if torch.options.efa and intent.pods.most > 1:  # EFA does not leave a zone
        spread: Object = {"labelSelector": {"matchLabels": labels(intent)}, "topologyKey": ZONE}
        fields["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
    return fields


def spread_over_nodes(selected: Object) -> Object:
    """Pods with these labels go to different nodes where that is possible."""
    spread: Object = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selected},
    }
    return {"topologySpreadConstraints": [spread]}


def torchrun_container(intent: JobSpec, name: str, **more: Json) -> Object:
    """`more` follows the image: the command, ports, variables."""
    return {
        "name": name,
        "image": intent.image,
        "imagePullPolicy": "IfNotPresent",
        **more,
        **env_from(intent),
        "resources": torchrun_resources(intent),
        **torchrun_security(intent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(intent),
    }


def template(intent: JobSpec, container: Object, **more: Json) -> Object:
    """The pod with this container."""
    account = require_torch(intent).service_account
    account_field: Object = {} if account is None else {"serviceAccountName": account}
    return pod(
        intent,
        [container],
        {
            **account_field,
            **runtime_class(intent),
            **placement(intent),
            **claimed(intent),
            **more,
            "volumes": volumes(intent),
        },
    )


def claimed(intent: JobSpec) -> Object:
    """Each pod has its own claim, made from the template of the job."""
    if not require_torch(intent).options.gpu_claims:
        return {}
    return {"resourceClaims": [{"name": GPUS, "resourceClaimTemplateName": claim_name(intent)}]}


def claim_name(intent: JobSpec) -> str:
    return f"{intent.name}-gpus"


def job_metadata(intent: JobSpec) -> Object:
    """Metadata of the job itself: Kueue reads its queue there."""
    fields = intent.fields
    queue: Object = {} if fields.queue is None else {"kueue.x-k8s.io/queue-name": fields.queue}
    if fields.queue_priority is not None:
        queue["kueue.x-k8s.io/priority-class"] = fields.queue_priority
    where: Object = {} if intent.namespace is None else {"namespace": intent.namespace}
    own: Object = {**labels(intent), **queue, **dict(fields.labels)}
    # On a job whose pods may come and go, so that following it does not take a lost pod for a failure.
    notes: Object = {} if intent.elastic is None else {ELASTIC_NODES: str(intent.elastic)}
    notes |= dict(fields.annotations)
    return {"name": intent.name, **where, "labels": own, **({"annotations": notes} if notes else {})}


def config_name(intent: JobSpec) -> str:
    return f"{intent.name}-config"

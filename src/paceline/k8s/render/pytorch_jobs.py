"""Jobs of torchrun: PyTorchJob of training-operator 1.9, indexed Job, HyperPodPyTorchJob.

Static: a Master and Workers, rank 0 is in the Master. c10d: Workers alone, and the
operator tells torchrun everything by PET_* variables, so that no flag can contradict them.
"""

from paceline.k8s.objects import HYPERPOD_HEALTH, INSTANCE_TYPE
from paceline.k8s.render.metrics import ANY, serving, which_pod
from paceline.k8s.render.pod import (
    Object,
    deadline,
    job_metadata,
    labels,
    metadata,
    node_labels,
    placement,
    rendezvous_id,
    require_torch,
    restarts_of_processes,
    template,
    torchrun_arguments,
    torchrun_container,
    variables,
)
from paceline.k8s.spec.job import PORT, JobSpec, Rendezvous, Target
from paceline.plan.codec import Json

_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
_RETRIES = "sagemaker.amazonaws.com/job-max-retry-count"


def is_hyperpod(intent: JobSpec) -> bool:
    """Its machines are called ml.*, and no others are."""
    return node_labels(intent).get(INSTANCE_TYPE, "").startswith("ml.")


def healthy_placement(intent: JobSpec) -> Object:
    """Placement on nodes that HyperPod reports as healthy, in addition to other constraints."""
    good: Object = {"key": HYPERPOD_HEALTH, "operator": "In", "values": ["Schedulable"]}
    terms: list[Json] = [{"matchExpressions": [good]}]
    affinity: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinities = placement(intent).get("affinity")
    return {"nodeAffinity": affinity, **(affinities if isinstance(affinities, dict) else {})}


def auto_resume(intent: JobSpec) -> Object:
    """HyperPod replaces a bad machine, and restarts a PyTorchJob that has this annotation."""
    if not intent.limits.retries:
        return {}
    notes: Object = {_RESUME: "true", _RETRIES: str(intent.limits.retries), **dict(intent.fields.annotations)}
    return {"annotations": notes}


def render_pytorchjob(intent: JobSpec) -> list[Object]:
    spec: Object = {"nprocPerNode": str(require_torch(intent).procs), "runPolicy": _policy(intent)}
    spec |= _elastic(intent) if require_torch(intent).rendezvous is Rendezvous.C10D else _static(intent)
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {**job_metadata(intent), **(auto_resume(intent) if is_hyperpod(intent) else {})},
            "spec": spec,
        }
    ]


def _policy(intent: JobSpec) -> Object:
    limits = intent.limits
    # The operator counts restarted containers, and each attempt restarts those of all nodes; it gives
    # up when the count is reached, so the last allowed attempt needs one more.
    backoff = limits.retries * intent.pods.most + 1 if limits.retries else 0
    return {
        "cleanPodPolicy": "None",  # pods stay, with their logs
        "ttlSecondsAfterFinished": limits.kept_s,
        **deadline(intent),
        "backoffLimit": backoff,
        "suspend": False,
    }


def _static(intent: JobSpec) -> Object:
    argv = torchrun_arguments(intent, rank="$(RANK)", master="$(MASTER_ADDR)", port="$(MASTER_PORT)")
    replicas: Object = {"Master": _replica(intent, 1, serving(intent, _pod(intent, argv)))}
    if intent.pods.wanted > 1:
        replicas["Worker"] = _replica(intent, intent.pods.wanted - 1, _pod(intent, argv))
    return {"pytorchReplicaSpecs": replicas}


def _elastic(intent: JobSpec) -> Object:
    restarts = intent.rendezvous.max_restarts
    policy: Object = {
        "rdzvBackend": "c10d",
        "rdzvId": rendezvous_id(intent),
        **_endpoint(intent),
        "minReplicas": intent.pods.least,
        "maxReplicas": intent.pods.most,
        "maxRestarts": intent.limits.retries if restarts is None else restarts,
    }
    argv: list[Json] = list(intent.command[require_torch(intent).is_raw :])
    pod = serving(intent, _pod(intent, argv), which=ANY)
    replicas: Object = {"Worker": _replica(intent, intent.pods.wanted, pod)}
    return {"elasticPolicy": policy, "pytorchReplicaSpecs": replicas}


def _endpoint(intent: JobSpec) -> Object:
    if intent.rendezvous.rdzv_endpoint is None:
        return {}
    host, _, port = intent.rendezvous.rdzv_endpoint.partition(":")
    return {"rdzvHost": host, **({"rdzvPort": int(port)} if port else {})}


def _replica(intent: JobSpec, replicas: int, pod: Object) -> Object:
    return {
        "replicas": replicas,
        "restartPolicy": "OnFailure" if intent.limits.retries else "Never",
        "template": pod,
    }


def _pod(intent: JobSpec, argv: list[Json]) -> Object:
    program: list[Json] = [require_torch(intent).program]
    more: Object = {"affinity": healthy_placement(intent)} if is_hyperpod(intent) else {}
    container = torchrun_container(intent, "pytorch", command=program, args=argv, env=variables(intent))
    return template(intent, container, **more)


# A Service without an address gives its pods names, so that they find the first of them.


def render_indexed_job(intent: JobSpec) -> list[Object]:
    return [_service(intent), _job(intent)]


def _service(intent: JobSpec) -> Object:
    """Headless service: it only makes the pods' names resolvable, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(intent, intent.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(intent),
            "ports": [{"name": "rendezvous", "port": _port(intent)}],
        },
    }


def _job(intent: JobSpec) -> Object:
    limits = intent.limits
    nodes = intent.pods.wanted
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job_metadata(intent),
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": limits.retries * nodes,  # an attempt that fails is one failed pod on every node
            # A new pod has its predecessor's name: only one of them may be there.
            "podReplacementPolicy": "Failed",
            **deadline(intent),
            "ttlSecondsAfterFinished": limits.kept_s,
            "template": _template(intent),
        },
    }


def _port(intent: JobSpec) -> int:
    return intent.rendezvous.master_port or PORT


def _template(intent: JobSpec) -> Object:
    master = f"{intent.name}-0.{intent.name}"
    argv = torchrun_arguments(intent, rank="$(JOB_COMPLETION_INDEX)", master=master)
    torch = require_torch(intent)
    program: list[Json] = [torch.program]
    ports: list[Json] = [{"containerPort": _port(intent), "name": "rendezvous"}]
    env = [*variables(intent), *(_identity(intent, master) if torch.is_raw else [])]
    container = torchrun_container(intent, "pytorch", command=program, args=argv, ports=ports, env=env)
    pods = template(intent, container, subdomain=intent.name, restartPolicy="Never")
    return serving(intent, pods, which=which_pod(intent, Target.JOB))


def _identity(intent: JobSpec, master: str) -> list[Json]:
    """For a raw command: the variables that training-operator sets, and those that torchrun reads."""
    torch = require_torch(intent)
    nodes = intent.pods.wanted
    index: Object = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    host = intent.rendezvous.master_addr or master
    plain = {
        "WORLD_SIZE": str(nodes * torch.procs),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(_port(intent)),
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(torch.procs),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(_port(intent)),
    }
    entries: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": index}} for name in ("RANK", "PET_NODE_RANK")
    ]
    entries += [{"name": name, "value": value} for name, value in plain.items()]
    return entries


# Its agent `hyperpodrun` replaces torchrun: it takes torchrun's flags, and gets the
# ranks from the operator.

AGENT = 8080  # port on which hyperpodrun serves the operator
_EVALUATED_S = 21_600  # the window in which restarts are counted


def render_hyperpod_job(intent: JobSpec) -> list[Object]:
    torch = require_torch(intent)
    replicas: Object = {"name": "pods", "replicas": intent.pods.wanted}
    replicas |= {"spares": torch.options.spares} if torch.options.spares else {}
    replicas["template"] = _hyperpod_template(intent)
    return [
        {
            "apiVersion": "sagemaker.amazonaws.com/v1",
            "kind": "HyperPodPyTorchJob",
            "metadata": job_metadata(intent),
            "spec": {
                "nprocPerNode": str(torch.procs),
                "runPolicy": _hyperpod_policy(intent),
                "replicaSpecs": [replicas],
            },
        }
    ]


def _hyperpod_policy(intent: JobSpec) -> Object:
    limits = intent.limits
    policy: Object = {"cleanPodPolicy": "None", "jobMaxRetryCount": limits.retries}
    if limits.retries:
        policy["restartPolicy"] = {
            "evalPeriodSeconds": _EVALUATED_S,
            "numRestartBeforeFullJobRestart": limits.retries,
            "maxFullJobRestarts": 1,
        }
    return {
        **policy,
        "startupDeadlineSeconds": limits.pending_s,
        **deadline(intent),
        "ttlSecondsAfterFinished": limits.kept_s,
    }


def _hyperpod_template(intent: JobSpec) -> Object:
    torch = require_torch(intent)
    argv: list[Json] = [f"--nnodes={intent.pods.wanted}", f"--nproc_per_node={torch.procs}"]
    argv += ["--tee=3", "--log_dir=/tmp/hyperpod", *restarts_of_processes(intent), *intent.command]
    argv = list(intent.command[1:]) if torch.is_raw else argv
    ports: list[Json] = [{"containerPort": AGENT, "name": "agent"}]
    program: list[Json] = [torch.program]
    container = torchrun_container(
        intent, "pytorch", command=program, args=argv, ports=ports, env=variables(intent)
    )
    return serving(intent, template(intent, container, affinity=healthy_placement(intent)), which=ANY)

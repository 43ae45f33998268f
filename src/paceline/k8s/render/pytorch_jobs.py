"""Jobs of torchrun: PyTorchJob of training-operator 1.9, indexed Job, HyperPodPyTorchJob.

Static: a Master and Workers, rank 0 is in the Master. c10d: Workers alone, and the
operator tells torchrun everything by PET_* variables, so that no flag can contradict them.
"""

from paceline.k8s.objects import HYPERPOD_HEALTH, INSTANCE_TYPE
from paceline.k8s.render.metrics import ANY, serving, which_pod
from paceline.k8s.render.pod import (
    Object,
    job_metadata,
    labels,
    metadata,
    placement,
    require_torch,
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
    return dict(require_torch(intent).node_labels).get(INSTANCE_TYPE, "").startswith("ml.")


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
    return {"annotations": {_RESUME: "true", _RETRIES: str(intent.limits.retries)}}


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
        "activeDeadlineSeconds": limits.running_s,
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
    policy: Object = {
        "rdzvBackend": "c10d",
        "rdzvId": intent.name,
        "minReplicas": intent.pods.least,
        "maxReplicas": intent.pods.most,
        "maxRestarts": intent.limits.retries,
    }
    pod = serving(intent, _pod(intent, list(intent.command)), which=ANY)
    replicas: Object = {"Worker": _replica(intent, intent.pods.wanted, pod)}
    return {"elasticPolicy": policy, "pytorchReplicaSpecs": replicas}


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
            "ports": [{"name": "rendezvous", "port": PORT}],
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
            "activeDeadlineSeconds": limits.running_s,
            "ttlSecondsAfterFinished": limits.kept_s,
            "template": _template(intent),
        },
    }


def _template(intent: JobSpec) -> Object:
    argv = torchrun_arguments(intent, rank="$(JOB_COMPLETION_INDEX)", master=f"{intent.name}-0.{intent.name}")
    program: list[Json] = [require_torch(intent).program]
    ports: list[Json] = [{"containerPort": PORT, "name": "rendezvous"}]
    container = torchrun_container(
        intent, "pytorch", command=program, args=argv, ports=ports, env=variables(intent)
    )
    pods = template(intent, container, subdomain=intent.name, restartPolicy="Never")
    return serving(intent, pods, which=which_pod(intent, Target.JOB))


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
        "activeDeadlineSeconds": limits.running_s,
        "ttlSecondsAfterFinished": limits.kept_s,
    }


def _hyperpod_template(intent: JobSpec) -> Object:
    torch = require_torch(intent)
    argv: list[Json] = [f"--nnodes={intent.pods.wanted}", f"--nproc_per_node={torch.procs}"]
    argv += ["--tee=3", "--log_dir=/tmp/hyperpod", *intent.command]
    ports: list[Json] = [{"containerPort": AGENT, "name": "agent"}]
    program: list[Json] = [torch.program]
    container = torchrun_container(
        intent, "pytorch", command=program, args=argv, ports=ports, env=variables(intent)
    )
    return serving(intent, template(intent, container, affinity=healthy_placement(intent)), which=ANY)

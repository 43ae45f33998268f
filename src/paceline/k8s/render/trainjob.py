"""The TrainJob of Kubeflow Trainer 2.3, `trainer.kubeflow.org/v1alpha1`.

Either with its own runtime, which holds everything that a TrainJob cannot express; or for
an existing runtime, patched.
"""

from paceline.k8s.render.metrics import serving, which_pod
from paceline.k8s.render.pod import (
    GRACE_S,
    Object,
    deadline,
    job_metadata,
    labels,
    metadata,
    mounts,
    placement,
    pod_security,
    rendezvous_id,
    require_torch,
    restarts_of_processes,
    template,
    torchrun_container,
    torchrun_resources,
    torchrun_security,
    variables,
    volumes,
)
from paceline.k8s.spec.job import JobSpec, Rendezvous, Target
from paceline.plan.codec import Json

# Kubeflow Trainer makes a JobSet of it: one Job with one pod for each node. When a pod
# fails the JobSet starts all of them again, so nothing else may restart anything.

NODE = "node"  # Trainer's own name for the job and for the container


def render_runtime(intent: JobSpec) -> Object:
    limits = intent.limits
    job: Object = {"backoffLimit": 0}
    pods = template(intent, torchrun_container(intent, NODE), restartPolicy="Never")
    job["template"] = serving(intent, pods, which=which_pod(intent, Target.TRAINJOB))
    jobs: Object = {"failurePolicy": {"maxRestarts": limits.retries}} if limits.retries else {}
    jobs["replicatedJobs"] = [{"name": NODE, "template": {"metadata": trainer_step(), "spec": job}}]
    where = metadata(intent, intent.name)
    where["labels"] = {**labels(intent), "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": where,
        "spec": {
            "mlPolicy": {"numNodes": intent.pods.wanted, "torch": {}},
            "template": {"spec": jobs},
        },
    }


def trainer_step() -> Object:
    """Metadata of the job whose pods and container are those of the TrainJob's `trainer`."""
    return {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}


GROUP = "trainer.kubeflow.org"
MANAGER = "paceline.dev/launcher"
CLUSTER = "ClusterTrainingRuntime"
NAMESPACED = "TrainingRuntime"


def render_trainjob(intent: JobSpec) -> list[Object]:
    return (
        [_job(intent)]
        if require_torch(intent).options.runtime is not None
        else [render_runtime(intent), _job(intent)]
    )


def _job(intent: JobSpec) -> Object:
    torch = require_torch(intent)
    spec: Object = {"runtimeRef": _runtime(intent), **deadline(intent)}
    spec["trainer"] = {
        "image": intent.image,
        "numNodes": intent.pods.wanted,
        "numProcPerNode": torch.procs,
        "command": [torch.program],
        "args": _torchrun_arguments(intent),
        "env": variables(intent),
        "resourcesPerNode": torchrun_resources(intent),
    }
    if torch.options.runtime is not None:
        spec |= _patches(intent)
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": job_metadata(intent),
        "spec": spec,
    }


def _runtime(intent: JobSpec) -> Object:
    runtime = require_torch(intent).options.runtime
    if runtime is None:
        return {"name": intent.name, "kind": NAMESPACED, "apiGroup": GROUP}
    kind, _, name = runtime.rpartition("/")
    return {"name": name, "kind": kind or CLUSTER, "apiGroup": GROUP}


def _torchrun_arguments(intent: JobSpec) -> list[Json]:
    """Ranks and sizes are in PET_* variables, which torchrun reads."""
    torch = require_torch(intent)
    if torch.is_raw:
        return list(intent.command[1:])
    flags = intent.rendezvous
    argv = [f"--rdzv_id={rendezvous_id(intent)}"]
    if torch.rendezvous is Rendezvous.C10D:
        endpoint = flags.rdzv_endpoint or "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
        argv += ["--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}"]
    argv += [] if flags.master_addr is None else [f"--master_addr={flags.master_addr}"]
    argv += [] if flags.master_port is None else [f"--master_port={flags.master_port}"]
    return [*argv, *restarts_of_processes(intent), *intent.command]


def _patches(intent: JobSpec) -> Object:
    pod: Object = {"securityContext": pod_security(intent), **_pod(intent)}
    pod["terminationGracePeriodSeconds"] = GRACE_S
    fields = intent.fields
    metadata: Object = {
        "labels": {**labels(intent), **dict(fields.labels)},
        "annotations": {"sidecar.istio.io/inject": "false", **dict(fields.annotations)},
    }
    template: Object = {"metadata": metadata, "spec": pod}
    node: Object = {"name": NODE, "template": {"spec": {"template": template}}}
    patch: Object = {"template": {"spec": {"replicatedJobs": [node]}}}
    return {"runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": patch}]}


def _pod(intent: JobSpec) -> Object:
    torch = require_torch(intent)
    pod: Object = {} if torch.service_account is None else {"serviceAccountName": torch.service_account}
    if intent.pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": intent.pull_secret}]
    node: Object = {"name": NODE, "volumeMounts": mounts(intent), **torchrun_security(intent)}
    return {**pod, **placement(intent), "volumes": volumes(intent), "containers": [node]}

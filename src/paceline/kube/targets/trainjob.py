"""How is a run written down for Kubeflow Trainer 2.1, 2.2 or 2.3? TrainJob, `trainer.kubeflow.org/v1alpha1`.

Either with a runtime of its own, which holds everything a TrainJob cannot say; or for a
runtime that is there already, patched as far as its version allows.
Every resource is written in the TrainJob: up to 2.2 it replaces the runtime's whole.
"""

from paceline.kube.intent import Intent, Rendezvous
from paceline.kube.parts import GRACE_S, Object, labels, pod_security
from paceline.kube.targets.training_runtime import NODE, render_runtime
from paceline.kube.torch_parts import (
    job_metadata,
    mounts,
    placement,
    resources,
    security,
    torch_of,
    variables,
    volumes,
)
from paceline.plan.codec import Json

GROUP = "trainer.kubeflow.org"
MANAGER = "paceline.dev/launcher"
CLUSTER, NAMESPACED = "ClusterTrainingRuntime", "TrainingRuntime"


def render(intent: Intent) -> list[Object]:
    return [_job(intent)] if torch_of(intent).runtime is not None else [render_runtime(intent), _job(intent)]


def _job(intent: Intent) -> Object:
    torch = torch_of(intent)
    spec: Object = {"runtimeRef": _runtime(intent)}
    if torch.trainer != "2.1":  # which has no deadline of its own
        spec["activeDeadlineSeconds"] = intent.limits.running_s
    spec["trainer"] = {
        "image": intent.image,
        "numNodes": intent.pods.wanted,
        "numProcPerNode": torch.procs,
        "command": [torch.program],
        "args": _words(intent),
        "env": variables(intent),
        "resourcesPerNode": resources(intent),
    }
    if torch.runtime is not None:
        spec |= _overrides(intent) if torch.trainer == "2.1" else _patches(intent)
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": job_metadata(intent),
        "spec": spec,
    }


def _runtime(intent: Intent) -> Object:
    said = torch_of(intent).runtime
    if said is None:
        return {"name": intent.name, "kind": NAMESPACED, "apiGroup": GROUP}
    kind, _, name = said.rpartition("/")
    return {"name": name, "kind": kind or CLUSTER, "apiGroup": GROUP}


def _words(intent: Intent) -> list[Json]:
    """Who is who stands in PET_* variables, which torchrun reads by itself."""
    words: list[Json] = [f"--rdzv_id={intent.name}"]
    if torch_of(intent).rendezvous is Rendezvous.C10D:
        endpoint = "--rdzv_endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
        words += ["--rdzv_backend=c10d", endpoint, f"--max_restarts={intent.limits.retries}"]
    return [*words, *intent.command]


def _overrides(intent: Intent) -> Object:
    template: Object = {"metadata": _pod_metadata(intent), "spec": _pod(intent)}
    return {"podTemplateOverrides": [{"targetJobs": [{"name": NODE}], **template}]}


def _patches(intent: Intent) -> Object:
    pod: Object = {"securityContext": pod_security(intent), **_pod(intent)}
    if torch_of(intent).trainer == "2.3":
        pod["terminationGracePeriodSeconds"] = GRACE_S
    template: Object = {"metadata": _pod_metadata(intent), "spec": pod}
    node: Object = {"name": NODE, "template": {"spec": {"template": template}}}
    patch: Object = {"template": {"spec": {"replicatedJobs": [node]}}}
    return {"runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": patch}]}


def _pod_metadata(intent: Intent) -> Object:
    return {"labels": labels(intent), "annotations": {"sidecar.istio.io/inject": "false"}}


def _pod(intent: Intent) -> Object:
    torch = torch_of(intent)
    pod: Object = {} if torch.service_account is None else {"serviceAccountName": torch.service_account}
    if intent.pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": intent.pull_secret}]
    node: Object = {"name": NODE, "volumeMounts": mounts(intent)}
    if torch.trainer != "2.1":
        node |= security(intent)
    return {**pod, **placement(intent), "volumes": volumes(intent), "containers": [node]}

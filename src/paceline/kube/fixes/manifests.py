"""Which objects do safe fixes make? Small ones in the user's namespace, labelled as ours."""

from dataclasses import dataclass

from paceline.kube.checks.need import Target
from paceline.kube.parts import USER, Object
from paceline.kube.rights import all_rights_for, role_and_binding

MANAGED = "app.kubernetes.io/managed-by"
OURS: Object = {"app.kubernetes.io/name": "paceline", MANAGED: "paceline"}
RUNTIME = "paceline-torch"
HF_SECRET = "hf-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAsked:
    name: str
    size: str
    is_shared: bool = False  # written to by several nodes
    is_read_only: bool = False  # by jobs; whoever fills it writes to it, too
    storage_class: str | None = None


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(OURS)}}


def claim(asked: ClaimAsked, space: str) -> Object:
    storage: Object = {} if asked.storage_class is None else {"storageClassName": asked.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _about(asked.name, space),
        "spec": {
            "accessModes": list(_modes(asked)),
            **storage,
            "resources": {"requests": {"storage": asked.size}},
        },
    }


def _modes(asked: ClaimAsked) -> list[str]:
    if asked.is_read_only:
        return ["ReadOnlyMany", "ReadWriteMany"]
    return ["ReadWriteMany"] if asked.is_shared else ["ReadWriteOnce"]


def hugging_face(token: str, space: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _about(HF_SECRET, space),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def identity(account: str, space: str, target: Target) -> list[Object]:
    """An account, and a role that lets it run, follow and remove jobs of one kind in one namespace."""
    name = f"paceline-{target.value}"
    subject: Object = {"kind": "ServiceAccount", "name": account, "namespace": space}
    role, binding = role_and_binding(name, all_rights_for(target.resource), space, subject)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _about(account, space)},
        {**role, "metadata": _about(name, space)},
        {**binding, "metadata": _about(f"{name}-{account}", space)},
    ]


def runtime(image: str, space: str) -> Object:
    """For torch, in one namespace: a TrainJob says image, command and size itself."""
    user: Object = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER}
    secure: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    sizes: Object = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    pod: Object = {
        "automountServiceAccountToken": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "restartPolicy": "Never",
        "containers": [{"name": "node", "image": image, "resources": sizes, "securityContext": secure}],
    }
    step: Object = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job: Object = {"metadata": step, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    about = _about(RUNTIME, space)
    about["labels"] = {**OURS, "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": about,
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
        },
    }


def _about(name: str, space: str) -> Object:
    return {"name": name, "namespace": space, "labels": dict(OURS)}

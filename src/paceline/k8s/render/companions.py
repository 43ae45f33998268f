"""Objects that come with a job on request: settings, claims, an identity, a network policy."""

from collections.abc import Sequence

from paceline.k8s.render.metrics import scraping
from paceline.k8s.render.pod import GPUS, Object, claim_name, config_name, labels, metadata, require_torch
from paceline.k8s.render.ray import account_name, render_policy, scaling_rules
from paceline.k8s.spec.job import Claim, JobSpec

RBAC = "rbac.authorization.k8s.io"
DEVICE_CLASS = "gpu.nvidia.com"
SCRIPT_SHA256 = "paceline.dev/script-sha256"
# Follow the jobs of a namespace.
FOLLOW: Object = {
    "apiGroups": [""],
    "resources": ["pods", "pods/log", "events"],
    "verbs": ["get", "list", "watch"],
}


def render_companions(intent: JobSpec) -> list[Object]:
    """Companions in order of creation."""
    torch = require_torch(intent)
    objects = [*render_files(intent), *(_claim(intent, claim) for claim in torch.claims)]
    objects += [_devices(intent)] if torch.options.gpu_claims else []
    objects += render_identity(intent, intent.name, [FOLLOW]) if torch.options.rbac else []
    return [*objects, _policy(intent)] if torch.options.network_policy else objects


def render_ray_companions(intent: JobSpec) -> list[Object]:
    """Those of Ray's pods."""
    objects = [*render_files(intent), *_render_claims(intent)]
    if intent.has_identity:
        objects += render_identity(intent, account_name(intent), [FOLLOW, *scaling_rules(intent)])
    return [*objects, render_policy(intent)] if intent.has_network_policy else objects


def _render_claims(intent: JobSpec) -> list[Object]:
    return [_claim(intent, claim) for claim in intent.claims]


def render_files(intent: JobSpec) -> list[Object]:
    """The ConfigMap of the files that travel with the job, if there are any."""
    if not intent.files:
        return []
    hashed: Object = {} if intent.script_sha256 is None else {SCRIPT_SHA256: intent.script_sha256}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                **metadata(intent, config_name(intent)),
                **({"annotations": hashed} if hashed else {}),
            },
            "data": {file.name: file.text for file in intent.files},
        }
    ]


def _claim(intent: JobSpec, claim: Claim) -> Object:
    storage: Object = {} if claim.storage_class is None else {"storageClassName": claim.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(intent, claim.name),
        "spec": {
            "accessModes": list(claim.modes),
            **storage,
            "resources": {"requests": {"storage": claim.size}},
        },
    }


def _devices(intent: JobSpec) -> Object:
    """Template of each pod's claim: GPUs of one node, by NVIDIA's DRA driver."""
    exactly: Object = {
        "deviceClassName": DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": intent.worker.gpus,
    }
    request: Object = {"name": GPUS, "exactly": exactly}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(intent, claim_name(intent)),
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def render_identity(intent: JobSpec, name: str, rules: Sequence[Object]) -> list[Object]:
    """A service account with these rights in its namespace; the pods get no token of it."""
    account: Object = {"kind": "ServiceAccount", "name": name, "namespace": intent.namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(intent, name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": metadata(intent, name),
            "rules": list(rules),
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(intent, name),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [account],
        },
    ]


def _policy(intent: JobSpec) -> Object:
    """torch's store, gloo and NCCL do not authenticate peers, so only this job's pods may reach them."""
    own_pods: Object = {"matchLabels": labels(intent)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(intent, intent.name),
        "spec": {
            "podSelector": own_pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own_pods}]}, *scraping(intent)],
        },
    }

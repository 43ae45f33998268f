"""What all objects of one of our own services share: labels, names, pods without privileges."""

from collections.abc import Iterable

from paceline.k8s.objects import is_part_of
from paceline.k8s.render.pod import USER, Object

CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def labels(component: str, name: str) -> Object:
    return {
        "app.kubernetes.io/name": "paceline",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "paceline",
    }


def object_head(component: str, name: str, namespace: str, version: str, kind: str) -> Object:
    metadata: Object = {"name": name, "namespace": namespace, "labels": labels(component, name)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def restricted_pod(pull_secret: str | None) -> Object:
    """Fields of every pod but its containers: no token, no privileges."""
    secrets: Object = {} if pull_secret is None else {"imagePullSecrets": [{"name": pull_secret}]}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **secrets,
    }


def resource_requirements(cpu: str, memory: str) -> Object:
    """Memory has a limit; CPU has only a request, so that idle CPUs can be used."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


KUSTOMIZATION_FILE = "kustomization.yaml"


def kustomization(namespace: str, files: Iterable[str]) -> Object:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": list(files),
    }


def merge_patch(manifest: Object, current: Object) -> Object:
    """Merge patch from `current` to the manifest; empty if nothing differs."""
    changed: Object = {}
    for name, value in manifest.items():
        existing = current.get(name)
        if isinstance(value, dict) and isinstance(existing, dict):
            inner = merge_patch(value, existing)
            changed |= {name: inner} if inner else {}
        elif not is_part_of(value, existing):
            changed[name] = value
    return changed

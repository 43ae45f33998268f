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
    about: Object = {"name": name, "namespace": namespace, "labels": labels(component, name)}
    return {"apiVersion": version, "kind": kind, "metadata": about}


def restricted_pod(pull_secret: str | None) -> Object:
    """What every pod of ours says before its containers."""
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
    """Memory is bounded; a CPU that nobody else needs may be used."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


KUSTOMIZATION_FILE = "kustomization.yaml"


def kustomization(namespace: str, files: Iterable[str]) -> Object:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": list(files),
    }


def merge_patch(wanted: Object, found: Object) -> Object:
    """Empty: all of it is there."""
    changed: Object = {}
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            inner = merge_patch(value, there)
            changed |= {name: inner} if inner else {}
        elif not is_part_of(value, there):
            changed[name] = value
    return changed

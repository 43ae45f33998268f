"""What do all objects of one of our own services carry? Its labels, its name, and pods without privileges."""

from paceline.kube.parts import USER, Object

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


def head(component: str, name: str, namespace: str, version: str, kind: str) -> Object:
    about: Object = {"name": name, "namespace": namespace, "labels": labels(component, name)}
    return {"apiVersion": version, "kind": kind, "metadata": about}


def restricted(pull_secret: str | None) -> Object:
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


def amounts(cpu: str, memory: str) -> Object:
    """Memory is bounded; a CPU that nobody else needs may be used."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}

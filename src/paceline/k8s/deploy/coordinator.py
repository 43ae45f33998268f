"""The objects of a coordinator: a StatefulSet, its Services, its disruption budget, its network policy.

Pods are numbered from 1, as nodes are: pod NAME-2 is node 2, with the address and the certificate of node 2.
Each container sees its own key and no other, and no key is in these objects: they stay in a Secret.
See docs/guides/coordinator.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paceline.k8s.deploy import service
from paceline.k8s.deploy import service as kustomize
from paceline.k8s.render.pod import Object
from paceline.k8s.spec.job import COORDINATOR_PORT, clients_secret
from paceline.plan.codec import Json

PORT = COORDINATOR_PORT
DATA = "/data"
PKI = "/pki"
GRACE_S = 30
_NODE = "NODE"
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"  # set by Kubernetes from 1.28 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    namespace: str
    image: str
    tls_secret: str
    name: str = "paceline-coordinator"
    replicas: int = 3
    storage: str = "1Gi"
    storage_class: str | None = None
    cpu: str = "250m"
    memory: str = "1Gi"
    pull_secret: str | None = None
    spread: Literal["required", "preferred"] = "required"

    @property
    def nodes(self) -> range:
        return range(1, self.replicas + 1)

    def host(self, node: int | str) -> str:
        return f"{self.name}-{node}.{self.name}.{self.namespace}.svc"

    def address(self, node: int | str) -> str:
        return f"{self.host(node)}:{PORT}"


def render(options: Coordinator) -> dict[str, Object]:
    """Manifests by file name, in order of creation."""
    return {
        "service.yaml": _service(options),
        "networkpolicy.yaml": _policy(options),
        "poddisruptionbudget.yaml": _budget(options),
        "statefulset.yaml": _set(options),
    }


def kustomization(options: Coordinator) -> Object:
    return kustomize.kustomization(options.namespace, render(options))


def secret_keys(options: Coordinator) -> list[str]:
    """Keys of the Secret; the private key of the authority is not included."""
    return ["ca.crt", *(f"node-{node}.{end}" for node in options.nodes for end in ("crt", "key"))]


def secret_commands(options: Coordinator) -> list[str]:
    """Commands that create the certificates and their Secret."""
    nodes = " ".join(f"--node {node}={options.host(node)}" for node in options.nodes)
    return [
        f"paceline coordinator init-pki --out pki {nodes}",
        _create_secret(options, options.tls_secret, secret_keys(options)),
        _create_secret(options, clients_secret(options.name), CLIENT_KEYS),
    ]


# Of the Secret that elastic jobs mount: a host sees the worker's certificate, the command both.
CLIENT_KEYS = ("ca.crt", "admin.crt", "admin.key", "worker.crt", "worker.key")


def _create_secret(options: Coordinator, name: str, keys: Iterable[str]) -> str:
    files = " ".join(f"--from-file=pki/{key}" for key in keys)
    return f"kubectl -n {options.namespace} create secret generic {name} {files}"


def labels(options: Coordinator) -> Object:
    return service.labels("coordinator", options.name)


def _head(options: Coordinator, version: str, kind: str) -> Object:
    return service.object_head("coordinator", options.name, options.namespace, version, kind)


def _selector(options: Coordinator) -> Object:
    return {"matchLabels": labels(options)}


def _service(options: Coordinator) -> Object:
    """Headless: it gives each pod a name that stays. Nodes must find each other before they are ready."""
    return {
        **_head(options, "v1", "Service"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(options),
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc"}],
        },
    }


def _policy(options: Coordinator) -> Object:
    """Ingress: nodes, and pods made by paceline. Egress: nodes, and DNS."""
    ours: Object = {"matchLabels": {"app.kubernetes.io/managed-by": "paceline"}}
    port: list[Json] = [{"port": PORT, "protocol": "TCP"}]
    names: list[Json] = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    return {
        **_head(options, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": _selector(options),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": ours}], "ports": port}],
            "egress": [{"to": [{"podSelector": _selector(options)}], "ports": port}, {"ports": names}],
        },
    }


def _budget(options: Coordinator) -> Object:
    """A drain evicts one pod at a time, so that a majority stays. A pod that is not ready may be evicted."""
    return {
        **_head(options, "policy/v1", "PodDisruptionBudget"),
        "spec": {
            "maxUnavailable": 1,
            "selector": _selector(options),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _set(options: Coordinator) -> Object:
    storage: Object = {} if options.storage_class is None else {"storageClassName": options.storage_class}
    claim: Object = {
        "metadata": {"name": "data", "labels": labels(options)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **storage,
            "resources": {"requests": {"storage": options.storage}},
        },
    }
    return {
        **_head(options, "apps/v1", "StatefulSet"),
        "spec": {
            "replicas": options.replicas,
            "ordinals": {"start": 1},
            "serviceName": options.name,
            # All at once: after a blackout a majority must start together, and no pod is ready before that.
            "podManagementPolicy": "Parallel",
            "minReadySeconds": 10,
            # A node that has lost its folder must not rejoin under its number: its votes are lost.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": _selector(options),
            "template": {"metadata": {"labels": labels(options)}, "spec": _pod(options)},
            "volumeClaimTemplates": [claim],
        },
    }


def _pod(options: Coordinator) -> Object:
    # Read by the group alone: a key that others could read is refused.
    keys: Object = {"secretName": options.tls_secret, "defaultMode": 0o440, "items": _items(options)}
    return {
        **service.restricted_pod(options.pull_secret),
        "terminationGracePeriodSeconds": GRACE_S,
        "affinity": _affinity(options),
        "containers": [_container(options)],
        "volumes": [{"name": "pki", "secret": keys}, {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }


def _items(options: Coordinator) -> list[Json]:
    """A folder for each node, of which its pod mounts one."""
    return [
        {"key": name, "path": f"node-{node}/{name}"}
        for node in options.nodes
        for name in ("ca.crt", f"node-{node}.crt", f"node-{node}.key")
    ]


def _affinity(options: Coordinator) -> Object:
    """One machine takes one node with it, and no more."""
    term: Object = {"labelSelector": _selector(options), "topologyKey": "kubernetes.io/hostname"}
    if options.spread == "required":
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighed: Object = {"weight": 100, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighed]}}


def _container(options: Coordinator) -> Object:
    # A probe's words are not filled in from labels, so a shell does it.
    status = f"exec paceline coordinator status --only --at {options.address('${NODE}')}"
    status += f" --tls-dir {PKI} --tls-name node-${{NODE}}"
    answers: Object = {"tcpSocket": {"port": "grpc"}}
    return {
        "name": "coordinator",
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["paceline"],
        "args": list(arguments(options)),
        "env": [{"name": _NODE, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}],
        "ports": [{"name": "grpc", "containerPort": PORT}],
        "resources": service.resource_requirements(options.cpu, options.memory),
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**answers, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {
            "exec": {"command": ["sh", "-c", status]},
            "periodSeconds": 15,
            "timeoutSeconds": 10,
            "failureThreshold": 2,
        },
        "securityContext": dict(service.CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "pki", "mountPath": PKI, "subPathExpr": f"node-$({_NODE})", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def arguments(options: Coordinator) -> list[str]:
    """Arguments of `paceline`; Kubernetes expands $(NODE)."""
    peers = ",".join(f"{node}={options.address(node)}" for node in options.nodes)
    argv = ["coordinator", "start", "--id", f"$({_NODE})", "--peers", peers]
    # A subfolder of the volume: a file system creates lost+found at its root.
    argv += ["--data-dir", f"{DATA}/node", "--cluster", options.name]
    return [*argv, "--listen", f"0.0.0.0:{PORT}", "--tls-dir", PKI]

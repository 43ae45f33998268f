"""The objects of a coordinator: a StatefulSet, its Services, its disruption budget, its network policy.

Pods are numbered from 1, as nodes are: pod NAME-2 is node 2, with the address and the certificate of node 2.
Each container sees its own key and no other, and no key is in these objects: they stay in a Secret.
See docs/guides/deploy.md.
"""

from dataclasses import dataclass
from typing import Literal

from paceline.k8s.deploy import service
from paceline.k8s.deploy import service as kustomize
from paceline.k8s.render.pod import Object
from paceline.plan.codec import Json

PORT = 7400
DATA, PKI = "/data", "/pki"
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


def render(asked: Coordinator) -> dict[str, Object]:
    """By the name of its file, in the order in which they must exist."""
    return {
        "service.yaml": _service(asked),
        "networkpolicy.yaml": _policy(asked),
        "poddisruptionbudget.yaml": _budget(asked),
        "statefulset.yaml": _set(asked),
    }


def kustomization(asked: Coordinator) -> Object:
    return kustomize.kustomization(asked.namespace, render(asked))


def secret_keys(asked: Coordinator) -> list[str]:
    """What the Secret must hold; the authority's own key is none of it."""
    return ["ca.crt", *(f"node-{node}.{end}" for node in asked.nodes for end in ("crt", "key"))]


def secret_commands(asked: Coordinator) -> list[str]:
    """What makes the certificates, and the Secret of them."""
    nodes = " ".join(f"--node {node}={asked.host(node)}" for node in asked.nodes)
    files = " ".join(f"--from-file=pki/{name}" for name in secret_keys(asked))
    return [
        f"paceline coordinator init-pki --out pki {nodes}",
        f"kubectl -n {asked.namespace} create secret generic {asked.tls_secret} {files}",
    ]


def labels(asked: Coordinator) -> Object:
    return service.labels("coordinator", asked.name)


def _head(asked: Coordinator, version: str, kind: str) -> Object:
    return service.object_head("coordinator", asked.name, asked.namespace, version, kind)


def _mine(asked: Coordinator) -> Object:
    return {"matchLabels": labels(asked)}


def _service(asked: Coordinator) -> Object:
    """Headless: it gives each pod a name that stays. Nodes must find each other before they are ready."""
    return {
        **_head(asked, "v1", "Service"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(asked),
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc"}],
        },
    }


def _policy(asked: Coordinator) -> Object:
    """In: nodes, and pods that we made. Out: nodes, and whoever answers what their names mean."""
    ours: Object = {"matchLabels": {"app.kubernetes.io/managed-by": "paceline"}}
    port: list[Json] = [{"port": PORT, "protocol": "TCP"}]
    names: list[Json] = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    return {
        **_head(asked, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": _mine(asked),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": ours}], "ports": port}],
            "egress": [{"to": [{"podSelector": _mine(asked)}], "ports": port}, {"ports": names}],
        },
    }


def _budget(asked: Coordinator) -> Object:
    """Whoever empties nodes takes one of ours at a time: a majority stays. One that is down may go."""
    return {
        **_head(asked, "policy/v1", "PodDisruptionBudget"),
        "spec": {
            "maxUnavailable": 1,
            "selector": _mine(asked),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _set(asked: Coordinator) -> Object:
    storage: Object = {} if asked.storage_class is None else {"storageClassName": asked.storage_class}
    claim: Object = {
        "metadata": {"name": "data", "labels": labels(asked)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **storage,
            "resources": {"requests": {"storage": asked.storage}},
        },
    }
    return {
        **_head(asked, "apps/v1", "StatefulSet"),
        "spec": {
            "replicas": asked.replicas,
            "ordinals": {"start": 1},
            "serviceName": asked.name,
            # All at once: after a blackout a majority must come up together, and nobody is ready before.
            "podManagementPolicy": "Parallel",
            "minReadySeconds": 10,
            # A node that has lost its folder must not come back under its number: it has forgotten its votes.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": _mine(asked),
            "template": {"metadata": {"labels": labels(asked)}, "spec": _pod(asked)},
            "volumeClaimTemplates": [claim],
        },
    }


def _pod(asked: Coordinator) -> Object:
    # Read by the group alone: a key that others could read is refused.
    keys: Object = {"secretName": asked.tls_secret, "defaultMode": 0o440, "items": _items(asked)}
    return {
        **service.restricted_pod(asked.pull_secret),
        "terminationGracePeriodSeconds": GRACE_S,
        "affinity": _affinity(asked),
        "containers": [_container(asked)],
        "volumes": [{"name": "pki", "secret": keys}, {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }


def _items(asked: Coordinator) -> list[Json]:
    """A folder for each node, of which its pod mounts one."""
    return [
        {"key": name, "path": f"node-{node}/{name}"}
        for node in asked.nodes
        for name in ("ca.crt", f"node-{node}.crt", f"node-{node}.key")
    ]


def _affinity(asked: Coordinator) -> Object:
    """One machine takes one node with it, and no more."""
    term: Object = {"labelSelector": _mine(asked), "topologyKey": "kubernetes.io/hostname"}
    if asked.spread == "required":
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighed: Object = {"weight": 100, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighed]}}


def _container(asked: Coordinator) -> Object:
    # A probe's words are not filled in from labels, so a shell does it.
    status = f"exec paceline coordinator status --only --at {asked.address('${NODE}')}"
    status += f" --tls-dir {PKI} --tls-name node-${{NODE}}"
    answers: Object = {"tcpSocket": {"port": "grpc"}}
    return {
        "name": "coordinator",
        "image": asked.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["paceline"],
        "args": list(arguments(asked)),
        "env": [{"name": _NODE, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}],
        "ports": [{"name": "grpc", "containerPort": PORT}],
        "resources": service.resource_requirements(asked.cpu, asked.memory),
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


def arguments(asked: Coordinator) -> list[str]:
    """What follows `paceline`; $(NODE) is filled in by Kubernetes."""
    peers = ",".join(f"{node}={asked.address(node)}" for node in asked.nodes)
    words = ["coordinator", "start", "--id", f"$({_NODE})", "--peers", peers]
    # Not the volume itself: a file system puts lost+found there.
    words += ["--data-dir", f"{DATA}/node", "--cluster", asked.name]
    return [*words, "--listen", f"0.0.0.0:{PORT}", "--tls-dir", PKI]

"""The next attempt of a job: its manifest, without bad nodes and with more of what was short.

Pods of the attempt before are removed by force where no kubelet is left to end them.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from paceline.k8s.diagnose.pods import condition, is_terminating, node_of
from paceline.k8s.diagnose.snapshot import Object
from paceline.k8s.objects import mapping, mappings, read_quantity, read_time
from paceline.k8s.submit.job_state import RUN_LABEL, JobAnnotations, WatchLease, lease_patch, read_annotations
from paceline.plan.codec import Json

HOSTNAME_LABEL = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MESH = "sidecar.istio.io/inject"
_MEMORY_GROWTH = Decimal("1.5")
# On top of the 40 s or so after which a control plane calls a node lost whose lease is not renewed.
LOST_FOR_S = 30.0
_LOST_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")
Tree = dict[str, Any]  # Any: a manifest is changed here, at places that are found by their names


def next_manifest(manifest: Mapping[str, object], excluded: Sequence[str], changes: Sequence[str]) -> Tree:
    """`changes` may repeat a change: it is applied as often."""
    copied: Tree = copy.deepcopy(dict(manifest))
    for pod in _pod_specs(copied):
        if excluded:
            _exclude(pod, excluded)
        for change in changes:
            if change == "shared-memory":
                _grow_shared_memory(pod)
            elif change == "memory":
                _grow_memory(pod)
    for change in changes:
        if change == "mesh":
            for template in _templates(copied):
                metadata = template.setdefault("metadata", {})
                metadata.setdefault("annotations", {})[_MESH] = "false"
    return copied


def can_exclude(manifest: Mapping[str, object]) -> bool:
    """Whether nodes can be excluded. A TrainJob for a cluster's runtime has no pod template for it."""
    return any(True for _ in _pod_specs(manifest))


def _walk(value: object) -> Iterator[Tree]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _pod_specs(value: object) -> Iterator[Tree]:
    return (node for node in _walk(value) if isinstance(node.get("containers"), list))


def _templates(value: object) -> Iterator[Tree]:
    return (node for node in _walk(value) if "containers" in (node.get("spec") or {}))


def _exclude(pod: Tree, nodes: Sequence[str]) -> None:
    rule = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(nodes)}
    required = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:  # they are alternatives: each must exclude the nodes
        term.setdefault("matchExpressions", []).append(rule)


def _grow_shared_memory(pod: Tree) -> None:
    for volume in pod.get("volumes", []):
        inner = volume.get("emptyDir") or {}
        size = read_quantity(inner.get("sizeLimit"))
        if inner.get("medium") == "Memory" and size is not None:
            inner["sizeLimit"] = _mebi(size * 2)


def _grow_memory(pod: Tree) -> None:
    for container in pod["containers"]:
        for amounts in (container.get("resources") or {}).values():
            size = read_quantity(amounts.get("memory")) if isinstance(amounts, dict) else None
            if size is not None:
                amounts["memory"] = _mebi(size * _MEMORY_GROWTH)


def _mebi(amount: Decimal) -> str:
    return f"{int(amount / (1024 * 1024))}Mi"


def reason_to_force(pod: Object, node: Object | None, now_s: float) -> str:
    """Why a pod that is being deleted may be removed without its kubelet; empty: it may not. `node` is None
    if the cluster no longer has such a node.

    The API server keeps a pod until its kubelet has ended it. A lost node has no kubelet, and a pod of the
    same name cannot be created meanwhile. A node that returns ends containers of a pod that no longer exists.
    """
    name = node_of(pod)
    if not is_terminating(pod) or not name:
        return ""
    if node is None:
        return f"its node {name} is no longer in the cluster"
    ready = condition(node, "Ready")
    since_s = read_time(ready.get("lastTransitionTime"))
    taints = [taint for taint in mappings(node, "spec", "taints") if taint.get("key") in _LOST_TAINTS]
    if ready.get("status") != "Unknown" and not taints:
        return ""
    known = [since_s, *(read_time(taint.get("timeAdded")) for taint in taints)]
    first_s = min((at_s for at_s in known if at_s is not None), default=None)
    if first_s is None or now_s - first_s < LOST_FOR_S:
        return ""
    return (
        f"its node {name} has not reported for {now_s - first_s:.0f} s ({ready.get('reason', 'unreachable')})"
    )


# Between the deletion of a gang and its next creation the job does not exist. A ConfigMap holds the manifest
# of the next attempt, the pods that must be deleted first, and the lease of the watcher that creates it. When
# the lease has expired, another watcher resumes.

LABELS = {"app.kubernetes.io/managed-by": "paceline", "app.kubernetes.io/component": "next-attempt"}
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())
_JOB = "job"
_MANIFEST = "manifest"
_PODS = "pods"
_SAYS = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAttempt:
    job: str
    manifest: Object  # marked, as it is to be created
    mark: JobAnnotations
    pods: tuple[str, ...]  # pods of the previous attempt: the new ones have the same names
    says: str

    @property
    def attempt(self) -> int:
        return self.mark.attempts.number


def pending_name(job: str) -> str:
    return f"{job}-next-attempt"


def pending_config_map(
    job: str, namespace: str, manifest: Object, pods: Sequence[str], announcement: str, watch: WatchLease
) -> dict[str, Json]:
    """The ConfigMap. `watch`: lease of the watcher that creates the attempt."""
    notes = mapping(lease_patch(watch), "metadata", "annotations")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": pending_name(job),
            "namespace": namespace,
            "labels": {**LABELS, RUN_LABEL: job[:63]},
            "annotations": {name: str(value) for name, value in notes.items()},
        },
        "data": {
            _JOB: job,
            _MANIFEST: json.dumps(manifest, separators=(",", ":")),
            _PODS: json.dumps(list(pods)),
            _SAYS: announcement,
        },
    }


def read_pending(config_map: Object) -> PendingAttempt | None:
    """None for a ConfigMap that paceline did not write, or that is damaged."""
    data = mapping(config_map, "data")
    try:
        manifest = json.loads(str(data[_MANIFEST]))
        pods = json.loads(str(data[_PODS]))
    except (KeyError, ValueError):
        return None
    mark = read_annotations(manifest) if isinstance(manifest, dict) else None
    if mark is None or not isinstance(pods, list):
        return None
    return PendingAttempt(
        job=str(data.get(_JOB, "")),
        manifest=manifest,
        mark=mark,
        pods=tuple(map(str, pods)),
        says=str(data.get(_SAYS, "")),
    )

"""What does the next attempt look like? As it was sent, less bad nodes, more of what was short."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from paceline.kube.words import read_quantity

HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MESH = "sidecar.istio.io/inject"
# The others of diagnosis/retry.py need something that is not in a manifest.
CAN_CHANGE = frozenset({"shared-memory", "mesh"})
Tree = dict[str, Any]  # Any: a manifest is changed here, at places that are found by their names


def next_manifest(manifest: Mapping[str, object], excluded: Sequence[str], changes: Sequence[str]) -> Tree:
    """`changes` may name one several times: it is made so often."""
    made: Tree = copy.deepcopy(dict(manifest))
    for pod in _pod_specs(made):
        if excluded:
            _exclude(pod, excluded)
        for change in changes:
            if change == "shared-memory":
                _grow_shared_memory(pod)
    for change in changes:
        if change == "mesh":
            for template in _templates(made):
                about = template.setdefault("metadata", {})
                about.setdefault("annotations", {})[_MESH] = "false"
    return made


def can_exclude(manifest: Mapping[str, object]) -> bool:
    """A TrainJob for a runtime of the cluster has no pods of its own to say it in."""
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
    return (one for one in _walk(value) if isinstance(one.get("containers"), list))


def _templates(value: object) -> Iterator[Tree]:
    return (one for one in _walk(value) if "containers" in (one.get("spec") or {}))


def _exclude(pod: Tree, nodes: Sequence[str]) -> None:
    rule = {"key": HOST, "operator": "NotIn", "values": list(nodes)}
    required = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:  # they are alternatives: each of them must say it
        term.setdefault("matchExpressions", []).append(rule)


def _grow_shared_memory(pod: Tree) -> None:
    for volume in pod.get("volumes", []):
        inner = volume.get("emptyDir") or {}
        size = read_quantity(inner.get("sizeLimit"))
        if inner.get("medium") == "Memory" and size is not None:
            inner["sizeLimit"] = _mebi(size * 2)


def _mebi(amount: Decimal) -> str:
    return f"{int(amount / (1024 * 1024))}Mi"

"""Capacity: requirements of a job compared with nodes and quotas.

Nodes are counted as if they were empty: a job waits for busy ones. With an autoscaler, no shortage of
nodes counts as permanent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from paceline.k8s.check.nodes import GPU_DRIVER, gpus_by_claim
from paceline.k8s.diagnose.node_fit import (
    allocatable,
    closed_for_now,
    is_autoscaled,
    matching,
    requests,
    too_large,
)
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.objects import mapping, mappings, read_quantity, write_quantity
from paceline.k8s.submit.requirements import Role

# Only NVIDIA's class of whole GPUs is counted: only the cluster defines other classes.

CLAIMED_GPUS = f"{GPU_DRIVER}.deviceclass.resource.k8s.io/devices"  # as named in a ResourceQuota


def with_claims(gang: Sequence[Role], manifests: Sequence[Object]) -> list[Role]:
    """Roles with the devices of their claims added to the requests; the job includes the claim templates."""
    templates = {
        name_of(manifest): _gpus(manifest)
        for manifest in manifests
        if manifest.get("kind") == "ResourceClaimTemplate"
    }
    return [_with_claims(role, templates) for role in gang]


def has_claims(gang: Sequence[Role]) -> bool:
    return any(mappings(role.pod, "spec", "resourceClaims") for role in gang)


def with_devices(nodes: Iterable[Object], slices: Sequence[Object]) -> list[Object]:
    offered = gpus_by_claim(slices)
    return [_with_devices(node, offered.get(name_of(node), 0)) for node in nodes]


def _gpus(template: Object) -> int:
    total = 0
    for request in mappings(template, "spec", "spec", "devices", "requests"):
        exactly = mapping(request, "exactly")
        if exactly.get("deviceClassName") == GPU_DRIVER and exactly.get("allocationMode") != "All":
            count = exactly.get("count", 1)
            total += count if isinstance(count, int) else 1
    return total


def _with_claims(role: Role, templates: dict[str, int]) -> Role:
    names = [
        resource_claim.get("resourceClaimTemplateName")
        for resource_claim in mappings(role.pod, "spec", "resourceClaims")
    ]
    gpus = sum(templates.get(str(name), 0) for name in names)
    if not gpus:
        return role
    spec = mapping(role.pod, "spec")
    claims = {"name": "claims", "resources": {"requests": {CLAIMED_GPUS: str(gpus)}}}
    return replace(
        role, pod={**role.pod, "spec": {**spec, "containers": [*mappings(spec, "containers"), claims]}}
    )


def _with_devices(node: Object, gpus: int) -> Object:
    status = mapping(node, "status")
    return {
        **node,
        "status": {**status, "allocatable": {**mapping(status, "allocatable"), CLAIMED_GPUS: str(gpus)}},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """One line of the table."""

    what: str  # a resource
    where: str  # on which nodes, or in which quota
    needs: str
    has: str
    is_enough: bool


def format_table(rows: Sequence[CapacityRow]) -> list[str]:
    """The rows as aligned text."""
    head = ("what", "where", "needs", "has", "")
    cells = [head, *((r.what, r.where, r.needs, r.has, "" if r.is_enough else "too little") for r in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def check_capacity(roles: Sequence[Role], nodes: Sequence[Object]) -> list[CapacityRow]:
    """Empty if nothing can be decided because nodes are added on demand. Nodes that are cordoned, not
    ready, or tainted against the pod offer no capacity."""
    if is_autoscaled(nodes):
        return []
    rows: list[CapacityRow] = []
    for role in roles:
        rows += _one_pod(role, _open(role, nodes), nodes)
    if all(row.is_enough for row in rows):
        fitting = [node for node in nodes if any(_open(role, [node]) for role in roles)]
        rows += _all_pods(roles, fitting)
    return rows


def _one_pod(role: Role, nodes: Sequence[Object], all_nodes: Sequence[Object]) -> list[CapacityRow]:
    where = f"one node for {role.name}"
    if not nodes:
        return [
            CapacityRow(
                what=_node_selector(role, all_nodes), where=where, needs="1", has="0", is_enough=False
            )
        ]
    short_of = {need.resource: need for need in too_large(role.pod, nodes)}
    rows = []
    for name, amount in requests(role.pod).items():
        most = max(allocatable(node).get(name, Decimal(0)) for node in nodes)
        enough = name not in short_of
        rows.append(_row(name, where, amount, most, is_enough=enough))
    return rows


def _open(role: Role, nodes: Sequence[Object]) -> list[Object]:
    """Nodes that would take such a pod now."""
    closed = closed_for_now(role.pod, nodes)
    return [node for node in matching(role.pod, nodes) if name_of(node) not in closed]


def _node_selector(role: Role, nodes: Sequence[Object]) -> str:
    """Which property no node has."""
    if not nodes:
        return "a node"
    if matching(role.pod, nodes):
        return "a node that is ready and not cordoned"
    chosen = mapping(role.pod, "spec", "nodeSelector")
    if chosen:
        return f"a node with {', '.join(f'{name}={value}' for name, value in chosen.items())}"
    if mapping(role.pod, "spec", "affinity", "nodeAffinity"):
        return "a node that its affinity allows"
    return "a node whose taints it tolerates"


def _all_pods(roles: Sequence[Role], nodes: Sequence[Object]) -> list[CapacityRow]:
    """Pods are laid onto empty nodes, the largest first. That is how much a gang needs at least."""
    left = {name_of(node): dict(allocatable(node)) for node in nodes}
    waiting = [role for role in roles for _ in range(role.count)]
    waiting.sort(key=lambda role: _size(role, nodes), reverse=True)
    placed = 0
    for role in waiting:
        requested = requests(role.pod)
        for node in _open(role, nodes):
            free = left[name_of(node)]
            if all(free.get(name, Decimal(0)) >= amount for name, amount in requested.items()):
                left[name_of(node)] = {name: amount - requested.get(name, 0) for name, amount in free.items()}
                placed += 1
                break
    rows = _totals(roles, nodes)
    if placed < len(waiting) and all(row.is_enough for row in rows):
        places = CapacityRow(
            what="pods", where="all nodes", needs=str(len(waiting)), has=str(placed), is_enough=False
        )
        rows.append(places)
    return rows


def _size(role: Role, nodes: Sequence[Object]) -> Decimal:
    """The largest share of a node, over all resources."""
    best = {
        name: max(allocatable(node).get(name, Decimal(0)) for node in nodes) for name in requests(role.pod)
    }
    return max(
        (amount / max(best[name], Decimal(1)) for name, amount in requests(role.pod).items()),
        default=Decimal(0),
    )


def _totals(roles: Sequence[Role], nodes: Sequence[Object]) -> list[CapacityRow]:
    rows = []
    for name, amount in total_requests(roles).items():
        has = sum((allocatable(node).get(name, Decimal(0)) for node in nodes), Decimal(0))
        rows.append(_row(name, "all nodes", amount, has, is_enough=amount <= has))
    return rows


def total_requests(roles: Sequence[Role]) -> dict[str, Decimal]:
    """Requests of all pods together."""
    total: dict[str, Decimal] = {}
    for role in roles:
        for name, amount in requests(role.pod).items():
            total[name] = total.get(name, Decimal(0)) + amount * role.count
    return total


def quota_rows(roles: Sequence[Role], quotas: Sequence[Object]) -> list[CapacityRow]:
    """Remaining amount of each quota of the namespace. Scoped quotas are left to the server."""
    requested = {f"requests.{name}": amount for name, amount in total_requests(roles).items()}
    requested |= {
        name: amount
        for name, amount in total_requests(roles).items()
        if name in ("cpu", "memory", CLAIMED_GPUS)
    }
    pods = Decimal(sum(role.count for role in roles))
    requested |= {"pods": pods, "count/pods": pods}
    rows = []
    for quota in quotas:
        if mapping(quota, "spec").get("scopes") or mapping(quota, "spec", "scopeSelector"):
            continue
        hard = mapping(quota, "status", "hard") or mapping(quota, "spec", "hard")
        for name, most in hard.items():
            limit = read_quantity(most)
            used = read_quantity(mapping(quota, "status", "used").get(name, "0"))
            if name in requested and limit is not None:
                left = max(limit - (used or Decimal(0)), Decimal(0))
                rows.append(_quota_row(name, name_of(quota), requested[name], left, limit))
    return rows


def _quota_row(name: str, quota: str, needs: Decimal, left: Decimal, limit: Decimal) -> CapacityRow:
    row = _row(name, f"quota {quota}", needs, left, is_enough=needs <= left)
    return replace(row, has=f"{row.has} of {write_quantity(limit, name)}")


def _row(name: str, where: str, needs: Decimal, has: Decimal, *, is_enough: bool) -> CapacityRow:
    written = (write_quantity(needs, name), write_quantity(has, name))
    return CapacityRow(what=name, where=where, needs=written[0], has=written[1], is_enough=is_enough)

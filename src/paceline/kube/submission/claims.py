"""How many GPUs do pods claim by DRA, and how many does each node offer? Counted as if they were a resource.

Only NVIDIA's class of whole GPUs is counted: what another class means is known to the cluster alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from paceline.kube.checks.node_facts import GPU_DRIVER, gpus_by_claim
from paceline.kube.diagnosis.snapshot import Object, name_of
from paceline.kube.reading import mapping, mappings
from paceline.kube.submission.gang import Role

CLAIMED = f"{GPU_DRIVER}.deviceclass.resource.k8s.io/devices"  # as a ResourceQuota calls them


def with_claims(gang: Sequence[Role], manifests: Sequence[Object]) -> list[Role]:
    """Pods ask for what their claims do; the templates of these come with the job."""
    templates = {name_of(one): _gpus(one) for one in manifests if one.get("kind") == "ResourceClaimTemplate"}
    return [_with_claims(role, templates) for role in gang]


def has_claims(gang: Sequence[Role]) -> bool:
    return any(mappings(role.pod, "spec", "resourceClaims") for role in gang)


def with_devices(nodes: Iterable[Object], slices: Sequence[Object]) -> list[Object]:
    offered = gpus_by_claim(slices)
    return [_with_devices(node, offered.get(name_of(node), 0)) for node in nodes]


def _gpus(template: Object) -> int:
    total = 0
    for request in mappings(template, "spec", "spec", "devices", "requests"):
        asked = mapping(request, "exactly")
        if asked.get("deviceClassName") == GPU_DRIVER and asked.get("allocationMode") != "All":
            count = asked.get("count", 1)
            total += count if isinstance(count, int) else 1
    return total


def _with_claims(role: Role, templates: dict[str, int]) -> Role:
    names = [one.get("resourceClaimTemplateName") for one in mappings(role.pod, "spec", "resourceClaims")]
    gpus = sum(templates.get(str(name), 0) for name in names)
    if not gpus:
        return role
    spec = mapping(role.pod, "spec")
    claims = {"name": "claims", "resources": {"requests": {CLAIMED: str(gpus)}}}
    return replace(
        role, pod={**role.pod, "spec": {**spec, "containers": [*mappings(spec, "containers"), claims]}}
    )


def _with_devices(node: Object, gpus: int) -> Object:
    status = mapping(node, "status")
    return {
        **node,
        "status": {**status, "allocatable": {**mapping(status, "allocatable"), CLAIMED: str(gpus)}},
    }

"""May a device plugin be installed here? Only where nobody else hands out the devices, or could.

Two that hand out the same devices are worse than none: Bottlerocket and Auto Mode carry a plugin inside,
NVIDIA's operator brings one, and a DRA driver takes its place.
"""

from paceline.kube.checks.machines import efa_of
from paceline.kube.checks.node_facts import EFA_DRIVERS, GPU_DRIVER, facts_of
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.checks.workloads import daemon_sets, deployments, has_label
from paceline.kube.reading import mapping

_AL2023 = "Amazon Linux 2023"
_LOOKED_AT = ("nodes", "daemonsets.apps", "deployments.apps")


def why_no_gpu_plugin(seen: Snapshot) -> str:
    """Empty: it may be installed."""
    if deployments(seen, lambda one: has_label(one, "app", "gpu-operator")) or seen.of(
        "clusterpolicies.nvidia.com"
    ):
        return "NVIDIA's operator is there, and brings a device plugin"
    if daemon_sets(seen, _is_gpu_plugin):
        return "a device plugin is there already"
    nodes = {node.name for node in facts_of(seen) if node.shall_have_gpus}
    if any(node.gpus for node in facts_of(seen)):
        return "some nodes offer GPUs, so somebody hands them out"
    return _why_not(seen, nodes, (GPU_DRIVER,))


def why_no_efa_plugin(seen: Snapshot) -> str:
    if daemon_sets(seen, lambda one: has_label(one, "app.kubernetes.io/name", "aws-efa-k8s-device-plugin")):
        return "EFA's device plugin is there already"
    return _why_not(seen, {node.name for node in facts_of(seen) if efa_of(node.machine)}, EFA_DRIVERS)


def _why_not(seen: Snapshot, nodes: set[str], drivers: tuple[str, ...]) -> str:
    if unseen := [name for name in _LOOKED_AT if not seen.knows(name)]:
        return f"{', '.join(unseen)} may not be looked at, so nobody knows who hands out the devices"
    slices = seen.of("resourceslices.resource.k8s.io")
    if any(mapping(one, "spec").get("driver") in drivers for one in slices):
        return "a DRA driver hands them out"
    if not nodes or not all(_is_plain(one) for one in seen.of("nodes") if name_of(one) in nodes):
        return "not all of these nodes run Amazon Linux 2023, and other images may carry a plugin inside"
    return ""


def _is_plain(node: Object) -> bool:
    auto = labels_of(node).get("eks.amazonaws.com/compute-type") == "auto"
    return not auto and str(mapping(node, "status", "nodeInfo").get("osImage", "")).startswith(_AL2023)


def _is_gpu_plugin(one: Object) -> bool:
    return "nvidia" in name_of(one) and "device-plugin" in name_of(one)

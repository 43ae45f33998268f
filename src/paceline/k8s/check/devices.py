"""Checks of GPU allocation: GPU operator, device plugin, DRA. That one of them is absent is no fault."""

from collections import defaultdict
from collections.abc import Iterator

from paceline.core.humanize import pluralize
from paceline.k8s.check.findings import (
    Finding,
    Level,
    Need,
    daemon_sets,
    deployments,
    device_count_finding,
    has_label,
    list_names,
    namespaced_name,
    ok_finding,
    readiness,
)
from paceline.k8s.check.nodes import EFA_DRIVERS, GPU_DRIVER, NodeFacts, efa_of, facts_of
from paceline.k8s.check.snapshot import Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import ZONE, mapping

GPU_SOFTWARE_AREA = "GPU software"
_OF_OPERATOR = (
    "nvidia-driver-daemonset",
    "nvidia-container-toolkit-daemonset",
    "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery",
    "nvidia-dcgm-exporter",
    "nvidia-operator-validator",
)


def check_gpu_software(seen: Snapshot, need: Need) -> Iterator[Finding]:
    nodes = facts_of(seen)
    operators = deployments(seen, lambda deployment: has_label(deployment, "app", "gpu-operator"))
    plugins = daemon_sets(seen, _is_own_plugin)
    names = []
    if operators or seen.of("clusterpolicies.nvidia.com"):
        names.append("GPU operator")
    if plugins:
        names.append("device plugin")
    if any(node.is_built_in and node.gpus for node in nodes):
        names.append("a plugin in the nodes' image")
    if any(mapping(resource_slice, "spec").get("driver") == GPU_DRIVER for resource_slice in _slices(seen)):
        names.append("DRA driver")
    if names:
        yield ok_finding(GPU_SOFTWARE_AREA, "GPUs are advertised by: " + ", ".join(names))
    elif not any(node.shall_have_gpus for node in nodes) and seen.knows("nodes"):
        absent = need.absent(matters=need.gpus > 0)
        yield Finding(area=GPU_SOFTWARE_AREA, level=absent, what="no GPU, and no device plugin or DRA driver")
    yield from _operator(seen, need, operators, nodes)
    yield from _not_everywhere(seen, plugins)
    yield from _both(seen, plugins)
    yield from _dra(seen)


def _operator(
    seen: Snapshot, need: Need, operators: list[Object], nodes: list[NodeFacts]
) -> Iterator[Finding]:
    works = any(node.gpus for node in nodes) and all(n.gpus for n in nodes if n.shall_have_gpus)
    level = Level.WARNING if works else need.broken(matters=need.gpus > 0)
    for policy in seen.of("clusterpolicies.nvidia.com"):
        state = str(mapping(policy, "status").get("state", "unknown"))
        if state == "ready":
            continue
        yield Finding(
            area=GPU_SOFTWARE_AREA,
            level=level,
            what="the GPU operator is not ready",
            evidence=f"ClusterPolicy {name_of(policy)}: status.state is {state}",
            why="one of its DaemonSets is not ready; nodes may lose their GPUs, and new nodes have none",
            command=f"kubectl describe clusterpolicy {name_of(policy)}",
        )
    for operator in operators:
        ready, desired = readiness(operator)
        if ready < 1:
            space, _, name = namespaced_name(operator).partition("/")
            yield Finding(
                area=GPU_SOFTWARE_AREA,
                level=level,
                what="the GPU operator is not running",
                evidence=f"Deployment {space}/{name}: {ready} of {desired} ready",
                why="new nodes have no GPUs",
                command=f"kubectl -n {space} describe deployment {name}",
            )


def _not_everywhere(seen: Snapshot, plugins: list[Object]) -> Iterator[Finding]:
    parts = [*plugins, *daemon_sets(seen, _is_of_operator)]
    for part in parts:
        ready, desired = readiness(part)
        if ready < desired:
            space, _, name = namespaced_name(part).partition("/")
            yield Finding(
                area=GPU_SOFTWARE_AREA,
                level=Level.WARNING,
                what=f"{name} does not run on every node that should have it",
                evidence=f"DaemonSet {space}/{name}: {ready} of {desired} ready",
                why="nodes without it offer no GPUs, or lose them when a pod ends",
                command=f"kubectl -n {space} describe daemonset {name}",
            )


def _both(seen: Snapshot, plugins: list[Object]) -> Iterator[Finding]:
    operators = [
        daemon_set
        for daemon_set in daemon_sets(seen, _is_of_operator)
        if labels_of(daemon_set).get("app") == "nvidia-device-plugin-daemonset"
        and readiness(daemon_set)[1] > 0
    ]
    own = [plugin for plugin in plugins if readiness(plugin)[1] > 0]
    if own and operators:
        space, _, name = namespaced_name(own[0]).partition("/")
        yield Finding(
            area=GPU_SOFTWARE_AREA,
            level=Level.WARNING,
            what="two device plugins advertise the same GPUs",
            evidence=f"DaemonSets {namespaced_name(own[0])} and {namespaced_name(operators[0])}",
            why="both register nvidia.com/gpu with the kubelet; the last registration wins",
            command=f"kubectl -n {space} delete daemonset {name}",
        )


def _dra(seen: Snapshot) -> Iterator[Finding]:
    if seen.minor < (1, 34) and any(
        mapping(resource_slice, "spec").get("driver") == GPU_DRIVER for resource_slice in _slices(seen)
    ):
        yield Finding(
            area=GPU_SOFTWARE_AREA,
            level=Level.WARNING,
            what=f"GPUs by DRA on Kubernetes {seen.version}",
            evidence="ResourceSlices of gpu.nvidia.com",
            why="resource.k8s.io is stable from 1.34 on; older versions reject claims of version v1",
            command="kubectl api-resources --api-group=resource.k8s.io",
        )


def _slices(seen: Snapshot) -> tuple[Object, ...]:
    return seen.of("resourceslices.resource.k8s.io")


def _is_of_operator(daemon_set: Object) -> bool:
    return labels_of(daemon_set).get("app") in _OF_OPERATOR


def _is_own_plugin(daemon_set: Object) -> bool:
    """A device plugin that no operator put there."""
    if _is_of_operator(daemon_set):
        return False
    pods = mapping(daemon_set, "spec", "template", "metadata", "labels")
    return (
        name_of(daemon_set) == "nvidia-device-plugin-daemonset"
        or has_label(daemon_set, "app.kubernetes.io/name", "nvidia-device-plugin")
        or pods.get("name") == "nvidia-device-plugin-ds"
    )


EFA_AREA = "EFA"
_PLUGIN = "aws-efa-k8s-device-plugin"


def check_efa(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        return
    usable = [node for node in facts_of(seen) if node.is_usable]
    having = [node for node in usable if node.efa]
    if having:
        devices = pluralize(sum(node.efa for node in having), "device")
        yield ok_finding(EFA_AREA, f"{devices} on {pluralize(len(having), 'node')}")
    else:
        yield from _no_efa(usable, need)
    yield from _plugin(seen, need, usable)
    yield from _numbers(having)
    yield from _in_one_zone(having, need)


def _no_efa(usable: list[NodeFacts], need: Need) -> Iterator[Finding]:
    could = [node for node in usable if efa_of(node.machine)]
    if not could and not need.efa:
        return
    yield Finding(
        area=EFA_AREA,
        level=need.absent(matters=need.efa),
        what="no node offers EFA",
        evidence="no vpc.amazonaws.com/efa in status.allocatable, no ResourceSlice of an EFA driver",
        why=f"{list_names([n.name for n in could])} could, if a launch template or NodeClass attached it"
        if could
        else "no usable node is of a machine type with EFA",
        command=f"kubectl describe node {could[0].name}" if could else "",
        cure="efa-plugin" if could else "",
    )


def _plugin(seen: Snapshot, need: Need, usable: list[NodeFacts]) -> Iterator[Finding]:
    for daemon_set in daemon_sets(
        seen, lambda candidate: has_label(candidate, "app.kubernetes.io/name", _PLUGIN)
    ):
        ready, desired = readiness(daemon_set)
        if ready >= desired:
            continue
        space, _, name = namespaced_name(daemon_set).partition("/")
        works = any(node.efa for node in usable)
        yield Finding(
            area=EFA_AREA,
            level=Level.WARNING if works else need.broken(matters=need.efa),
            what="the EFA device plugin does not run on every node that should have it",
            evidence=f"DaemonSet {space}/{name}: {ready} of {desired} ready",
            why="nodes without it offer no EFA: training would fall back to TCP, several times slower",
            command=f"kubectl -n {space} describe daemonset {name}",
        )


def _numbers(having: list[NodeFacts]) -> Iterator[Finding]:
    """GPU numbers of device plugins: a DRA driver may list other devices too."""
    more = [node for node in having if node.plugin_efa > (efa_of(node.machine) or node.plugin_efa)]
    fewer = [node for node in having if 0 < node.plugin_efa < (efa_of(node.machine) or 0)]
    if more:
        yield device_count_finding(
            EFA_AREA,
            "more EFA devices are advertised than exist",
            [node.name for node in more],
            evidence=_offered(more[0]),
            why="plugins before v0.5.10 count NVLink's ibp* devices as EFA; pods that get them fail",
            command="kubectl get daemonsets -A -l app.kubernetes.io/name=aws-efa-k8s-device-plugin -o wide",
        )
    if fewer:
        yield device_count_finding(
            EFA_AREA,
            "fewer EFA devices are advertised than exist",
            [node.name for node in fewer],
            evidence=_offered(fewer[0]),
            why="bandwidth is lost, and a job that requests all of them does not fit there",
        )


def _offered(node: NodeFacts) -> str:
    return f"{node.plugin_efa} of {efa_of(node.machine)} ({node.machine})"


def _in_one_zone(having: list[NodeFacts], need: Need) -> Iterator[Finding]:
    gpus = defaultdict[str, int](int)
    nodes = defaultdict[str, int](int)
    for node in having:
        gpus[node.zone] += node.gpus
        nodes[node.zone] += 1
    fits = any(gpus[zone] >= need.gpus and nodes[zone] >= need.nodes for zone in gpus)
    if not need.efa or not having or (fits and len(gpus) == 1):
        return
    zones = [
        f"{zone or 'no zone'}: {pluralize(nodes[zone], 'node')}, {pluralize(gpus[zone], 'GPU')}"
        for zone in gpus
    ]
    yield Finding(
        area=EFA_AREA,
        level=Level.NOTE if fits else Level.PROBLEM,
        what="nodes with EFA are in several zones" if fits else "no zone has enough nodes with EFA",
        evidence="; ".join(sorted(zones)),
        why="EFA does not cross zones: all pods of a run must be in one",
        command=f"kubectl get nodes -L {ZONE}",
    )


# Two plugins that allocate the same devices conflict: Bottlerocket and Auto Mode have a built-in plugin,
# NVIDIA's operator installs one, and a DRA driver replaces it.

_AL2023 = "Amazon Linux 2023"
_LOOKED_AT = ("nodes", "daemonsets.apps", "deployments.apps")


def why_no_gpu_plugin(seen: Snapshot) -> str:
    """Empty: it may be installed."""
    if deployments(seen, lambda obj: has_label(obj, "app", "gpu-operator")) or seen.of(
        "clusterpolicies.nvidia.com"
    ):
        return "NVIDIA's operator is installed, and includes a device plugin"
    if daemon_sets(seen, _is_gpu_plugin):
        return "a device plugin is already installed"
    nodes = {node.name for node in facts_of(seen) if node.shall_have_gpus}
    if any(node.gpus for node in facts_of(seen)):
        return "some nodes offer GPUs, so a device plugin is running"
    return _reason_unknown(seen, nodes, (GPU_DRIVER,))


def why_no_efa_plugin(seen: Snapshot) -> str:
    if daemon_sets(seen, lambda obj: has_label(obj, "app.kubernetes.io/name", "aws-efa-k8s-device-plugin")):
        return "EFA's device plugin is already installed"
    return _reason_unknown(seen, {node.name for node in facts_of(seen) if efa_of(node.machine)}, EFA_DRIVERS)


def _reason_unknown(seen: Snapshot, nodes: set[str], drivers: tuple[str, ...]) -> str:
    if unseen := [name for name in _LOOKED_AT if not seen.knows(name)]:
        return f"{', '.join(unseen)} cannot be read, so it is unknown what advertises the devices"
    slices = seen.of("resourceslices.resource.k8s.io")
    if any(mapping(resource_slice, "spec").get("driver") in drivers for resource_slice in slices):
        return "a DRA driver advertises them"
    if not nodes or not all(_is_plain(node) for node in seen.of("nodes") if name_of(node) in nodes):
        return "not all of these nodes run Amazon Linux 2023, and other images may include a plugin"
    return ""


def _is_plain(node: Object) -> bool:
    auto = labels_of(node).get("eks.amazonaws.com/compute-type") == "auto"
    return not auto and str(mapping(node, "status", "nodeInfo").get("osImage", "")).startswith(_AL2023)


def _is_gpu_plugin(daemon_set: Object) -> bool:
    return "nvidia" in name_of(daemon_set) and "device-plugin" in name_of(daemon_set)

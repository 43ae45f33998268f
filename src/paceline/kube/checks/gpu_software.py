"""Does what hands out GPUs work: GPU operator, device plugin, DRA? That one of them is absent is no fault."""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need
from paceline.kube.checks.node_facts import GPU_DRIVER, NodeFacts, facts_of
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.checks.workloads import daemon_sets, deployments, fine, has_label, place_of, readiness
from paceline.kube.reading import mapping

AREA = "GPU software"
_OF_OPERATOR = (
    "nvidia-driver-daemonset",
    "nvidia-container-toolkit-daemonset",
    "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery",
    "nvidia-dcgm-exporter",
    "nvidia-operator-validator",
)


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    nodes = facts_of(seen)
    operators = deployments(seen, lambda one: has_label(one, "app", "gpu-operator"))
    plugins = daemon_sets(seen, _is_own_plugin)
    names = []
    if operators or seen.of("clusterpolicies.nvidia.com"):
        names.append("GPU operator")
    if plugins:
        names.append("device plugin")
    if any(node.is_built_in and node.gpus for node in nodes):
        names.append("a plugin inside of the nodes' image")
    if any(mapping(one, "spec").get("driver") == GPU_DRIVER for one in _slices(seen)):
        names.append("DRA driver")
    if names:
        yield fine(AREA, "GPUs are handed out by: " + ", ".join(names))
    elif not any(node.shall_have_gpus for node in nodes) and seen.knows("nodes"):
        absent = need.absent(matters=need.gpus > 0)
        yield Finding(area=AREA, level=absent, what="no GPU, and nothing that hands out GPUs")
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
            area=AREA,
            level=level,
            what="the GPU operator is not ready",
            evidence=f"ClusterPolicy {name_of(policy)}: status.state is {state}",
            why="one of its DaemonSets does not get ready; nodes may lose their GPUs, new ones get none",
            command=f"kubectl describe clusterpolicy {name_of(policy)}",
        )
    for one in operators:
        ready, wanted = readiness(one)
        if ready < 1:
            space, _, name = place_of(one).partition("/")
            yield Finding(
                area=AREA,
                level=level,
                what="the GPU operator is not at work",
                evidence=f"Deployment {space}/{name}: {ready} of {wanted} ready",
                why="new nodes get no GPUs",
                command=f"kubectl -n {space} describe deployment {name}",
            )


def _not_everywhere(seen: Snapshot, plugins: list[Object]) -> Iterator[Finding]:
    parts = [*plugins, *daemon_sets(seen, _is_of_operator)]
    for one in parts:
        ready, wanted = readiness(one)
        if ready < wanted:
            space, _, name = place_of(one).partition("/")
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what=f"{name} does not run on every node that should have it",
                evidence=f"DaemonSet {space}/{name}: {ready} of {wanted} ready",
                why="nodes without it offer no GPUs, or lose them when a pod ends",
                command=f"kubectl -n {space} describe daemonset {name}",
            )


def _both(seen: Snapshot, plugins: list[Object]) -> Iterator[Finding]:
    operators = [
        one
        for one in daemon_sets(seen, _is_of_operator)
        if labels_of(one).get("app") == "nvidia-device-plugin-daemonset" and readiness(one)[1] > 0
    ]
    own = [one for one in plugins if readiness(one)[1] > 0]
    if own and operators:
        space, _, name = place_of(own[0]).partition("/")
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what="two device plugins hand out the same GPUs",
            evidence=f"DaemonSets {place_of(own[0])} and {place_of(operators[0])}",
            why="both register nvidia.com/gpu with the kubelet; the last one wins, until it restarts",
            command=f"kubectl -n {space} delete daemonset {name}",
        )


def _dra(seen: Snapshot) -> Iterator[Finding]:
    if seen.minor < (1, 34) and any(
        mapping(one, "spec").get("driver") == GPU_DRIVER for one in _slices(seen)
    ):
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"GPUs by DRA on Kubernetes {seen.version}",
            evidence="ResourceSlices of gpu.nvidia.com",
            why="resource.k8s.io is stable from 1.34 on; before, claims of version v1 are refused",
            command="kubectl api-resources --api-group=resource.k8s.io",
        )


def _slices(seen: Snapshot) -> tuple[Object, ...]:
    return seen.of("resourceslices.resource.k8s.io")


def _is_of_operator(one: Object) -> bool:
    return labels_of(one).get("app") in _OF_OPERATOR


def _is_own_plugin(one: Object) -> bool:
    """A device plugin that no operator put there."""
    if _is_of_operator(one):
        return False
    pods = mapping(one, "spec", "template", "metadata", "labels")
    return (
        name_of(one) == "nvidia-device-plugin-daemonset"
        or has_label(one, "app.kubernetes.io/name", "nvidia-device-plugin")
        or pods.get("name") == "nvidia-device-plugin-ds"
    )

"""Checks of nodes and their usable GPUs, as `allocatable` and the ResourceSlices state them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files

from paceline.k8s.check.findings import (
    Finding,
    Level,
    Need,
    device_count_finding,
    list_names,
    ok_finding,
    pluralize,
)
from paceline.k8s.check.snapshot import Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import (
    EFA,
    GPU,
    HYPERPOD_HEALTH,
    INSTANCE_TYPE,
    ZONE,
    mapping,
    mappings,
    read_quantity,
)
from paceline.k8s.spec.job import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTypes:
    dated: date
    efa_chart: str  # the chart that was pinned at that date; a newer one asks for another look at this list
    gpus: dict[str, int]
    efa: dict[str, int]


@cache
def load_instance_types() -> InstanceTypes:
    told = json.loads((files("paceline.k8s") / "data" / "machines.json").read_text("utf-8"))
    rows = told["machines"]
    return InstanceTypes(
        dated=date.fromisoformat(told["dated"]),
        efa_chart=told["efa_chart"],
        gpus={name: row["gpus"] for name, row in rows.items() if "gpus" in row},
        efa={name: row["efa"] for name, row in rows.items() if "efa" in row},
    )


def gpus_of(machine: str) -> int | None:
    return load_instance_types().gpus.get(machine)


def efa_of(machine: str) -> int | None:
    return load_instance_types().efa.get(machine)


# Devices are handed out by a device plugin (then they are in `allocatable`) or by a DRA driver (then they are
# in ResourceSlices). Bottlerocket and EKS Auto Mode carry the plugin inside: no DaemonSet is there to find.

GPU_DRIVER = "gpu.nvidia.com"
EFA_DRIVERS = ("dra.net", "dra.networking.k8s.aws", "efa.networking.k8s.aws")
_MUST_BE_FALSE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_MUST_BE_TRUE = (  # of EKS's node monitoring agent; absent without it
    "AcceleratedHardwareReady",
    "NetworkingReady",
    "KernelReady",
    "StorageReady",
    "ContainerRuntimeReady",
)
_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    name: str
    machine: str  # instance type, without HyperPod's `ml.`
    zone: str
    plugin_gpus: int  # by a device plugin
    claimed_gpus: int  # by DRA
    gpu_capacity: int  # what the kubelet has ever been told of
    has_gpu_parts: bool  # MIG or shared ones: the number of whole GPUs says little
    efa: int
    plugin_efa: int  # those of them that a device plugin offers
    troubles: tuple[str, ...]  # why nobody should count on it
    is_worker: bool  # and not a part of the control plane, or of Fargate
    has_gpu_label: bool
    is_built_in: bool  # Bottlerocket, Auto Mode: the device plugin is a part of the image

    @property
    def gpus(self) -> int:
        return max(self.plugin_gpus, self.claimed_gpus)  # both may offer the same ones

    @property
    def shall_have_gpus(self) -> bool:
        return self.has_gpu_label or self.gpu_capacity > 0 or gpus_of(self.machine) is not None

    @property
    def is_usable(self) -> bool:
        return self.is_worker and not self.troubles


def gpus_by_claim(slices: Sequence[Object]) -> dict[str, int]:
    """By node: whole GPUs that NVIDIA's DRA driver offers."""
    return {node: _claimed_gpus(its) for node, its in _newest(slices).items()}


def facts_of(seen: Snapshot) -> list[NodeFacts]:
    slices = _newest(seen.of("resourceslices.resource.k8s.io"))
    return [_facts(node, slices.get(name_of(node), [])) for node in seen.of("nodes")]


def _facts(node: Object, slices: Sequence[Object]) -> NodeFacts:
    labels = labels_of(node)
    allocatable = mapping(node, "status", "allocatable")
    taints = [str(taint.get("key")) for taint in mappings(node, "spec", "taints")]
    info = mapping(node, "status", "nodeInfo")
    return NodeFacts(
        name=name_of(node),
        machine=str(labels.get(INSTANCE_TYPE, "")).removeprefix("ml."),
        zone=str(labels.get(ZONE, "")),
        plugin_gpus=_amount(allocatable, GPU),
        claimed_gpus=_claimed_gpus(slices),
        gpu_capacity=_amount(mapping(node, "status", "capacity"), GPU),
        has_gpu_parts=any(
            name.startswith(("nvidia.com/mig-", f"{GPU}.shared")) and _amount(allocatable, name)
            for name in allocatable
        )
        or any(_devices(one, "mig") for one in slices if _driver(one) == GPU_DRIVER),
        efa=max(_amount(allocatable, EFA), sum(_efa_devices(one) for one in slices)),
        plugin_efa=_amount(allocatable, EFA),
        troubles=tuple(_troubles(node)),
        is_worker=not any(key in _CONTROL_PLANE for key in taints)
        and labels.get("eks.amazonaws.com/compute-type") != "fargate",  # a node for one pod
        has_gpu_label=str(labels.get(f"{GPU}.present", "")).lower() == "true",
        is_built_in=labels.get("eks.amazonaws.com/compute-type") == "auto"
        or "bottlerocket" in str(info.get("osImage", "")).lower(),
    )


def _claimed_gpus(slices: Sequence[Object]) -> int:
    return sum(_devices(one, "gpu") for one in slices if _driver(one) == GPU_DRIVER)


def _troubles(node: Object) -> list[str]:
    conditions = {str(one.get("type")): one for one in mappings(node, "status", "conditions")}
    found: list[str] = []
    for name, condition in conditions.items():
        status = condition.get("status")
        is_bad = (name == "Ready" or name in _MUST_BE_TRUE) and status in ("False", "Unknown")
        if is_bad or (name in _MUST_BE_FALSE and status == "True"):
            reason = str(condition.get("reason") or "")
            found.append(f"{name}={status}" + (f" ({reason})" if reason else ""))
    if "Ready" not in conditions:
        found.append("no condition Ready")
    if mapping(node, "spec").get("unschedulable") is True:
        found.append("cordoned")
    health = labels_of(node).get(HYPERPOD_HEALTH)
    if health not in (None, "Schedulable"):
        found.append(f"{HYPERPOD_HEALTH}={health}")
    return found


def _newest(slices: Sequence[Object]) -> dict[str, list[Object]]:
    """By node. A driver that publishes again raises the generation: older slices of a pool do not count."""
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for one in slices:
        key, generation = _pool(one)
        newest[key] = max(newest[key], generation)
    found: dict[str, list[Object]] = defaultdict(list)
    for one in slices:
        key, generation = _pool(one)
        if generation == newest[key]:
            found[str(mapping(one, "spec").get("nodeName", ""))].append(one)
    return found


def _pool(one: Object) -> tuple[tuple[str, str], int]:
    pool = mapping(one, "spec", "pool")
    generation = pool.get("generation")
    return (_driver(one), str(pool.get("name", ""))), generation if isinstance(generation, int) else 0


def _driver(one: Object) -> str:
    return str(mapping(one, "spec").get("driver", ""))


def _devices(one: Object, kind: str) -> int:
    """Of this type; a device that says no type is a whole one."""
    count = 0
    for device in mappings(one, "spec", "devices"):
        inner = mapping(device, "basic") or device  # v1beta1 has one more floor
        its = mapping(inner, "attributes", "type").get("string", "gpu")
        count += its == kind
    return count


def _efa_devices(one: Object) -> int:
    """DRANET lists every network device; those with RDMA are meant, where it says which these are."""
    if _driver(one) not in EFA_DRIVERS:
        return 0
    devices = [mapping(device, "basic") or device for device in mappings(one, "spec", "devices")]
    said = [mapping(device, "attributes", "dra.net/rdma").get("bool") for device in devices]
    return said.count(True) if any(isinstance(word, bool) for word in said) else len(devices)


def _amount(amounts: Object, name: str) -> int:
    return int(read_quantity(amounts.get(name, 0)) or 0)


NODES_AREA = "nodes and GPUs"


def check_nodes(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        if need.gpus or need.nodes:
            why = "nodes may not be listed, and nothing else says what they have"
            yield _problem("whether the cluster is large enough cannot be seen", "", why, "")
        return
    nodes = facts_of(seen)
    usable = [node for node in nodes if node.is_usable]
    gpus = sum(node.gpus for node in usable)
    yield ok_finding(
        NODES_AREA, f"{pluralize(len(usable), 'usable node')}, {pluralize(gpus, 'GPU')}{_machines(usable)}"
    )
    yield from _lost_gpus(nodes, need)
    yield from _offered_twice(nodes)
    yield from _by_claims(usable, need)
    yield from _enough(seen, need, usable)


def _machines(nodes: list[NodeFacts]) -> str:
    kinds = Counter(node.machine for node in nodes if node.machine)
    listed = ", ".join(f"{number} × {machine}" for machine, number in sorted(kinds.items()))
    return f" ({listed})" if listed else ""


def _lost_gpus(nodes: list[NodeFacts], need: Need) -> Iterator[Finding]:
    """Machines that have GPUs, and nodes that do not offer them. What is not Ready is told elsewhere."""
    ready = [node for node in nodes if node.is_usable and not node.has_gpu_parts]
    blind = [node for node in ready if node.shall_have_gpus and node.gpus == 0]
    if blind:
        all_of_them = all(node.gpus == 0 for node in nodes)
        why = "no device plugin or DRA driver works there: pods that ask for GPUs wait"
        yield Finding(
            area=NODES_AREA,
            level=need.broken(matters=need.gpus > 0) if all_of_them else Level.WARNING,
            what=f"GPUs are not offered by {pluralize(len(blind), 'node')} with GPUs: "
            f"{list_names([n.name for n in blind])}",
            evidence="status.allocatable has no nvidia.com/gpu, and no ResourceSlice names the node",
            why=why,
            command=f"kubectl describe node {blind[0].name}",
            cure="gpu-plugin",
        )
    fewer = [node for node in ready if 0 < node.gpus < (gpus_of(node.machine) or 0)]
    if fewer:
        first = fewer[0]
        yield device_count_finding(
            NODES_AREA,
            "fewer GPUs are offered than there are",
            [node.name for node in fewer],
            evidence=f"{first.gpus} of {gpus_of(first.machine)} ({first.machine})",
            why="a GPU that fell off the bus, or was found unhealthy, is not offered any more",
        )


def _offered_twice(nodes: list[NodeFacts]) -> Iterator[Finding]:
    both = [node.name for node in nodes if node.plugin_gpus and node.claimed_gpus]
    if both:
        yield Finding(
            area=NODES_AREA,
            level=Level.WARNING,
            what=f"the same GPUs are offered twice by {pluralize(len(both), 'node')}: {list_names(both)}",
            evidence="nvidia.com/gpu in status.allocatable, and a ResourceSlice of gpu.nvidia.com",
            why="the device plugin and the DRA driver do not know of each other: two pods may get one GPU",
            command="kubectl get daemonsets -A",
        )


def _by_claims(usable: list[NodeFacts], need: Need) -> Iterator[Finding]:
    """GPUs that only a ResourceClaim gets."""
    claimed = sum(node.claimed_gpus for node in usable if not node.plugin_gpus)
    plugged = sum(node.plugin_gpus for node in usable)
    if not claimed:
        return
    blocks = need.target is not None and need.gpus > 0 and plugged < need.gpus
    why = "pods get them by a ResourceClaim; nvidia.com/gpu waits, unless a DeviceClass stands for it"
    if need.target is Target.TRAINJOB:
        why += ", and a TrainJob cannot carry a claim"
    elif need.target in (Target.RAYJOB, Target.RAYCLUSTER):
        why += ", and job render makes no claims for Ray"
    else:
        why += ": job render --gpu-claims asks in that way"
    yield Finding(
        area=NODES_AREA,
        level=Level.WARNING if blocks else Level.NOTE,
        what=f"{pluralize(claimed, 'GPU')} are handed out by DRA, {plugged} by device plugins",
        evidence="ResourceSlices of gpu.nvidia.com",
        why=why,
        command="kubectl get deviceclasses,resourceslices",
    )


def _enough(seen: Snapshot, need: Need, usable: list[NodeFacts]) -> Iterator[Finding]:
    gpus = sum(node.gpus for node in usable)
    short = [
        f"{wanted} {thing} wanted, {there} usable"
        for thing, wanted, there in (("GPUs", need.gpus, gpus), ("nodes", need.nodes, len(usable)))
        if wanted > there
    ]
    if not short:
        if need.gpus or need.nodes:
            yield ok_finding(NODES_AREA, "what was asked for fits, if nobody else uses it")
        return
    grows = _autoscaler(seen)
    why = f"{grows} may add nodes when a job asks for them; nobody promised that" if grows else ""
    yield Finding(
        area=NODES_AREA,
        level=Level.WARNING if grows else Level.PROBLEM,
        what="too small: " + "; ".join(short),
        evidence="status.allocatable and ResourceSlices of nodes that are Ready and not cordoned",
        why=why or "a job that can never fit waits for ever",
        command=f"kubectl get nodes -L {INSTANCE_TYPE}",
    )


def _autoscaler(seen: Snapshot) -> str:
    if "nodepools.karpenter.sh" in seen.served:
        return "Karpenter"
    names = [name_of(one) for one in seen.of("deployments.apps")]
    return "the cluster autoscaler" if any("cluster-autoscaler" in name for name in names) else ""


def _problem(what: str, evidence: str, why: str, command: str) -> Finding:
    return Finding(
        area=NODES_AREA, level=Level.PROBLEM, what=what, evidence=evidence, why=why, command=command
    )


NODE_HEALTH_AREA = "node health"


def check_node_health(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        return
    nodes = [node for node in facts_of(seen) if node.is_worker]
    ill = [node for node in nodes if node.troubles]
    if nodes and not ill:
        yield ok_finding(NODE_HEALTH_AREA, f"{pluralize(len(nodes), 'node')}, all well")
    if not ill:
        return
    yield Finding(
        area=NODE_HEALTH_AREA,
        level=need.broken(matters=True) if len(ill) == len(nodes) else Level.WARNING,
        what=f"{len(ill)} of {pluralize(len(nodes), 'node')} cannot be used: "
        f"{list_names([n.name for n in ill])}",
        evidence="; ".join(f"{node.name}: {', '.join(node.troubles)}" for node in ill[:3]),
        why="pods are not put there, or fail there",
        command=f"kubectl describe node {ill[0].name}",
    )

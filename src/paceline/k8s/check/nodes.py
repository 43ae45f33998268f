"""Checks of nodes and their usable GPUs, as `allocatable` and the ResourceSlices state them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files

from paceline.core.humanize import pluralize
from paceline.k8s.check.findings import (
    Finding,
    Level,
    Need,
    device_count_finding,
    list_names,
    ok_finding,
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
    efa_chart: str  # the chart that was pinned at that date; review this list for a newer one
    gpus: dict[str, int]
    efa: dict[str, int]


@cache
def load_instance_types() -> InstanceTypes:
    table = json.loads((files("paceline.k8s") / "data" / "machines.json").read_text("utf-8"))
    rows = table["machines"]
    return InstanceTypes(
        dated=date.fromisoformat(table["dated"]),
        efa_chart=table["efa_chart"],
        gpus={name: row["gpus"] for name, row in rows.items() if "gpus" in row},
        efa={name: row["efa"] for name, row in rows.items() if "efa" in row},
    )


def gpus_of(machine: str) -> int | None:
    return load_instance_types().gpus.get(machine)


def efa_of(machine: str) -> int | None:
    return load_instance_types().efa.get(machine)


# Devices are allocated by a device plugin (then they are in `allocatable`) or by a DRA driver (then they are
# in ResourceSlices). Bottlerocket and EKS Auto Mode have a built-in plugin, so no DaemonSet exists.

GPU_DRIVER = "gpu.nvidia.com"
EFA_DRIVERS = ("dra.net", "dra.networking.k8s.aws", "efa.networking.k8s.aws")
_MUST_BE_FALSE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_MUST_BE_TRUE = (  # conditions of EKS's node monitoring agent; absent without it
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
    gpu_capacity: int  # all that the kubelet has ever registered
    has_gpu_parts: bool  # MIG or shared GPUs: the number of whole GPUs does not apply
    efa: int
    plugin_efa: int  # those of them that a device plugin offers
    troubles: tuple[str, ...]  # why it is not counted as usable
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
        or any(
            _devices(resource_slice, "mig")
            for resource_slice in slices
            if _driver(resource_slice) == GPU_DRIVER
        ),
        efa=max(_amount(allocatable, EFA), sum(_efa_devices(resource_slice) for resource_slice in slices)),
        plugin_efa=_amount(allocatable, EFA),
        troubles=tuple(_node_problems(node)),
        is_worker=not any(key in _CONTROL_PLANE for key in taints)
        and labels.get("eks.amazonaws.com/compute-type") != "fargate",  # a node for one pod
        has_gpu_label=str(labels.get(f"{GPU}.present", "")).lower() == "true",
        is_built_in=labels.get("eks.amazonaws.com/compute-type") == "auto"
        or "bottlerocket" in str(info.get("osImage", "")).lower(),
    )


def _claimed_gpus(slices: Sequence[Object]) -> int:
    return sum(
        _devices(resource_slice, "gpu") for resource_slice in slices if _driver(resource_slice) == GPU_DRIVER
    )


def _node_problems(node: Object) -> list[str]:
    conditions = {
        str(condition.get("type")): condition for condition in mappings(node, "status", "conditions")
    }
    problems: list[str] = []
    for name, condition in conditions.items():
        status = condition.get("status")
        is_bad = (name == "Ready" or name in _MUST_BE_TRUE) and status in ("False", "Unknown")
        if is_bad or (name in _MUST_BE_FALSE and status == "True"):
            reason = str(condition.get("reason") or "")
            problems.append(f"{name}={status}" + (f" ({reason})" if reason else ""))
    if "Ready" not in conditions:
        problems.append("no condition Ready")
    if mapping(node, "spec").get("unschedulable") is True:
        problems.append("cordoned")
    health = labels_of(node).get(HYPERPOD_HEALTH)
    if health not in (None, "Schedulable"):
        problems.append(f"{HYPERPOD_HEALTH}={health}")
    return problems


def _newest(slices: Sequence[Object]) -> dict[str, list[Object]]:
    """Newest slices by node. A driver raises the generation on each update: older slices do not count."""
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for resource_slice in slices:
        key, generation = _pool(resource_slice)
        newest[key] = max(newest[key], generation)
    pools: dict[str, list[Object]] = defaultdict(list)
    for item in slices:
        key, generation = _pool(item)
        if generation == newest[key]:
            pools[str(mapping(item, "spec").get("nodeName", ""))].append(item)
    return pools


def _pool(resource_slice: Object) -> tuple[tuple[str, str], int]:
    pool = mapping(resource_slice, "spec", "pool")
    generation = pool.get("generation")
    return (_driver(resource_slice), str(pool.get("name", ""))), generation if isinstance(
        generation, int
    ) else 0


def _driver(resource_slice: Object) -> str:
    return str(mapping(resource_slice, "spec").get("driver", ""))


def _devices(resource_slice: Object, kind: str) -> int:
    """Devices of this type; a device without a type is a whole one."""
    count = 0
    for device in mappings(resource_slice, "spec", "devices"):
        inner = mapping(device, "basic") or device  # v1beta1 has one more floor
        its = mapping(inner, "attributes", "type").get("string", "gpu")
        count += its == kind
    return count


def _efa_devices(resource_slice: Object) -> int:
    """DRANET lists every network device; only those with RDMA count, if the slice marks them."""
    if _driver(resource_slice) not in EFA_DRIVERS:
        return 0
    devices = [mapping(device, "basic") or device for device in mappings(resource_slice, "spec", "devices")]
    flags = [mapping(device, "attributes", "dra.net/rdma").get("bool") for device in devices]
    return flags.count(True) if any(isinstance(word, bool) for word in flags) else len(devices)


def _amount(amounts: Object, name: str) -> int:
    return int(read_quantity(amounts.get(name, 0)) or 0)


NODES_AREA = "nodes and GPUs"


def check_nodes(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        if need.gpus or need.nodes:
            why = "nodes cannot be listed, and there is no other source of their resources"
            yield _problem("whether the cluster is large enough is unknown", "", why, "")
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
    """Nodes on machines with GPUs that do not offer them. Nodes that are not Ready are skipped."""
    ready = [node for node in nodes if node.is_usable and not node.has_gpu_parts]
    blind = [node for node in ready if node.shall_have_gpus and node.gpus == 0]
    if blind:
        all_of_them = all(node.gpus == 0 for node in nodes)
        why = "no device plugin or DRA driver is running there: pods that request GPUs stay Pending"
        yield Finding(
            area=NODES_AREA,
            level=need.broken(matters=need.gpus > 0) if all_of_them else Level.WARNING,
            what=f"GPUs are not advertised by {pluralize(len(blind), 'node')} with GPUs: "
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
            "fewer GPUs are advertised than exist",
            [node.name for node in fewer],
            evidence=f"{first.gpus} of {gpus_of(first.machine)} ({first.machine})",
            why="a GPU that fell off the bus or is unhealthy is no longer advertised",
        )


def _offered_twice(nodes: list[NodeFacts]) -> Iterator[Finding]:
    both = [node.name for node in nodes if node.plugin_gpus and node.claimed_gpus]
    if both:
        yield Finding(
            area=NODES_AREA,
            level=Level.WARNING,
            what=f"the same GPUs are advertised twice by {pluralize(len(both), 'node')}: {list_names(both)}",
            evidence="nvidia.com/gpu in status.allocatable, and a ResourceSlice of gpu.nvidia.com",
            why="the device plugin and the DRA driver are independent: two pods may get the same GPU",
            command="kubectl get daemonsets -A",
        )


def _by_claims(usable: list[NodeFacts], need: Need) -> Iterator[Finding]:
    """GPUs that only a ResourceClaim gets."""
    claimed = sum(node.claimed_gpus for node in usable if not node.plugin_gpus)
    plugged = sum(node.plugin_gpus for node in usable)
    if not claimed:
        return
    blocks = need.target is not None and need.gpus > 0 and plugged < need.gpus
    why = (
        "pods request them with a ResourceClaim; pods with nvidia.com/gpu stay Pending unless a "
        "DeviceClass maps it"
    )
    if need.target is Target.TRAINJOB:
        why += ", which a TrainJob does not support"
    elif need.target in (Target.RAYJOB, Target.RAYCLUSTER):
        why += ", which job render does not create for Ray"
    else:
        why += ": use job render --gpu-claims"
    yield Finding(
        area=NODES_AREA,
        level=Level.WARNING if blocks else Level.NOTE,
        what=f"{pluralize(claimed, 'GPU')} advertised by DRA, {plugged} by device plugins",
        evidence="ResourceSlices of gpu.nvidia.com",
        why=why,
        command="kubectl get deviceclasses,resourceslices",
    )


def _enough(seen: Snapshot, need: Need, usable: list[NodeFacts]) -> Iterator[Finding]:
    gpus = sum(node.gpus for node in usable)
    short = [
        f"{pluralize(needed, noun)} required, {usable_count} usable"
        for noun, needed, usable_count in (("GPU", need.gpus, gpus), ("node", need.nodes, len(usable)))
        if needed > usable_count
    ]
    if not short:
        if need.gpus or need.nodes:
            yield ok_finding(NODES_AREA, "the requirements fit, if no other workload uses the capacity")
        return
    grows = _autoscaler(seen)
    why = f"{grows} may add nodes when a job requests them; this is not guaranteed" if grows else ""
    yield Finding(
        area=NODES_AREA,
        level=Level.WARNING if grows else Level.PROBLEM,
        what="too small: " + "; ".join(short),
        evidence="status.allocatable and ResourceSlices of nodes that are Ready and not cordoned",
        why=why or "a job that does not fit stays Pending",
        command=f"kubectl get nodes -L {INSTANCE_TYPE}",
    )


def _autoscaler(seen: Snapshot) -> str:
    if "nodepools.karpenter.sh" in seen.served:
        return "Karpenter"
    names = [name_of(deployment) for deployment in seen.of("deployments.apps")]
    return "the cluster autoscaler" if any("cluster-autoscaler" in name for name in names) else ""


def _problem(message: str, evidence: str, why: str, command: str) -> Finding:
    return Finding(
        area=NODES_AREA, level=Level.PROBLEM, what=message, evidence=evidence, why=why, command=command
    )


NODE_HEALTH_AREA = "node health"


def check_node_health(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        return
    nodes = [node for node in facts_of(seen) if node.is_worker]
    ill = [node for node in nodes if node.troubles]
    if nodes and not ill:
        yield ok_finding(NODE_HEALTH_AREA, f"{pluralize(len(nodes), 'node')}, all healthy")
    if not ill:
        return
    yield Finding(
        area=NODE_HEALTH_AREA,
        level=need.broken(matters=True) if len(ill) == len(nodes) else Level.WARNING,
        what=f"{len(ill)} of {pluralize(len(nodes), 'node')} cannot be used: "
        f"{list_names([n.name for n in ill])}",
        evidence="; ".join(f"{node.name}: {', '.join(node.troubles)}" for node in ill[:3]),
        why="pods are not scheduled there, or fail there",
        command=f"kubectl describe node {ill[0].name}",
    )

"""What does one node have, and may it be used? From its status and the ResourceSlices; from nothing else.

Devices are handed out by a device plugin (then they are in `allocatable`) or by a DRA driver (then they are
in ResourceSlices). Bottlerocket and EKS Auto Mode carry the plugin inside: no DaemonSet is there to find.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.kube.checks.machines import gpus_of
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.reading import mapping, mappings
from paceline.kube.well_known import EFA, GPU, HYPERPOD_HEALTH, INSTANCE_TYPE, ZONE
from paceline.kube.words import read_quantity

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

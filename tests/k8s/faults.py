"""Faults that can be injected into each of eight kinds of clusters, with the expected finding."""

from collections.abc import Callable
from typing import Any

from tests.k8s.clusters import CLUSTER_RUNTIMES, GPU, HEALTH, WEBHOOKS, daemon_set, gpu_slice, storage_class

Object = dict[str, Any]
Fault = Callable[[Object], object]


def objects(snapshot: Object, resource: str) -> list[Object]:
    result: list[Object] = snapshot["objects"][resource]
    return result


def no_gpus(snapshot: Object) -> None:
    for node in objects(snapshot, "nodes"):
        node["status"]["allocatable"].pop(GPU, None)


def condition(which: int, kind: str, status: str, reason: str = "") -> Fault:
    def strike(snapshot: Object) -> None:
        conditions = objects(snapshot, "nodes")[which]["status"]["conditions"]
        conditions[:] = [item for item in conditions if item["type"] != kind]
        conditions.append({"type": kind, "status": status, "reason": reason})

    return strike


def down(kind: str, name: str) -> Fault:
    def strike(snapshot: Object) -> None:
        for manifest in objects(snapshot, kind):
            if name in manifest["metadata"]["name"]:
                manifest["status"] |= {"readyReplicas": 0, "numberReady": 0}

    return strike


def gone(kind: str, name: str) -> Fault:
    def strike(snapshot: Object) -> None:
        manifests = objects(snapshot, kind)
        manifests[:] = [manifest for manifest in manifests if name not in manifest["metadata"]["name"]]

    return strike


def add(kind: str, *more: Object) -> Fault:
    return lambda snapshot: snapshot["objects"].setdefault(kind, []).extend(more)


def set_to(path: str, value: object) -> Fault:
    def strike(snapshot: Object) -> None:
        place: Any = snapshot
        *parts, last = path.split("|")
        for part in parts:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        place[last] = value

    return strike


QUOTA = {
    "metadata": {"name": "team"},
    "status": {"hard": {"requests.nvidia.com/gpu": "8", "pods": "9"}, "used": {"pods": "9"}},
}
CLOSED: Object = {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
LOST_CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]},
    "status": {"phase": "Pending"},
}
INACTIVE = [{"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}]
OPERATOR_PLUGIN = daemon_set(
    "gpu-operator", "nvidia-device-plugin-daemonset", 2, {"app": "nvidia-device-plugin-daemonset"}
)
NODES, DEPLOYMENTS, SETS = "objects|nodes", "deployments.apps", "daemonsets.apps"

FAULTS: list[tuple[str, Fault, str]] = [
    ("eks-device-plugin", no_gpus, "not offered by 2 nodes with GPUs: gpu-0, gpu-1"),
    (
        "eks-device-plugin",
        set_to(f"{NODES}|0|status|allocatable|{GPU}", "7"),
        "fewer GPUs are offered",
    ),
    (
        "eks-device-plugin",
        set_to(f"{NODES}|0|status|allocatable|{GPU}", "0"),
        "not offered by 1 node with GPUs",
    ),
    ("eks-device-plugin", down(SETS, "nvdp"), "nvdp-nvidia-device-plugin does not run on every node"),
    ("eks-device-plugin", down(SETS, "efa"), "the EFA device plugin does not run on every node"),
    ("eks-device-plugin", add(SETS, OPERATOR_PLUGIN), "two device plugins hand out the same GPUs"),
    ("eks-device-plugin", down(DEPLOYMENTS, "training-operator"), "the training operator is not at work"),
    ("eks-device-plugin", gone(DEPLOYMENTS, "training-operator"), "no operator is running"),
    ("eks-device-plugin", gone(WEBHOOKS, "training-operator"), "PyTorchJobs are not validated"),
    (
        "eks-device-plugin",
        gone("csidrivers.storage.k8s.io", "ebs"),
        "storage class gp3 has no CSI driver",
    ),
    ("eks-device-plugin", add("resourcequotas", QUOTA), "quota team has no room"),
    ("eks-device-plugin", add("networkpolicies.networking.k8s.io", CLOSED), "may not talk to each other"),
    ("eks-device-plugin", add("persistentvolumeclaims", LOST_CLAIM), "claim data has no volume"),
    ("eks-device-plugin", set_to("objects|namespaces", []), "there is no namespace train"),
    (
        "eks-device-plugin",
        set_to(f"{NODES}|0|status|allocatable|vpc.amazonaws.com/efa", "4"),
        "fewer EFA devices",
    ),
    ("gpu-operator", set_to("objects|clusterpolicies.nvidia.com|0|status|state", "notReady"), "is not ready"),
    ("gpu-operator", down(DEPLOYMENTS, "gpu-operator"), "the GPU operator is not at work"),
    ("gpu-operator", down(SETS, "toolkit"), "nvidia-container-toolkit-daemonset does not run on every node"),
    ("gpu-operator", down(DEPLOYMENTS, "kubeflow-trainer"), "Kubeflow Trainer is not at work"),
    (
        "gpu-operator",
        lambda s: s["served"].pop("jobsets.jobset.x-k8s.io"),
        "Trainer is there, but JobSet is not",
    ),
    ("gpu-operator", down(DEPLOYMENTS, "jobset"), "JobSet is not at work"),
    ("gpu-operator", set_to(f"objects|{CLUSTER_RUNTIMES}", []), "there is no runtime for torch"),
    ("gpu-operator", set_to("version", "v1.30.9"), "is older than Trainer wants"),
    ("auto-mode", no_gpus, "not offered by 2 nodes with GPUs: i-0, i-1"),
    (
        "auto-mode",
        condition(0, "AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
        "1 of 2 nodes cannot",
    ),
    ("auto-mode", condition(1, "Ready", "Unknown", "NodeStatusUnknown"), "cannot be used: i-1"),
    ("bottlerocket", no_gpus, "not offered by 2 nodes with GPUs: br-0, br-1"),
    ("bottlerocket", set_to(f"{NODES}|1|spec|unschedulable", True), "cannot be used: br-1"),
    ("bottlerocket", down(DEPLOYMENTS, "kuberay"), "KubeRay is not at work"),
    ("bottlerocket", set_to("served|rayjobs.ray.io", ["v1alpha1"]), "rayjobs are not served in version v1"),
    ("bottlerocket", down(DEPLOYMENTS, "kueue"), "Kueue is not at work"),
    (
        "bottlerocket",
        set_to("objects|localqueues.kueue.x-k8s.io|0|status|conditions", INACTIVE),
        "takes no jobs",
    ),
    ("dra-only", set_to("objects|resourceslices.resource.k8s.io", []), "not offered by 2 nodes with GPUs"),
    ("dra-only", add("resourceslices.resource.k8s.io", gpu_slice("dra-0", 7, generation=2)), "fewer GPUs"),
    ("dra-only", set_to("version", "v1.33.4"), "GPUs by DRA on Kubernetes v1.33.4"),
    (
        "mixed",
        add("resourceslices.resource.k8s.io", gpu_slice("plugin-0", 8)),
        "the same GPUs are offered twice by 1 node: plugin-0",
    ),
    ("mixed", condition(4, "DiskPressure", "True"), "cannot be used: cpu-0"),
    (
        "hyperpod",
        set_to(f"{NODES}|3|metadata|labels|{HEALTH}", "UnschedulablePendingReplacement"),
        "hyperpod-i-3",
    ),
    ("hyperpod", down(DEPLOYMENTS, "hp-training"), "the HyperPod operator is not at work"),
    ("hyperpod", gone(DEPLOYMENTS, "cert-manager"), "cert-manager is not there"),
    ("hyperpod", set_to(f"{NODES}|0|status|allocatable|{GPU}", "6"), "there are, by 1 node: hyperpod-i-0"),
    ("minikube", gone(DEPLOYMENTS, "kuberay"), "the CRDs of KubeRay are installed, but no operator"),
    (
        "minikube",
        set_to(
            "objects|storageclasses.storage.k8s.io",
            [storage_class("standard", "k8s.io/minikube-hostpath", is_default=True)],
        ),
        "minikube's default storage works on its first node only",
    ),
    ("minikube", condition(0, "Ready", "False", "KubeletNotReady"), "1 of 2 nodes cannot be used: minikube"),
]

"""Eight kinds of clusters, as their API servers describe themselves; nothing is wrong with them.

Written by hand, not recorded.

Each function gives a fresh snapshot as JSON: a test may break it.
"""

from collections.abc import Callable
from typing import Any

from paceline.k8s.rbac import rendered_rights_for

Object = dict[str, Any]

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
HEALTH = "sagemaker.amazonaws.com/node-health-status"
AL2023 = "Amazon Linux 2023.9.20261103"
BOTTLEROCKET = "Bottlerocket OS 1.50.0 (aws-k8s-1.35-nvidia)"
WEBHOOKS = "validatingwebhookconfigurations.admissionregistration.k8s.io"
CLUSTER_RUNTIMES = "clustertrainingruntimes.trainer.kubeflow.org"


def node(
    name: str,
    machine: str,
    *,
    gpus: int = 0,
    efa: int = 0,
    os: str = AL2023,
    zone: str = "eu-west-1a",
    labels: dict[str, str] | None = None,
) -> Object:
    amounts = {"cpu": "95690m", "memory": "1056270Mi", "pods": "100"}
    amounts |= ({GPU: str(gpus)} if gpus else {}) | ({EFA: str(efa)} if efa else {})
    its = {"node.kubernetes.io/instance-type": machine, "topology.kubernetes.io/zone": zone}
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [{"type": name, "status": "False"} for name in pressures] + [
        {"type": "Ready", "status": "True"}
    ]
    return {
        "metadata": {"name": name, "labels": {**its, **(labels or {})}},
        "spec": {},
        "status": {
            "allocatable": amounts,
            "capacity": dict(amounts),
            "conditions": conditions,
            "nodeInfo": {"osImage": os, "kubeletVersion": "v1.35.0", "architecture": "amd64"},
        },
    }


def gpu_slice(where: str, gpus: int, *, driver: str = "gpu.nvidia.com", generation: int = 1) -> Object:
    kind = {"attributes": {"type": {"string": "gpu"}}} if driver == "gpu.nvidia.com" else {}
    return {
        "metadata": {"name": f"{where}-{driver}-{generation}"},
        "spec": {
            "driver": driver,
            "nodeName": where,
            "pool": {"name": where, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": f"device-{number}", **kind} for number in range(gpus)],
        },
    }


def deployment(space: str, name: str, image: str = "", **labels: str) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": space,
            "labels": {k.replace("__", "/"): v for k, v in labels.items()},
        },
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "manager", "image": image}]}}},
        "status": {"replicas": 1, "readyReplicas": 1},
    }


def daemon_set(space: str, name: str, count: int, labels: dict[str, str] | None = None) -> Object:
    return {
        "metadata": {"name": name, "namespace": space, "labels": labels or {}},
        "spec": {"template": {"metadata": {"labels": {}}, "spec": {"containers": []}}},
        "status": {"desiredNumberScheduled": count, "numberReady": count},
    }


def storage_class(name: str, provisioner: str, *, is_default: bool = False) -> Object:
    about: Object = {"name": name}
    if is_default:
        about["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {"metadata": about, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def named(*names: str) -> list[Object]:
    return [{"metadata": {"name": name}} for name in names]


def cluster(**objects: list[Object]) -> Object:
    """Plain EKS without GPUs; `objects` by resource, with __ for dots."""
    results: dict[str, list[Object]] = {
        "nodes": [],
        "namespaces": [{"metadata": {"name": "train", "labels": {}}, "status": {"phase": "Active"}}],
        "deployments.apps": [
            deployment("kube-system", "coredns", "coredns:v1.11.4", **{"k8s-app": "kube-dns"})
        ],
        "daemonsets.apps": [daemon_set("kube-system", "aws-node", 2)],
        "resourceslices.resource.k8s.io": [],
        "storageclasses.storage.k8s.io": [storage_class("gp3", "ebs.csi.aws.com", is_default=True)],
        "csidrivers.storage.k8s.io": named("ebs.csi.aws.com", "efs.csi.aws.com"),
        "resourcequotas": [],
        "persistentvolumeclaims": [],
        "networkpolicies.networking.k8s.io": [],
        WEBHOOKS: [],
    }
    for name, more in objects.items():
        resource = name.replace("__", ".")
        replaces = resource.startswith(("nodes", "storage", "csi"))
        results[resource] = more if replaces else [*results.get(resource, []), *more]
    rights = [right.key for right in rendered_rights_for("jobs.batch")]
    return {
        "schema": "paceline.cluster-snapshot/1",
        "server": "https://0123.gr7.eu-west-1.eks.amazonaws.com",
        "version": "v1.35.2-eks-1a2b3c4",
        "namespace": "train",
        "served": {
            "jobs.batch": ["v1"],
            "deployments.apps": ["v1"],
            "resourceslices.resource.k8s.io": ["v1"],
        },
        "objects": results,
        "refused": [],
        "rights": dict.fromkeys(rights, True),
    }


def serve(snapshot: Object, *resources: str, version: str = "v1") -> Object:
    for resource in resources:
        snapshot["served"][resource] = [version]
        snapshot["rights"] |= {right.key: True for right in rendered_rights_for(resource)}
    return snapshot


def with_training_operator(
    snapshot: Object, image: str = "docker.io/kubeflow/training-operator:v1.9.4"
) -> Object:
    label = {"control-plane": "kubeflow-training-operator"}
    snapshot["objects"]["deployments.apps"].append(
        deployment("kubeflow", "training-operator", image, **label)
    )
    hook = {"name": "validator.pytorchjob.training-operator.kubeflow.org"}
    snapshot["objects"][WEBHOOKS].append({"metadata": {"name": "training-operator"}, "webhooks": [hook]})
    return serve(snapshot, "pytorchjobs.kubeflow.org")


def with_trainer(snapshot: Object) -> Object:
    objects = snapshot["objects"]
    objects["deployments.apps"] += [
        deployment(
            "kubeflow-system", "kubeflow-trainer-controller-manager", app_kubernetes_io__name="trainer"
        ),
        deployment("kubeflow-system", "jobset-controller-manager"),
    ]
    torch = {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}}
    objects[CLUSTER_RUNTIMES] = [{"metadata": torch}]
    objects["trainingruntimes.trainer.kubeflow.org"] = []
    about = {"name": "kubeflow-trainer-public", "namespace": "kubeflow-system"}
    given = {"metadata": about, "data": {"kubeflow_trainer_version": "v2.3.0"}}
    objects.setdefault("configmaps", []).append(given)
    serve(snapshot, "trainjobs.trainer.kubeflow.org", CLUSTER_RUNTIMES, version="v1alpha1")
    return serve(snapshot, "jobsets.jobset.x-k8s.io", version="v1alpha2")


def with_kuberay(snapshot: Object) -> Object:
    label = {"app.kubernetes.io/name": "kuberay-operator"}
    image = "quay.io/kuberay/operator:v1.7.0"
    snapshot["objects"]["deployments.apps"].append(
        deployment("ray-system", "kuberay-operator", image, **label)
    )
    return serve(snapshot, "rayjobs.ray.io", "rayclusters.ray.io")


def with_kueue(snapshot: Object, *frameworks: str) -> Object:
    label = {"app.kubernetes.io/name": "kueue"}
    objects = snapshot["objects"]
    objects["deployments.apps"].append(deployment("kueue-system", "kueue-controller-manager", **label))
    listed = "".join(f"  - {name}\n" for name in frameworks)
    text = f"integrations:\n  frameworks:\n{listed}"
    about = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    objects.setdefault("configmaps", []).append(
        {"metadata": about, "data": {"controller_manager_config.yaml": text}}
    )
    active = {"type": "Active", "status": "True", "message": "Can submit new workloads"}
    queue = {"metadata": {"name": "gpu-queue", "namespace": "train"}, "spec": {"clusterQueue": "gpus"}}
    objects["localqueues.kueue.x-k8s.io"] = [{**queue, "status": {"conditions": [active]}}]
    return serve(snapshot, "localqueues.kueue.x-k8s.io", version="v1beta1")


def eks_device_plugin() -> Object:
    """Managed nodes of Amazon Linux 2023, NVIDIA's and EFA's device plugins by Helm, PyTorchJob."""
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    efa = {"app.kubernetes.io/name": "aws-efa-k8s-device-plugin"}
    return with_training_operator(
        cluster(
            nodes=[node(f"gpu-{n}", "p5.48xlarge", gpus=8, efa=32) for n in range(2)]
            + [node("cpu-0", "m7i.xlarge")],
            daemonsets__apps=[
                daemon_set("kube-system", "nvdp-nvidia-device-plugin", 2, labels),
                daemon_set("kube-system", "efa-aws-efa-k8s-device-plugin", 2, efa),
            ],
        )
    )


def gpu_operator() -> Object:
    """All of NVIDIA's operator; Trainer."""
    parts = ("nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "gpu-feature-discovery")
    present = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8"}
    made = cluster(
        nodes=[node(f"gpu-{n}", "p4d.24xlarge", gpus=8, labels=present) for n in range(2)],
        deployments__apps=[deployment("gpu-operator", "gpu-operator", app="gpu-operator")],
        daemonsets__apps=[daemon_set("gpu-operator", name, 2, {"app": name}) for name in parts],
        clusterpolicies__nvidia__com=[{"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}],
    )
    return with_trainer(serve(made, "clusterpolicies.nvidia.com"))


def auto_mode() -> Object:
    """EKS Auto Mode: no DaemonSet at all, Karpenter, storage of its own."""
    auto = {"eks.amazonaws.com/compute-type": "auto"}
    made = cluster(
        nodes=[
            node(
                f"i-{n}", "g6e.12xlarge", gpus=4, labels=auto, os="Bottlerocket (EKS Auto, Nvidia) 2026.11.1"
            )
            for n in range(2)
        ],
        storageclasses__storage__k8s__io=[
            storage_class("auto-ebs", "ebs.csi.eks.amazonaws.com", is_default=True),
            storage_class("gp2", "kubernetes.io/aws-ebs"),
        ],
        csidrivers__storage__k8s__io=named("ebs.csi.eks.amazonaws.com"),
    )
    made["objects"]["daemonsets.apps"] = []
    return serve(made, "nodepools.karpenter.sh")


def bottlerocket() -> Object:
    """The device plugin is a part of the image; KubeRay and Kueue."""
    made = cluster(nodes=[node(f"br-{n}", "g5.48xlarge", gpus=8, efa=1, os=BOTTLEROCKET) for n in range(2)])
    return with_kueue(with_kuberay(made), "batch/job", "ray.io/rayjob", "ray.io/raycluster")


def dra_only() -> Object:
    """GPUs and EFA by ResourceSlices; nothing in allocatable, no device plugin."""
    names = ["dra-0", "dra-1"]
    slices = [gpu_slice(name, 8) for name in names]
    slices += [gpu_slice(name, 16, driver="dra.net") for name in names]
    return cluster(
        nodes=[node(name, "p5en.48xlarge", labels={"nvidia.com/gpu.present": "true"}) for name in names],
        daemonsets__apps=[daemon_set("nvidia-dra-driver-gpu", "nvidia-dra-driver-gpu-kubelet-plugin", 2)],
        resourceslices__resource__k8s__io=slices,
    )


def mixed() -> Object:
    """Some nodes with a device plugin, some with DRA, some Bottlerocket, some without GPUs, two zones."""
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    made = cluster(
        nodes=[
            node("plugin-0", "p5.48xlarge", gpus=8, efa=32),
            node("plugin-1", "p5.48xlarge", gpus=8, efa=32, zone="eu-west-1b"),
            node("dra-0", "p5en.48xlarge"),
            node("br-0", "g6.12xlarge", gpus=4, os=BOTTLEROCKET),
            node("cpu-0", "c7i.8xlarge"),
        ],
        daemonsets__apps=[daemon_set("kube-system", "nvdp-nvidia-device-plugin", 2, labels)],
        resourceslices__resource__k8s__io=[gpu_slice("dra-0", 8, generation=2), gpu_slice("dra-0", 8)],
    )
    return with_trainer(with_training_operator(made))


def hyperpod() -> Object:
    """SageMaker HyperPod: machines called ml.*, health labels, its operator and cert-manager."""
    health = {HEALTH: "Schedulable", "sagemaker.amazonaws.com/compute-type": "hyperpod"}
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    made = cluster(
        nodes=[node(f"hyperpod-i-{n}", "ml.p5.48xlarge", gpus=8, efa=32, labels=health) for n in range(4)],
        deployments__apps=[
            deployment("aws-hyperpod", "hp-training-operator-hp-training-controller-manager"),
            deployment("cert-manager", "cert-manager"),
        ],
        daemonsets__apps=[daemon_set("kube-system", "hyperpod-nvidia-device-plugin", 4, labels)],
        csidrivers__storage__k8s__io=named("ebs.csi.aws.com", "fsx.csi.aws.com"),
    )
    tag = "public.ecr.aws/hyperpod/training-operator:v1-855e096"  # no version that could be compared
    return with_training_operator(serve(made, "hyperpodpytorchjobs.sagemaker.amazonaws.com"), tag)


def minikube() -> Object:
    """Two nodes on a laptop, without GPUs; KubeRay."""
    made = cluster(
        nodes=[
            node("minikube", "", os="Ubuntu 24.04.3 LTS"),
            node("minikube-m02", "", os="Ubuntu 24.04.3 LTS"),
        ],
        storageclasses__storage__k8s__io=[
            storage_class("local-path", "rancher.io/local-path", is_default=True),
            storage_class("standard", "k8s.io/minikube-hostpath"),
        ],
        csidrivers__storage__k8s__io=[],
    )
    made["server"] = "https://192.168.49.2:8443"
    made["version"] = "v1.35.0"
    return with_kuberay(made)


CLUSTERS: dict[str, Callable[[], Object]] = {
    "eks-device-plugin": eks_device_plugin,
    "gpu-operator": gpu_operator,
    "auto-mode": auto_mode,
    "bottlerocket": bottlerocket,
    "dra-only": dra_only,
    "mixed": mixed,
    "hyperpod": hyperpod,
    "minikube": minikube,
}

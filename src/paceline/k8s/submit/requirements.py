"""Requirements of a job, read from its manifests: pods, references, versions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.core.errors import Problem
from paceline.k8s.diagnose.snapshot import JOB_KINDS, Object, name_of
from paceline.k8s.objects import ELASTIC_NODES, mapping, mappings, pod_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A number of pods with the same spec."""

    name: str
    count: int
    pod: Object  # {"spec": …}


def job_in(manifests: Sequence[Object]) -> Object | None:
    """The one object that represents the whole job; None if there is none, or more than one."""
    jobs = [manifest for manifest in manifests if manifest.get("kind") in JOB_KINDS]
    return jobs[0] if len(jobs) == 1 else None


def roles(manifests: Sequence[Object]) -> list[Role]:
    job = job_in(manifests)
    if job is None:
        return []
    spec = mapping(job, "spec")
    match job.get("kind"):
        case "Job":
            read = _of_job(spec)
        case "PyTorchJob":
            read = _of_pytorchjob(spec)
        case "HyperPodPyTorchJob":
            read = _of_hyperpod(spec)
        case "RayCluster":
            read = _of_ray(spec)
        case "RayJob":
            read = _of_rayjob(spec)
        case "TrainJob":
            read = _of_trainjob(spec, manifests)
        case _:
            read = iter(())
    return [role for role in _with_fewest_hosts(job, read) if role.count > 0]


_HOST_ROLES = ("worker", "node")  # of a PyTorchJob, of a TrainJob


def _with_fewest_hosts(job: Object, read: Iterable[Role]) -> list[Role]:
    """An elastic job begins when the fewest of its hosts have room; others join when they have."""
    annotation = str(mapping(job, "metadata", "annotations").get(ELASTIC_NODES, ""))
    least = annotation.partition(":")[0]
    if not least.isdigit():
        return list(read)
    if job.get("kind") == "Job":  # hosts and the command have one role
        return [replace(role, count=min(role.count, int(least) + 1)) for role in read]
    return [
        replace(role, count=min(role.count, int(least))) if role.name in _HOST_ROLES else role
        for role in read
    ]


def _of_job(spec: Object) -> Iterator[Role]:
    at_once = min(_number(spec, "parallelism", 1), _number(spec, "completions", 1 << 30))
    yield _role("pod", at_once, spec)


def _of_pytorchjob(spec: Object) -> Iterator[Role]:
    for name, replica in mapping(spec, "pytorchReplicaSpecs").items():
        yield _role(name.lower(), _number(mapping(replica), "replicas", 1), mapping(replica))


def _of_hyperpod(spec: Object) -> Iterator[Role]:
    for replica in mappings(spec, "replicaSpecs"):
        count = _number(replica, "replicas", 1) + _number(replica, "spares", 0)
        yield _role(str(replica.get("name", "pod")), count, replica)


def _of_ray(spec: Object) -> Iterator[Role]:
    yield _role("head", 1, mapping(spec, "headGroupSpec"))
    for group in mappings(spec, "workerGroupSpecs"):
        count = _number(group, "replicas", _number(group, "minReplicas", 0))
        yield _role(str(group.get("groupName", "worker")), count, group)


def _of_rayjob(spec: Object) -> Iterator[Role]:
    yield from _of_ray(mapping(spec, "rayClusterSpec"))
    submitter = mapping(spec, "submitterPodTemplate")
    if submitter:
        yield Role(name="submitter", count=1, pod=submitter)


def _of_trainjob(spec: Object, manifests: Sequence[Object]) -> Iterator[Role]:
    """Its own fields replace those of its runtime; a runtime of the cluster is not read."""
    trainer = mapping(spec, "trainer")
    placed: dict[str, object] = {}
    for template in (*_runtime_pods(spec, manifests), *_patched_pods(spec)):
        inner = mapping(template, "spec")
        placed |= {name: inner[name] for name in ("nodeSelector", "tolerations") if name in inner}
    if "resourcesPerNode" not in trainer and (own := list(_runtime_roles(spec, manifests))):
        yield from (
            replace(role, count=_number(trainer, "numNodes", 1)) if role.name == "node" else role
            for role in own
        )
        return
    container: dict[str, object] = {"name": "node", "resources": trainer.get("resourcesPerNode", {})}
    pod: dict[str, object] = {"spec": {**placed, "containers": [container]}}
    yield Role(name="node", count=_number(trainer, "numNodes", 1), pod=pod)


def prerequisites(job: Object, manifests: Sequence[Object]) -> list[Object]:
    """Those of the manifests that must be in the cluster before the job: a TrainJob's runtime."""
    reference = mapping(job, "spec", "runtimeRef")
    kind = reference.get("kind", "ClusterTrainingRuntime")  # Trainer's default
    return [
        manifest
        for manifest in manifests
        if reference and (manifest.get("kind"), name_of(manifest)) == (kind, reference.get("name"))
    ]


def _runtime_roles(spec: Object, manifests: Sequence[Object]) -> Iterator[Role]:
    """The jobs of the TrainJob's own runtime, as that has them."""
    for prerequisite in prerequisites({"spec": spec}, manifests):
        for job in mappings(prerequisite, "spec", "template", "spec", "replicatedJobs"):
            yield _role(str(job.get("name", "")), 1, mapping(job, "template", "spec"))


def _runtime_pods(spec: Object, manifests: Sequence[Object]) -> Iterator[Object]:
    for prerequisite in prerequisites({"spec": spec}, manifests):
        yield from _replicated(mapping(prerequisite, "spec", "template", "spec"))


def _patched_pods(spec: Object) -> Iterator[Object]:
    for patch in mappings(spec, "runtimePatches"):
        yield from _replicated(mapping(patch, "trainingRuntimeSpec", "template", "spec"))


def _replicated(spec: Object) -> Iterator[Object]:
    for job in mappings(spec, "replicatedJobs"):
        if job.get("name") == "node":
            yield mapping(job, "template", "spec", "template")


def _role(name: str, count: int, parent: Mapping[str, object]) -> Role:
    return Role(name=name, count=count, pod=mapping(parent, "template"))


def _number(value: Object, name: str, default: int) -> int:
    number = value.get(name)
    return number if isinstance(number, int) else default


# Read from the manifests before anything exists. Only names: what a Secret holds is never read.

CLAIM = "PersistentVolumeClaim"
SECRET = "Secret"
CONFIG_MAP = "ConfigMap"
ACCOUNT = "ServiceAccount"
PRIORITY = "PriorityClass"


@dataclass(frozen=True, slots=True)
class Reference:
    kind: str
    name: str
    is_required: bool = True  # False: the pod starts without it


def references(manifests: Sequence[Object]) -> list[Reference]:
    """Each reference once, required before optional ones; without objects in the manifests themselves."""
    included = {(str(manifest.get("kind")), name_of(manifest)) for manifest in manifests}
    collected: dict[tuple[str, str], Reference] = {}
    for obj in manifests:
        for reference in _of_object(obj):
            key = (reference.kind, reference.name)
            if key in included or not reference.name:
                continue
            if key not in collected or reference.is_required:
                collected[key] = reference
    return list(collected.values())


def _of_object(obj: Object) -> Iterator[Reference]:
    for pod in pod_specs(mapping(obj, "spec")):
        yield from _of_pod(pod)
    if obj.get("kind") != "TrainJob":
        return
    for part in ("dataset", "model"):
        secret = mapping(obj, "spec", "initializer", part, "secretRef")
        yield from _named(SECRET, secret, "name")
    yield from _of_container(mapping(obj, "spec", "trainer"))


def _of_pod(pod: Object) -> Iterator[Reference]:
    for volume in mappings(pod, "volumes"):
        yield from _of_volume(volume)
    for kind in ("initContainers", "containers"):
        for container in mappings(pod, kind):
            yield from _of_container(container)
    for secret in mappings(pod, "imagePullSecrets"):
        # The kubelet tries without it: the image may be public.
        yield Reference(SECRET, str(secret.get("name", "")), is_required=False)
    account = pod.get("serviceAccountName") or pod.get("serviceAccount") or "default"
    if account != "default":  # which every namespace has
        yield Reference(ACCOUNT, str(account))
    if pod.get("priorityClassName"):
        yield Reference(PRIORITY, str(pod["priorityClassName"]))


def _of_volume(volume: Object) -> Iterator[Reference]:
    yield from _named(CLAIM, mapping(volume, "persistentVolumeClaim"), "claimName")
    yield from _named(SECRET, mapping(volume, "secret"), "secretName")
    yield from _named(CONFIG_MAP, mapping(volume, "configMap"), "name")
    for source in mappings(volume, "projected", "sources"):
        yield from _named(SECRET, mapping(source, "secret"), "name")
        yield from _named(CONFIG_MAP, mapping(source, "configMap"), "name")


def _of_container(container: Object) -> Iterator[Reference]:
    for variable in mappings(container, "env"):
        yield from _named(SECRET, mapping(variable, "valueFrom", "secretKeyRef"), "name")
        yield from _named(CONFIG_MAP, mapping(variable, "valueFrom", "configMapKeyRef"), "name")
    for source in mappings(container, "envFrom"):
        yield from _named(SECRET, mapping(source, "secretRef"), "name")
        yield from _named(CONFIG_MAP, mapping(source, "configMapRef"), "name")


def _named(kind: str, source: Object, key: str) -> Iterator[Reference]:
    if source.get(key):
        yield Reference(kind, str(source[key]), is_required=source.get("optional") is not True)


# A server of another version refuses them at best; at worst it drops them without a word.

# Fields of a TrainJob that an older Trainer than 2.3, the one that is supported, does not know.
_SINCE_22 = ("runtimePatches", "activeDeadlineSeconds")


def has_train_job(manifests: Sequence[Object]) -> bool:
    return any(manifest.get("kind") == "TrainJob" for manifest in manifests)


def find_version_mismatch(manifests: Sequence[Object], version: str) -> Problem | None:
    """`version` is the cluster's, such as 2.3.0. None when all fields are known to it."""
    minor = re.match(r"(\d+)\.(\d+)", version)
    if minor is None or (int(minor[1]), int(minor[2])) >= (2, 2):
        return None
    fields = [
        f"TrainJob/{name_of(manifest)} spec.{name}"
        for manifest in manifests
        if manifest.get("kind") == "TrainJob"
        for name in _SINCE_22
        if name in mapping(manifest, "spec")
    ]
    if not fields:
        return None
    message = f"the cluster has Kubeflow Trainer {version}, but {', '.join(fields)} needs 2.2 or newer"
    return Problem(message, "update Kubeflow Trainer to 2.3")

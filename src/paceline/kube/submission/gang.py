"""Which pods will a job want all at once? Read from its manifests, before anything exists."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.kube.diagnosis.snapshot import JOB_KINDS, Object, name_of
from paceline.kube.reading import mapping, mappings


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """So many pods of one shape."""

    name: str
    count: int
    pod: Object  # {"spec": …}


def job_in(manifests: Sequence[Object]) -> Object | None:
    """The one object that stands for the whole job; None if there is none, or more than one."""
    found = [one for one in manifests if one.get("kind") in JOB_KINDS]
    return found[0] if len(found) == 1 else None


def roles(manifests: Sequence[Object]) -> list[Role]:
    job = job_in(manifests)
    if job is None:
        return []
    spec = mapping(job, "spec")
    match job.get("kind"):
        case "Job":
            found = _of_job(spec)
        case "PyTorchJob":
            found = _of_pytorchjob(spec)
        case "HyperPodPyTorchJob":
            found = _of_hyperpod(spec)
        case "RayCluster":
            found = _of_ray(spec)
        case "RayJob":
            found = _of_rayjob(spec)
        case "TrainJob":
            found = _of_trainjob(spec, manifests)
        case _:
            found = iter(())
    return [role for role in found if role.count > 0]


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
    """What it says itself replaces what its runtime says; a runtime of the cluster is not looked into."""
    trainer = mapping(spec, "trainer")
    placed: dict[str, object] = {}
    for template in (*_runtime_pods(spec, manifests), *_patched_pods(spec)):
        inner = mapping(template, "spec")
        placed |= {name: inner[name] for name in ("nodeSelector", "tolerations") if name in inner}
    container: dict[str, object] = {"name": "node", "resources": trainer.get("resourcesPerNode", {})}
    pod: dict[str, object] = {"spec": {**placed, "containers": [container]}}
    yield Role(name="node", count=_number(trainer, "numNodes", 1), pod=pod)


def refers_to(job: Object, manifests: Sequence[Object]) -> list[Object]:
    """Those of the manifests that must be in the cluster before the job: a TrainJob's runtime."""
    wanted = mapping(job, "spec", "runtimeRef")
    kind = wanted.get("kind", "ClusterTrainingRuntime")  # Trainer's default
    return [
        one for one in manifests if wanted and (one.get("kind"), name_of(one)) == (kind, wanted.get("name"))
    ]


def _runtime_pods(spec: Object, manifests: Sequence[Object]) -> Iterator[Object]:
    for one in refers_to({"spec": spec}, manifests):
        yield from _replicated(mapping(one, "spec", "template", "spec"))


def _patched_pods(spec: Object) -> Iterator[Object]:
    yield from mappings(spec, "podTemplateOverrides")  # Trainer 2.1
    for patch in mappings(spec, "runtimePatches"):
        yield from _replicated(mapping(patch, "trainingRuntimeSpec", "template", "spec"))


def _replicated(spec: Object) -> Iterator[Object]:
    for one in mappings(spec, "replicatedJobs"):
        if one.get("name") == "node":
            yield mapping(one, "template", "spec", "template")


def _role(name: str, count: int, parent: Mapping[str, object]) -> Role:
    return Role(name=name, count=count, pod=mapping(parent, "template"))


def _number(value: Object, name: str, otherwise: int) -> int:
    found = value.get(name)
    return found if isinstance(found, int) else otherwise

"""Rules of training-operator, HyperPod and Trainer, in the words of their webhooks.

See pkg/webhooks/pytorch of kubeflow/training-operator 1.9.
"""

import re
from collections.abc import Iterator, Mapping

from paceline.k8s.objects import DNS_SUBDOMAIN, INSTANCE_TYPE, mapping, mappings, texts
from paceline.k8s.spec.command import read_torchrun
from paceline.k8s.validate.admission import (
    find_duplicates,
    find_in_commands,
    find_in_job_spec,
    find_in_pod,
    find_in_resources,
    find_in_variables,
    find_in_volume,
)
from paceline.k8s.validate.schema import Finding, Path

Spec = Mapping[str, object]
CONTAINER = "pytorch"
_OF_THE_POLICY = ("nnodes", "node_rank", "rdzv_backend", "rdzv_id", "max_restarts")
_SET_WITH_A_MASTER = ("$(RANK)", "$(WORLD_SIZE)", "$(MASTER_ADDR)", "$(MASTER_PORT)")


def pods_of_pytorchjob(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    for name, replica in mapping(spec, "pytorchReplicaSpecs").items():
        yield mapping(replica, "template", "spec"), (*path, "pytorchReplicaSpecs", name, "template", "spec")


def find_in_pytorchjob(spec: Spec, path: Path) -> Iterator[Finding]:
    replicas = mapping(spec, "pytorchReplicaSpecs")
    where = (*path, "pytorchReplicaSpecs")
    if not replicas:
        yield Finding(where, "Required value: must be required", "add Master, or Worker with elasticPolicy")
    for name in replicas:
        yield from _replica(name, mapping(replicas, name), (*where, name))
    yield from _elastic(spec, path)
    if "Master" not in replicas and "elasticPolicy" not in spec:
        yield from _unset_master_variables(spec, path)
    if "elasticPolicy" in spec:
        yield from _duplicate_flags(spec, path)
    nodes = sum(_number(mapping(replicas, name).get("replicas", 1)) for name in replicas)
    procs = spec.get("nprocPerNode")
    for pod, inside in pods_of_pytorchjob(spec, path):
        fixed = nodes if "elasticPolicy" not in spec else None
        yield from find_in_commands(pod, inside, fixed, procs if isinstance(procs, str) else None)


def _replica(name: str, replica: Spec, path: Path) -> Iterator[Finding]:
    pod = mapping(replica, "template", "spec")
    where = (*path, "template", "spec")
    containers = mappings(pod, "containers")
    if not containers:
        yield Finding((*where, "containers"), "Required value: must be specified", "add a container")
    yield from find_in_pod(pod, where)
    for number, container in enumerate(containers):
        if not container.get("image"):
            yield Finding(
                (*where, "containers", number, "image"), "Required value: must be required", "add image"
            )
    if containers and CONTAINER not in [container.get("name") for container in containers]:
        message = f"Required value: must have at least one container with name {CONTAINER}"
        yield Finding((*where, "containers"), message, f"name the training container {CONTAINER}")
    count = replica.get("replicas")
    if name == "Master" and count != 1:
        yield Finding((*path, "replicas"), "Forbidden: must be 1", "write replicas: 1; it has no default")
    if name == "Worker" and count is not None and _number(count) < 1:
        yield Finding((*path, "replicas"), "Forbidden: must be at least 1", "leave Worker out, or write 1")


def _elastic(spec: Spec, path: Path) -> Iterator[Finding]:
    if "elasticPolicy" not in spec:
        return
    policy = mapping(spec, "elasticPolicy")
    where = (*path, "elasticPolicy")
    if "Worker" not in mapping(spec, "pytorchReplicaSpecs"):
        message = "Required value: must be configured if elastic policy is used"
        yield Finding((*path, "pytorchReplicaSpecs", "Worker"), message, "name the replicas Worker")
    if "nProcPerNode" in policy and "nprocPerNode" in spec:
        message = "Forbidden: must not be used with spec.nprocPerNode"
        yield Finding((*where, "nProcPerNode"), message, "keep spec.nprocPerNode")
    minimum = policy.get("minReplicas")
    maximum = policy.get("maxReplicas")
    if isinstance(minimum, int) and isinstance(maximum, int) and minimum > maximum:
        message = f"minReplicas {minimum} is more than maxReplicas {maximum}"
        yield Finding((*where, "minReplicas"), message, "change one of the two", is_advice=True)
    replicas = mapping(spec, "pytorchReplicaSpecs", "Worker").get("replicas", 1)
    if isinstance(replicas, int) and not _number(minimum) <= replicas <= (
        maximum if isinstance(maximum, int) else replicas
    ):
        message = (
            f"there are {replicas} Workers, which is not from minReplicas {minimum} to maxReplicas {maximum}"
        )
        inside = (*path, "pytorchReplicaSpecs", "Worker", "replicas")
        yield Finding(inside, message, "change one of the three", is_advice=True)


def _unset_master_variables(spec: Spec, path: Path) -> Iterator[Finding]:
    for pod, where in pods_of_pytorchjob(spec, path):
        for number, container in enumerate(mappings(pod, "containers")):
            command = " ".join([*texts(container, "command"), *texts(container, "args")])
            missing = [name for name in _SET_WITH_A_MASTER if name in command]
            if missing:
                message = f"without a Master nothing sets {', '.join(name[2:-1] for name in missing)}"
                inside = (*where, "containers", number, "args")
                yield Finding(inside, message, "add a Master, or elasticPolicy", is_advice=True)


def _duplicate_flags(spec: Spec, path: Path) -> Iterator[Finding]:
    """With an elastic policy the operator sets PET_NNODES and the like; torchrun takes the flag instead."""
    for pod, where in pods_of_pytorchjob(spec, path):
        for number, container in enumerate(mappings(pod, "containers")):
            read = read_torchrun([*texts(container, "command"), *texts(container, "args")])
            for name in _OF_THE_POLICY:
                if read is not None and name in read.flags:
                    message = f"torchrun uses --{name} from this flag, not from elasticPolicy"
                    inside = (*where, "containers", number, "args")
                    yield Finding(
                        inside, message, f"leave --{name} out, unless it is intended", is_advice=True
                    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


_TYPES = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")


def pods_of_hyperpod(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    for number, replica in enumerate(mappings(spec, "replicaSpecs")):
        yield mapping(replica, "template", "spec"), (*path, "replicaSpecs", number, "template", "spec")


def find_in_hyperpod(spec: Spec, path: Path) -> Iterator[Finding]:
    replicas = mappings(spec, "replicaSpecs")
    if not replicas:
        yield Finding((*path, "replicaSpecs"), "there are no pods in it", "add replicaSpecs")
    yield from find_duplicates(
        (replica.get("name") for replica in replicas), (*path, "replicaSpecs"), "replica"
    )
    nodes = sum(count for replica in replicas if isinstance(count := replica.get("replicas", 1), int))
    procs = spec.get("nprocPerNode")
    for number, replica in enumerate(replicas):
        if "template" not in replica:
            yield Finding((*path, "replicaSpecs", number), "it has no template for its pods", "add template")
    for pod, where in pods_of_hyperpod(spec, path):
        yield from find_in_pod(pod, where)
        yield from _started_by_its_agent(pod, where)
        yield from _types(pod, where)
        yield from find_in_commands(pod, where, nodes, procs if isinstance(procs, str) else None)
    yield from _patterns(mapping(spec, "runPolicy"), (*path, "runPolicy"))


def _started_by_its_agent(pod: Spec, path: Path) -> Iterator[Finding]:
    for number, container in enumerate(mappings(pod, "containers")):
        argv = [*texts(container, "command"), *texts(container, "args")]
        if argv and argv[0].rpartition("/")[2] == "torchrun":
            message = "torchrun does not respond to HyperPod's operator, which then considers the pods dead"
            where = (*path, "containers", number, "command" if container.get("command") else "args")
            hint = "use hyperpodrun, of an image with hyperpod-elastic-agent in it"
            yield Finding(where, message, hint, is_advice=True)


def _types(pod: Spec, path: Path) -> Iterator[Finding]:
    for name in _TYPES:
        value = mapping(pod, "nodeSelector").get(name)
        if isinstance(value, str) and not value.startswith("ml."):
            message = f"{value} is not an instance type of HyperPod: those start with ml."
            yield Finding((*path, "nodeSelector", name), message, f"write ml.{value}", is_advice=True)


def _patterns(policy: Spec, path: Path) -> Iterator[Finding]:
    rules = mappings(policy, "logMonitoringConfiguration")
    where = (*path, "logMonitoringConfiguration")
    yield from find_duplicates((rule.get("name") for rule in rules), where, "rule")
    for number, rule in enumerate(rules):
        for name in ("logPattern", "stopPattern"):
            try:
                re.compile(str(rule.get(name, "")))
            except re.error as error:
                yield Finding(
                    (*where, number, name), f"it cannot be searched for: {error}", "fix the pattern"
                )


# See pkg/webhooks and pkg/runtime/framework/plugins of kubeflow/trainer 2.3.

RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_GROUP = "trainer.kubeflow.org"
_MANAGERS = (f"{_GROUP}/trainjob-controller", "kueue.x-k8s.io/multikueue")
_RESERVED = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
_OWN = ("dataset-initializer", "model-initializer", "node")
_POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
_WORDS_OF_PROCS = ("auto", "cpu", "gpu")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_PATCHED = ("template", "spec", "replicatedJobs")


def patched_pods(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    """Patches of pods by a TrainJob: never whole pods."""
    for number, patch in enumerate(mappings(spec, "runtimePatches")):
        inside = (*path, "runtimePatches", number, "trainingRuntimeSpec", *_PATCHED)
        for index, job in enumerate(mappings(patch, "trainingRuntimeSpec", *_PATCHED)):
            where = (*inside, index, "template", "spec", "template", "spec")
            yield mapping(job, "template", "spec", "template", "spec"), where


def find_in_trainjob(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from _references(spec, path)
    yield from _trainer(mapping(spec, "trainer"), (*path, "trainer"))
    managers = (patch.get("manager") for patch in mappings(spec, "runtimePatches"))
    yield from find_duplicates(managers, (*path, "runtimePatches"), "manager")
    for number, patch in enumerate(mappings(spec, "runtimePatches")):
        jobs = (job.get("name") for job in mappings(patch, "trainingRuntimeSpec", *_PATCHED))
        yield from find_duplicates(jobs, (*path, "runtimePatches", number), "job")
        prefix, slash, rest = str(patch.get("manager")).partition("/")
        if not (slash and rest and DNS_SUBDOMAIN.fullmatch(prefix)):
            message = 'must be a domain-prefixed path (such as "acme.io/foo")'
            where = (*path, "runtimePatches", number, "manager")
            yield Finding(where, message, "write paceline.dev/launcher, for example")
    for pod, where in patched_pods(spec, path):
        yield from _patch(pod, where)


def _references(spec: Spec, path: Path) -> Iterator[Finding]:
    reference = mapping(spec, "runtimeRef")
    where = (*path, "runtimeRef")
    kind = reference.get("kind", RUNTIMES[0])
    group = reference.get("apiGroup", _GROUP)
    if kind not in RUNTIMES or group != _GROUP:
        message = f"unsupported runtime: {kind}.{group}"
        yield Finding(where, message, f"write kind: {RUNTIMES[0]} or {RUNTIMES[1]}, apiGroup: {_GROUP}")
    if spec.get("managedBy", _MANAGERS[0]) not in _MANAGERS:
        message = f"ManagedBy must be {_MANAGERS[0]} or {_MANAGERS[1]} if set"
        yield Finding((*path, "managedBy"), message, "leave it out")
    for name in ("dataset", "model"):
        uri = mapping(spec, "initializer", name).get("storageUri")
        if isinstance(uri, str) and uri and not _URI.fullmatch(uri):
            message = "storageUri may be empty, or it must be a valid URI (scheme://...)"
            yield Finding(
                (*path, "initializer", name, "storageUri"), message, "write s3://bucket/data, for example"
            )


def _trainer(trainer: Spec, path: Path) -> Iterator[Finding]:
    procs = trainer.get("numProcPerNode")
    if isinstance(procs, str) and procs not in _WORDS_OF_PROCS:
        message = f"must have an int value or [{' '.join(_WORDS_OF_PROCS)}]"
        yield Finding((*path, "numProcPerNode"), message, "write numProcPerNode: 1, for example")
    names = {str(variable.get("name")) for variable in mappings(trainer, "env")}
    if taken := sorted(names.intersection(_RESERVED)):
        message = f"must not have reserved envs, invalid envs configured: [{' '.join(taken)}]"
        yield Finding((*path, "env"), message, "leave them out: Trainer sets them")
    yield from find_in_variables(trainer, path)
    yield from find_in_resources(mapping(trainer, "resourcesPerNode"), (*path, "resourcesPerNode"))
    container = {"command": trainer.get("command"), "args": trainer.get("args")}
    nodes = trainer.get("numNodes", 1)
    command = texts(container, "command")
    if command and isinstance(nodes, int):
        pod = {"containers": [container]}
        for finding in find_in_commands(pod, (), nodes, None if procs is None else str(procs)):
            yield Finding((*path, "args"), finding.what, finding.hint)


def _patch(pod: Spec, path: Path) -> Iterator[Finding]:
    for kind in ("initContainers", "containers"):
        yield from find_duplicates((c.get("name") for c in mappings(pod, kind)), (*path, kind), "container")
        for number, container in enumerate(mappings(pod, kind)):
            where = (*path, kind, number)
            yield from find_duplicates(
                (m.get("name") for m in mappings(container, "volumeMounts")), where, "mount"
            )
            if kind == "containers" and container.get("env") and container.get("name") in _OWN:
                message = f"must not have envs for the {', '.join(_OWN)} containers"
                yield Finding((*where, "env"), message, "write them in trainer.env")
    yield from find_duplicates(
        (v.get("name") for v in mappings(pod, "volumes")), (*path, "volumes"), "volume"
    )
    for number, volume in enumerate(mappings(pod, "volumes")):
        yield from find_in_volume(volume, (*path, "volumes", number))


def pods_of_runtime(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    for number, job in enumerate(mappings(spec, *_PATCHED)):
        where = (*path, *_PATCHED, number, "template", "spec", "template", "spec")
        yield mapping(job, "template", "spec", "template", "spec"), where


def find_in_runtime(spec: Spec, path: Path) -> Iterator[Finding]:
    policy = mapping(spec, "mlPolicy")
    if len([name for name in _POLICIES if name in policy]) > 1:
        yield Finding((*path, "mlPolicy"), "Only one of the policy can be configured", "keep one of them")
    jobs = mappings(spec, *_PATCHED)
    where = (*path, *_PATCHED)
    yield from find_duplicates((job.get("name") for job in jobs), where, "job")
    if not jobs:
        yield Finding(where, "there is no job in it", "add replicatedJobs with a job called node")
    for number, job in enumerate(jobs):
        inside = (*where, number, "template", "spec")
        yield from find_in_job_spec(mapping(job, "template", "spec"), inside, default_policy="OnFailure")
    names = {
        c.get("name")
        for job in jobs
        for c in mappings(job, "template", "spec", "template", "spec", "containers")
    }
    if "torch" in policy and jobs and not ({"node"} <= {job.get("name") for job in jobs} and "node" in names):
        message = "there is no job named node with a container named node, which Trainer requires"
        yield Finding(where, message, "name both node", is_advice=True)
    template = mapping(spec, "template", "spec")
    ordered = mapping(template, "startupPolicy").get("startupPolicyOrder") == "InOrder"
    if ordered and any("dependsOn" in job for job in jobs):
        message = "StartupPolicy and DependsOn APIs are mutually exclusive"
        yield Finding((*path, "template", "spec", "startupPolicy"), message, "keep dependsOn")

"""What does training-operator refuse, or silently not do, about a PyTorchJob? In its webhook's own words.

See pkg/webhooks/pytorch of kubeflow/training-operator 1.9.
"""

from collections.abc import Iterator, Mapping

from paceline.kube.admission_job import find_in_commands
from paceline.kube.admission_pod import find_in_pod
from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.torchrun_words import read_torchrun

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
        yield from _nobody_says_who(spec, path)
    if "elasticPolicy" in spec:
        yield from _said_twice(spec, path)
    nodes = sum(_number(mapping(replicas, name).get("replicas", 1)) for name in replicas)
    procs = spec.get("nprocPerNode")
    for pod, inside in pods_of_pytorchjob(spec, path):
        fixed = nodes if "elasticPolicy" not in spec else None
        yield from find_in_commands(pod, inside, fixed, procs if isinstance(procs, str) else None)


def _replica(name: str, replica: Spec, path: Path) -> Iterator[Finding]:
    pod, where = mapping(replica, "template", "spec"), (*path, "template", "spec")
    containers = mappings(pod, "containers")
    if not containers:
        yield Finding((*where, "containers"), "Required value: must be specified", "add a container")
    yield from find_in_pod(pod, where)
    for number, one in enumerate(containers):
        if not one.get("image"):
            yield Finding(
                (*where, "containers", number, "image"), "Required value: must be required", "add image"
            )
    if containers and CONTAINER not in [one.get("name") for one in containers]:
        what = f"Required value: must have at least one container with name {CONTAINER}"
        yield Finding((*where, "containers"), what, f"call the container that trains {CONTAINER}")
    count = replica.get("replicas")
    if name == "Master" and count != 1:
        yield Finding((*path, "replicas"), "Forbidden: must be 1", "write replicas: 1; it has no default")
    if name == "Worker" and count is not None and _number(count) < 1:
        yield Finding((*path, "replicas"), "Forbidden: must be at least 1", "leave Worker out, or write 1")


def _elastic(spec: Spec, path: Path) -> Iterator[Finding]:
    if "elasticPolicy" not in spec:
        return
    policy, where = mapping(spec, "elasticPolicy"), (*path, "elasticPolicy")
    if "Worker" not in mapping(spec, "pytorchReplicaSpecs"):
        what = "Required value: must be configured if elastic policy is used"
        yield Finding((*path, "pytorchReplicaSpecs", "Worker"), what, "call the replicas Worker")
    if "nProcPerNode" in policy and "nprocPerNode" in spec:
        what = "Forbidden: must not be used with spec.nprocPerNode"
        yield Finding((*where, "nProcPerNode"), what, "keep spec.nprocPerNode")
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        what = f"minReplicas {least} is more than maxReplicas {most}"
        yield Finding((*where, "minReplicas"), what, "change one of the two", is_advice=True)
    wanted = mapping(spec, "pytorchReplicaSpecs", "Worker").get("replicas", 1)
    if isinstance(wanted, int) and not _number(least) <= wanted <= (
        most if isinstance(most, int) else wanted
    ):
        what = f"there are {wanted} Workers, which is not from minReplicas {least} to maxReplicas {most}"
        inside = (*path, "pytorchReplicaSpecs", "Worker", "replicas")
        yield Finding(inside, what, "change one of the three", is_advice=True)


def _nobody_says_who(spec: Spec, path: Path) -> Iterator[Finding]:
    for pod, where in pods_of_pytorchjob(spec, path):
        for number, one in enumerate(mappings(pod, "containers")):
            said = " ".join([*texts(one, "command"), *texts(one, "args")])
            missing = [name for name in _SET_WITH_A_MASTER if name in said]
            if missing:
                what = f"without a Master nobody sets {', '.join(name[2:-1] for name in missing)}"
                inside = (*where, "containers", number, "args")
                yield Finding(inside, what, "add a Master, or elasticPolicy", is_advice=True)


def _said_twice(spec: Spec, path: Path) -> Iterator[Finding]:
    """With an elastic policy the operator sets PET_NNODES and the like; torchrun takes the flag instead."""
    for pod, where in pods_of_pytorchjob(spec, path):
        for number, one in enumerate(mappings(pod, "containers")):
            read = read_torchrun([*texts(one, "command"), *texts(one, "args")])
            for name in _OF_THE_POLICY:
                if read is not None and name in read.flags:
                    what = f"torchrun takes --{name} from this flag, and not from elasticPolicy"
                    inside = (*where, "containers", number, "args")
                    yield Finding(inside, what, f"leave --{name} out, unless you mean it", is_advice=True)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

"""Seven mutations of a manifest at a random place; validation must notice each of them."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Where = tuple[str | int, ...]
Mutation = Callable[[Any, Where, random.Random], bool]
FREE = ("labels", "annotations", "matchLabels", "selector", "data", "nodeSelector")  # any name may stand here
LONG = "x" * 300


def paths_in(value: object, path: Where = ()) -> Iterator[Where]:
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths_in(inner, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from paths_in(item, (*path, number))


def at(value: Any, path: Where) -> Any:
    for step in path:
        value = value[step]
    return value


def misspell(item: Any, path: Where, rng: random.Random) -> bool:
    """A name with a letter too few, too many, or two in the wrong order."""
    name = path[-1]
    parent = at(item, path[:-1])
    if isinstance(name, int) or any(step in FREE for step in path[:-1]):
        return False
    swap = rng.randrange(len(name) - 1)
    wrong = rng.choice([name[:-1], name + "s", name[:swap] + name[swap + 1] + name[swap] + name[swap + 2 :]])
    if wrong in parent or not wrong or wrong == name:
        return False
    parent[wrong] = parent.pop(name)
    return True


def mistype(item: Any, path: Where, rng: random.Random) -> bool:
    wrong: dict[type, list[Any]] = {
        dict: ["text", [1], 3],
        list: ["text", {"a": 1}, 3],
        bool: ["yes", 1],
        int: ["three", -5, 1.5, [1]],
        str: [["a"], {"a": "b"}, 3.25],
    }
    value = at(item, path)
    if path[-2:-1] in (("requests",), ("limits",)) or path[-1] == "sizeLimit":
        return False  # an amount may be a number: `garble` sees to it
    at(item, path[:-1])[path[-1]] = rng.choice(wrong[type(value)])
    return True


_NONSENSE: dict[str, list[Any]] = {
    "cpu": ["two", "-1", "2 cores", "1e"],
    "memory": ["4GB", "4 Gi", "lots", "-4Gi"],
    "nvidia.com/gpu": ["1.5", "500m", "one"],
    "image": ["has space:1", "", "UPPER/x:1"],
    "imagePullPolicy": ["Sometimes", "always"],
    "name": ["Upper_Case!", LONG, ""],
    "apiVersion": ["ray.io/v1alpha9"],
    "kind": ["RayJobs"],
    "restartPolicy": ["never"],
    "rayVersion": ["newest"],
    "mode": ["Token"],
    "replicas": [99, -1],
    "minReplicas": [50],
    "maxReplicas": [0],
    "containerPort": [0, 70000],
    "nodePort": [8265],
    "submissionMode": ["K8SJobMode"],
    "groupName": ["Workers!", LONG],
    "entrypoint": ["", "paceline train --mod ssgd --launcher ray --address auto", "paceline 'train"],
    "type": ["Runtime"],
    "drop": [[], ["NET_RAW"]],
    "runAsNonRoot": [False],
    "allowPrivilegeEscalation": [True],
    "shutdownAfterJobFinishes": [False],
    "whenUnsatisfiable": ["Maybe"],
    "operator": ["Exist"],
    "effect": ["NoSchedul"],
    "topologyKey": ["not a key"],
    "nprocPerNode": ["0", "all"],
    "numProcPerNode": ["many", 0],
    "numNodes": [0, -1],
    "cleanPodPolicy": ["Never"],
    "rdzvBackend": ["static"],
    "completionMode": ["indexed"],
    "completions": [-1],
    "podReplacementPolicy": ["Never"],
    "vpc.amazonaws.com/efa": ["1.5", "none"],
    "sizeLimit": ["1 Gi", "big"],
    "storage": ["10GB", "0"],
    "accessModes": [[], ["ReadMany"]],
    "policyTypes": [["Egress"], ["In"]],
    "verbs": [["read"], []],
    "manager": ["paceline", "/x"],
    "backoffLimit": [-1],
    "activeDeadlineSeconds": [0],
    "mountPath": [""],
    "add": [["SYS_ADMIN"]],
    "command": [["/opt/conda/bin/torchrun", "--nnode_s=2"]],
    "args": [["--nnodes=77", "-m", "paceline.worker"], ["-m", "paceline.worker", "--mod", "ddp"]],
}


def garble(item: Any, path: Where, rng: random.Random) -> bool:
    """Values that are of the right type, and nonsense."""
    if path[-1] not in _NONSENSE or any(step in FREE for step in path[:-1]):
        return False
    wrong = rng.choice(_NONSENSE[str(path[-1])])
    if wrong == LONG and ("env" in path or "subjects" in path):
        return False  # a variable's name may be long, and so may a user's
    at(item, path[:-1])[path[-1]] = wrong
    return True


def forget(item: Any, path: Where, _: random.Random) -> bool:
    """A field that has to be there is not."""
    needed = {
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "entrypoint",
        "headGroupSpec",
        "template",
        "containers",
    }
    needed |= {"groupName", "rayClusterSpec", "containerPort", "capabilities"}
    needed |= {"runtimeRef", "pytorchReplicaSpecs", "completions", "accessModes", "podSelector"}
    needed |= {"roleRef", "rules", "manager", "verbs", "topologyKey", "memory", "volumes"}
    needed |= {
        "authOptions",
        "resources",
        "runAsNonRoot",
        "seccompProfile",
        "maxSkew",
        "port",
        "ports",
        "limits",
    }
    if {"runtimePatches", "podTemplateOverrides"}.intersection(path) and path[-1] != "manager":
        return False  # what is not changed is as the runtime says
    if path[-1] not in needed or path[-2:] in (("spec", "metadata"), ("template", "metadata")):
        return False
    if path[-1] == "metadata" and len(path) > 1:
        return False
    if path[-2:] == ("runtimeRef", "kind") or "elasticPolicy" in path:
        return False  # it has a default
    if path[-1] == "ports" and "containers" in path:
        return False  # a container may have none
    if path[-1] == "ports" and at(item, path[:-1]).get("clusterIP") == "None":
        return False  # and so may a Service without an address
    del at(item, path[:-1])[path[-1]]
    return True


def reveal(item: Any, path: Where, rng: random.Random) -> bool:
    """A secret is written into it."""
    if path[-1] != "env":
        return False
    shape = rng.choice(["hf_" + "a1" * 12, "AKIA" + "A1B2" * 4, "ghp_" + "x9" * 15])
    name = rng.choice(["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
    text = rng.choice([{"name": name, "value": "plain"}, {"name": "INNOCENT", "value": shape}])
    at(item, path).append(text)
    return True


def double(item: Any, path: Where, rng: random.Random) -> bool:
    """The same thing twice, where each must have a name of its own."""
    many = ("containers", "env", "ports", "workerGroupSpecs", "volumes", "replicatedJobs", "runtimePatches")
    if path[-1] not in (*many, "volumeMounts") or "ingress" in path:  # a policy may repeat a port
        return False
    items = at(item, path)
    items.append(copy.deepcopy(rng.choice(items)))
    return True


KINDS: list[Mutation] = [
    misspell,
    mistype,
    garble,
    forget,
    reveal,
    double,
]

"""Does `validate` catch what is wrong, wherever it is, and nothing else?"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.kube.rendered import VARIANTS, objects

from paceline.kube.intent import Profile
from paceline.kube.render import to_yaml
from paceline.kube.secrets import find_secrets
from paceline.kube.validate import findings, validate

Where = tuple[str | int, ...]
FREE = ("labels", "annotations", "matchLabels", "selector")  # any name may stand here
LONG = "x" * 300


def places(value: object, path: Where = ()) -> Iterator[Where]:
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def at(value: Any, path: Where) -> Any:
    for step in path:
        value = value[step]
    return value


def misspell(one: Any, path: Where, dice: random.Random) -> bool:
    """A name with a letter too few, too many, or two in the wrong order."""
    name = path[-1]
    parent = at(one, path[:-1])
    if isinstance(name, int) or any(step in FREE for step in path[:-1]):
        return False
    swap = dice.randrange(len(name) - 1)
    wrong = dice.choice([name[:-1], name + "s", name[:swap] + name[swap + 1] + name[swap] + name[swap + 2 :]])
    if wrong in parent or not wrong or wrong == name:
        return False
    parent[wrong] = parent.pop(name)
    return True


def mistype(one: Any, path: Where, dice: random.Random) -> bool:
    wrong: dict[type, list[Any]] = {
        dict: ["text", [1], 3],
        list: ["text", {"a": 1}, 3],
        bool: ["yes", 1],
        int: ["three", -5, 1.5, [1]],
        str: [["a"], {"a": "b"}, 3.25],
    }
    value = at(one, path)
    if path[-2:-1] in (("requests",), ("limits",)):
        return False  # an amount may be a number: `garble` sees to it
    at(one, path[:-1])[path[-1]] = dice.choice(wrong[type(value)])
    return True


def garble(one: Any, path: Where, dice: random.Random) -> bool:
    """Values that are of the right type, and nonsense."""
    nonsense: dict[str, list[Any]] = {
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
    }
    if path[-1] not in nonsense or any(step in FREE for step in path[:-1]):
        return False
    wrong = dice.choice(nonsense[str(path[-1])])
    if wrong == LONG and "env" in path:
        return False  # a variable's name may be long
    at(one, path[:-1])[path[-1]] = wrong
    return True


def forget(one: Any, path: Where, _: random.Random) -> bool:
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
    needed |= {"groupName", "minReplicas", "maxReplicas", "rayClusterSpec", "containerPort", "capabilities"}
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
    if path[-1] not in needed or path[-2:] in (("spec", "metadata"), ("template", "metadata")):
        return False
    if path[-1] == "metadata" and len(path) > 1:
        return False
    if path[-1] == "ports" and "containers" in path:
        return False  # a container may have none
    del at(one, path[:-1])[path[-1]]
    return True


def reveal(one: Any, path: Where, dice: random.Random) -> bool:
    """A secret is written into it."""
    if path[-1] != "env":
        return False
    shape = dice.choice(["hf_" + "a1" * 12, "AKIA" + "A1B2" * 4, "ghp_" + "x9" * 15])
    name = dice.choice(["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
    said = dice.choice([{"name": name, "value": "plain"}, {"name": "INNOCENT", "value": shape}])
    at(one, path).append(said)
    return True


def double(one: Any, path: Where, dice: random.Random) -> bool:
    """The same thing twice, where each must have a name of its own."""
    if path[-1] not in ("containers", "env", "ports", "workerGroupSpecs"):
        return False
    items = at(one, path)
    items.append(copy.deepcopy(dice.choice(items)))
    return True


KINDS: list[Callable[[Any, Where, random.Random], bool]] = [
    misspell,
    mistype,
    garble,
    forget,
    reveal,
    double,
]


@pytest.mark.parametrize("mutation", KINDS, ids=lambda kind: kind.__name__)
def test_seeded_mutations_are_all_caught(mutation: Callable[[Any, Where, random.Random], bool]) -> None:
    dice = random.Random(7)
    tried = 0
    missed: list[str] = []
    while tried < 60:
        name = dice.choice([name for name in VARIANTS if name != "compat"])
        made, profile = objects(name)
        one = dice.choice(made)
        path = dice.choice([path for path in places(one) if path])
        before = copy.deepcopy(at(one, path))
        if not mutation(one, path, dice):
            continue
        tried += 1
        if not findings(one, profile):
            missed.append(f"{name} {path}: was {before!r}")
    assert not missed


@pytest.mark.parametrize("odd", [None, "", [], {}, 0, [None], {"": None}])
def test_whatever_stands_anywhere_is_checked_and_never_a_crash(odd: Any) -> None:
    for name in VARIANTS:
        made, profile = objects(name)
        for one in made:
            for path in [path for path in places(one) if path]:
                changed = copy.deepcopy(one)
                at(changed, path[:-1])[path[-1]] = odd
                findings(changed, profile)


def test_no_false_alarm_on_what_we_render() -> None:
    for name in VARIANTS:
        made, profile = objects(name)
        checked = validate(to_yaml(made), "job.yaml", profile)
        assert checked.problems == ()
        assert len(checked.objects) == len(made)


OTHERS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: code
data:
  train.py: print()
---
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: mine
spec:
  headGroupSpec:
    template:
      metadata:
      spec:
        containers:
          - name: ray-head
            image: rayproject/ray:2.60.0
            resources: {limits: {cpu: 1, memory: 2G}}
            securityContext: {}
            env: []
            volumeMounts: [{name: code, mountPath: /code}]
        volumes:
          - name: code
            configMap: {name: code, defaultMode: 0777}
  workerGroupSpecs:
"""


def test_what_others_write_is_taken_as_a_cluster_takes_it() -> None:
    """Octal modes, fields with nothing behind them, plain numbers as amounts, other kinds in the file."""
    checked = validate(OTHERS, "others.yaml", Profile.COMPAT)
    assert checked.problems == ()
    assert checked.objects == ("RayCluster/mine",)
    assert checked.others == ("ConfigMap/code",)
    strict = [problem.what for problem in validate(OTHERS, "others.yaml").problems]
    assert any("runAsNonRoot" in what for what in strict)
    assert any("authOptions" in what for what in strict)


def test_a_problem_names_the_file_the_line_and_the_field() -> None:
    made, profile = objects("job")
    text = to_yaml(made).replace("maxReplicas: 2", "maxReplica: 2")
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "maxReplica:" in one)
    unknown, missing = sorted(validate(text, "job.yaml", profile).problems, key=lambda p: "missing" in p.what)
    assert unknown.where == f"job.yaml:{line}"
    assert (
        unknown.what
        == "spec.rayClusterSpec.workerGroupSpecs[0].maxReplica: there is no field maxReplica here"
    )
    assert "maxReplicas" in unknown.hint
    assert "maxReplicas is missing" in missing.what


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no manifest"),
        ("a: [1", "not YAML"),
        ("- 1\n- 2\n", "is not known"),
        ("apiVersion: v1\nkind: Servce\nmetadata: {name: x}\n", "kind Servce is not known"),
        ("apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: x}\n", "kind RayService is not known"),
        ("kind: RayJob\nmetadata: {name: x}\n", "is not known"),
        ("apiVersion: v1\napiVersion: v1\nkind: Service\n", "given twice"),
        ("!!python/object/apply:os.system ['true']", "is not known"),
        ("a: &a [x, x]\n" + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
         for p, c in zip("abcdefgh", "bcdefghi", strict=True)), "larger than any manifest"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_manifest_is_one_clear_problem(text: str, why: str) -> None:
    problems = validate(text, "x.yaml", Profile.STRICT).problems
    assert any(why in problem.what for problem in problems), problems


@pytest.mark.parametrize(
    "innocent",
    [
        {"env": [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}]},
        {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "token"}}}]},
        {"authOptions": {"mode": "token"}, "automountServiceAccountToken": False},
        {"entrypoint": "paceline train --task tokens:Task --checkpoint-store s3://bucket/secret-stuff"},
        {"volumes": [{"name": "a", "secret": {"secretName": "db-password"}}]},
        {"image": "example.com/x@sha256:" + "a1" * 32},
    ],
)
def test_what_only_sounds_like_a_secret_is_left_alone(innocent: dict[str, Any]) -> None:
    assert list(find_secrets(innocent)) == []


def test_a_found_secret_is_not_shown() -> None:
    value = "hf_" + "q7" * 12
    (found,) = find_secrets({"spec": {"entrypoint": f"HELLO={value} run"}})
    assert value not in found.what + found.hint

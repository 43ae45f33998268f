"""Does `validate` catch what is wrong, wherever it is, and nothing else?"""

import copy
import random
from typing import Any

import pytest
from tests.kube.mutations import KINDS, Mutation, at, places
from tests.kube.rendered import VARIANTS, objects

from paceline.kube.intent import Profile
from paceline.kube.render import to_yaml
from paceline.kube.secrets import find_secrets
from paceline.kube.validate import findings, validate


@pytest.mark.parametrize("mutation", KINDS, ids=lambda kind: kind.__name__)
def test_seeded_mutations_are_all_caught(mutation: Mutation) -> None:
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
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: web}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: other}
---
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
    assert checked.objects == ("ConfigMap/code", "RayCluster/mine")
    assert checked.others == ("DaemonSet/web", "Service/web", "Job/other")
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

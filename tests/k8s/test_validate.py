"""`validate` finds what is wrong at any place of a manifest, and nothing else."""

import copy
import random
from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.k8s.mutations import KINDS, Mutation, at, paths_in
from tests.k8s.rendered import VARIANTS, objects

from paceline.k8s.render.targets import to_yaml
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.manifest import find_secrets
from paceline.k8s.validate.offline import find_problems, validate


@pytest.mark.parametrize("mutation", KINDS, ids=lambda kind: kind.__name__)
def test_seeded_mutations_are_all_caught(mutation: Mutation) -> None:
    rng = random.Random(7)
    tried = 0
    missed: list[str] = []
    while tried < 60:
        name = rng.choice([name for name in VARIANTS if name != "compat"])
        made, profile = objects(name)
        first = rng.choice(made)
        path = rng.choice([path for path in paths_in(first) if path])
        before = copy.deepcopy(at(first, path))
        if not mutation(first, path, rng):
            continue
        tried += 1
        if not find_problems(first, profile):
            missed.append(f"{name} {path}: was {before!r}")
    assert not missed


@pytest.mark.parametrize("odd", [None, "", [], {}, 0, [None], {"": None}])
def test_whatever_stands_anywhere_is_checked_and_never_a_crash(odd: Any) -> None:
    for name in VARIANTS:
        made, profile = objects(name)
        for manifest in made:
            for path in [path for path in paths_in(manifest) if path]:
                changed = copy.deepcopy(manifest)
                at(changed, path[:-1])[path[-1]] = odd
                find_problems(changed, profile)


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
    assert any("runAsNonRoot" in description for description in strict)
    assert any("authOptions" in description for description in strict)


def test_a_problem_names_the_file_the_line_and_the_field(wording: Wording) -> None:
    made, profile = objects("job")
    text = to_yaml(made).replace("groupName: ", "groupNam: ")
    line = next(n for n, item in enumerate(text.splitlines(), 1) if "groupNam:" in item)
    unknown, missing = sorted(
        validate(text, "job.yaml", profile).problems, key=lambda p: "groupName" in p.what
    )
    assert unknown.where == f"job.yaml:{line}"
    assert unknown.what.startswith("spec.rayClusterSpec.workerGroupSpecs[0].groupNam: ")
    assert "groupName" in unknown.hint
    wording(f"{unknown.what}\n{missing.what}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no manifest"),
        ("a: [1", "not YAML"),
        ("- 1\n- 2\n", "is not supported"),
        ("apiVersion: v1\nkind: Servce\nmetadata: {name: x}\n", "kind Servce is not supported"),
        ("apiVersion: ray.io/v1\nkind: RayClutser\nmetadata: {name: x}\n", "RayClutser is not supported"),
        ("apiVersion: ray.io/v2\nkind: RayJob\nmetadata: {name: x}\n", "is not supported"),
        ("kind: RayJob\nmetadata: {name: x}\n", "is not supported"),
        ("apiVersion: v1\napiVersion: v1\nkind: Service\n", "given twice"),
        ("!!python/object/apply:os.system ['true']", "is not supported"),
        ("a: &a [x, x]\n" + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
         for p, c in zip("abcdefgh", "bcdefghi", strict=True)), "too large for a manifest"),
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
        {"env": [{"name": "HF_TOKEN", "value": "${HF_TOKEN}"}, {"name": "API_KEY", "value": "$(OTHER)"}]},
        {"rayStartParams": {"redis-password": "$REDIS_PASSWORD"}},
    ],
)
def test_what_only_sounds_like_a_secret_is_left_alone(innocent: dict[str, Any]) -> None:
    assert list(find_secrets(innocent)) == []


def test_a_found_secret_is_not_shown() -> None:
    value = "hf_" + "q7" * 12
    (result,) = find_secrets({"spec": {"entrypoint": f"HELLO={value} run"}})
    assert value not in result.what + result.hint


RAY = """\
apiVersion: ray.io/{version}
kind: RayCluster
metadata: {{name: mine, creationTimestamp: null}}
spec:
  rayVersion: nightly
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams: {{gcs-server-port: "6380"}}
    template: {{spec: {{restartPolicy: Always, containers: [{{name: head, image: rayproject/ray}}]}}}}
  workerGroupSpecs:
    - groupName: small
      replicas: 3
      template: {{spec: {{containers: [{{name: worker, image: "rayproject/ray:latest"}}]}}}}
status: {{}}
"""
ELASTIC = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {generateName: elastic-, labels: {team: a}}
spec:
  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: 2, maxRestarts: 10}
  pytorchReplicaSpecs:
    Worker:
      replicas: 4
      template:
        spec:
          containers:
            - name: pytorch
              image: example.com/train
              command: [torchrun, "--nnodes=1:2", "--rdzv_backend=c10d", train.py]
              env: [{name: my.dotted-name, value: "1"}]
              volumeMounts: [{name: scratch, mountPath: /scratch}]
          volumes: [{name: scratch}]
"""
CORE = """\
apiVersion: batch/v1
kind: Job
metadata: {name: step.one, uid: 12-34, resourceVersion: "7", generation: 1, managedFields: []}
spec:
  template:
    metadata: {creationTimestamp: null}
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: example.com/x
          env: [{name: A, value: "1"}, {name: A, value: "2"}, {name: B, value: "", valueFrom: null}]
          ports: [{containerPort: 80}, {containerPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: dns}
spec:
  sessionAffinity: ClientIP
  ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: pods}
spec: {clusterIP: None, selector: {app: x}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mine}
roleRef: {kind: ClusterRole, name: view}
subjects: [{kind: User, name: me}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: odd}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, mount-as]}]
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.nvidia.com}]}}}
---
apiVersion: v1
kind: Secret
metadata: {name: redis}
data: {password: bm90aGluZw==}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: same, namespace: one}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: same, namespace: two}
---
apiVersion: ray.io/v1alpha1
kind: RayService
metadata: {name: serve}
spec: {}
"""
INTERACTIVE = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: by-hand}
spec:
  submissionMode: InteractiveMode
  rayClusterSpec:
    headGroupSpec: {template: {spec: {containers: [{name: head, image: "rayproject/ray:2.60.0"}]}}}
"""


@pytest.mark.parametrize(
    "text",
    [RAY.format(version="v1"), RAY.format(version="v1alpha1"), ELASTIC, CORE, INTERACTIVE],
    ids=["ray", "ray-v1alpha1", "elastic", "core", "interactive"],
)
def test_what_clusters_accept_is_no_problem_outside_the_strict_profile(text: str) -> None:
    assert validate(text, "x.yaml", Profile.COMPAT).problems == ()


def test_the_nodes_of_torchrun_beside_an_elastic_policy_are_not_compared_with_its_pods() -> None:
    fixed = ELASTIC.replace("--nnodes=1:2", "--nnodes=2")
    assert fixed != ELASTIC
    assert validate(fixed, "x.yaml", Profile.COMPAT).problems == ()
    alone = fixed.replace(
        "  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: 2, maxRestarts: 10}\n", ""
    )
    assert any("2 nodes" in problem.what for problem in validate(alone, "x.yaml", Profile.COMPAT).problems)


def test_what_may_be_a_mistake_is_a_warning_and_a_problem_in_the_strict_profile(wording: Wording) -> None:
    checked = validate(ELASTIC, "x.yaml", Profile.COMPAT)
    text = " ".join(warning.what for warning in checked.warnings)
    for word in ("--nnodes", "--rdzv_backend", "4 Workers"):
        assert word in text
    assert checked.below_strict
    strict = " ".join(problem.what for problem in validate(ELASTIC, "x.yaml", Profile.STRICT).problems)
    assert "--nnodes" in strict
    wording(strict)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("minReplicas: 1", "minReplica: 1"),
        ("name: pytorch", "name: trainer"),
        ("generateName: elastic-", "labels: {a: b}"),
        ("volumes: [{name: scratch}]", "volumes: [{name: scratch, emptyDir: {}, secret: {secretName: s}}]"),
        ("env: [{", "env: [{name: my.dotted-name}, {"),
    ],
)
def test_what_clusters_refuse_is_a_problem_in_both(before: str, after: str) -> None:
    assert before in ELASTIC
    spoilt = ELASTIC.replace(before, after)
    for profile in Profile:
        assert validate(spoilt, "x.yaml", profile).problems


def test_a_field_of_a_newer_version_is_a_warning_and_a_misspelt_one_a_problem() -> None:
    newer = INTERACTIVE.replace(
        "spec:\n  submissionMode", "spec:\n  zoneSpreadPolicy: Even\n  submissionMode"
    )
    misspelt = INTERACTIVE.replace("submissionMode", "submisionMode")
    checked = validate(newer, "x.yaml", Profile.COMPAT)
    assert checked.problems == ()
    assert "spec.zoneSpreadPolicy" in " ".join(warning.what for warning in checked.warnings)
    assert validate(newer, "x.yaml", Profile.STRICT).problems
    assert validate(misspelt, "x.yaml", Profile.COMPAT).problems

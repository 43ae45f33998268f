"""`validate` finds what is wrong with torchrun jobs, and nothing else."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.wording import Wording, titled
from tests.k8s.mutations import KINDS, Mutation, at, paths_in
from tests.k8s.torch_rendered import COMPAT, VARIANTS, job_of, objects

from paceline.k8s.render.targets import to_yaml
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.manifest import find_secrets
from paceline.k8s.validate.offline import find_problems, validate

REFERENCES = Path(__file__).parent / "references.yaml"


@pytest.mark.parametrize("mutation", KINDS, ids=lambda kind: kind.__name__)
def test_seeded_mutations_are_all_caught(mutation: Mutation) -> None:
    """Sixty of each of six kinds."""
    rng = random.Random(11)
    tried = 0
    missed: list[str] = []
    while tried < 60:
        name = rng.choice(list(VARIANTS))
        made, profile = objects(name)
        first = rng.choice(made)
        paths = [path for path in paths_in(first) if path]
        path = next((path for path in rng.sample(paths, len(paths)) if mutation(first, path, rng)), None)
        if path is None:
            continue
        tried += 1
        if not find_problems(first, profile):
            missed.append(f"{name} {first['kind']} {path}")
    assert not missed


@pytest.mark.parametrize("odd", [None, "", [], {}, 0, [None], {"": None}])
def test_whatever_stands_anywhere_is_checked_and_never_a_crash(odd: Any) -> None:
    for name in ("pytorchjob-elastic", "trainjob-kept", "trainjob-runtime", "job", "hyperpod-kept"):
        made, profile = objects(name)
        for manifest in made:
            for path in [path for path in paths_in(manifest) if path][:: 1 + len(made) // 2]:
                changed = copy.deepcopy(manifest)
                at(changed, path[:-1])[path[-1]] = odd
                find_problems(changed, profile)


@pytest.mark.parametrize("name", [*VARIANTS, *COMPAT])
def test_no_false_alarm_on_what_we_render(name: str) -> None:
    made, profile = objects(name)
    checked = validate(to_yaml(made), "job.yaml", profile)
    assert checked.problems == ()
    assert len(checked.objects) == len(made)


def test_no_false_alarm_on_manifests_of_others() -> None:
    checked = validate(REFERENCES.read_text(encoding="utf-8"), "references.yaml", Profile.COMPAT)
    assert checked.problems == ()
    assert checked.others == ()
    assert len(checked.objects) >= 10


def test_a_careful_manifest_of_others_passes_the_strict_check_too() -> None:
    (careful,) = [
        manifest
        for manifest in yaml.safe_load_all(REFERENCES.read_text())
        if manifest["metadata"]["name"] == "careful"
    ]
    assert find_problems(careful, Profile.STRICT) == []


MASTER = "spec/pytorchReplicaSpecs/Master"
WORKER = "spec/pytorchReplicaSpecs/Worker"
PATCHED = (
    "spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec"
)
POD = "spec/template/spec"
RULES: list[tuple[str, str, Any, str]] = [
    ("pytorchjob", f"{MASTER}/replicas", 2, "Forbidden: must be 1"),
    ("pytorchjob", f"{MASTER}/replicas", None, "Forbidden: must be 1"),
    ("pytorchjob", "spec/pytorchReplicaSpecs/Worker/replicas", 0, "Forbidden: must be at least 1"),
    ("pytorchjob", "spec/pytorchReplicaSpecs", {}, "Required value: must be required"),
    ("pytorchjob", f"{MASTER}/template/spec/containers/0/name", "main",
     "Required value: must have at least one container with name pytorch"),
    ("pytorchjob", f"{MASTER}/template/spec/containers/0/image", None, "Required value: must be required"),
    ("pytorchjob", MASTER, None, "without a Master nothing sets RANK"),
    ("pytorchjob", f"{WORKER}/replicas", 2, "torchrun waits for 2 nodes, but there are 3 pods"),
    ("pytorchjob", "spec/nprocPerNode", "4", "torchrun starts 1 processes on a node, but the object says 4"),
    ("pytorchjob-elastic", "spec/elasticPolicy/nProcPerNode", 1, "must not be used with spec.nprocPerNode"),
    ("pytorchjob-elastic", "spec/elasticPolicy/minReplicas", 5, "is more than maxReplicas"),
    ("pytorchjob-elastic", "spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/args",
     ["--nnodes=2", "-m", "paceline.worker"], "takes --nnodes from this flag"),
    ("trainjob", "spec/runtimeRef/kind", "TrainRuntime",
     "unsupported runtime: TrainRuntime.trainer.kubeflow.org"),
    ("trainjob", "spec/managedBy", "me", "ManagedBy must be trainer.kubeflow.org/trainjob-controller or"),
    ("trainjob", "spec/trainer/numProcPerNode", "many", "must have an int value or [auto cpu gpu]"),
    ("trainjob", "spec/trainer/env", [{"name": "PET_NNODES", "value": "3"}],
     "must not have reserved envs, invalid envs configured: [PET_NNODES]"),
    ("trainjob", "spec/initializer", {"dataset": {"storageUri": "data"}}, "it must be a valid URI"),
    ("trainjob", "spec/trainer/resourcesPerNode", {"limits": {"memory": "4Gi"}}, "requests of cpu is"),
    ("trainjob-runtime", "spec/runtimePatches/0/manager", "us", "must be a domain-prefixed path"),
    ("trainjob-runtime", f"{PATCHED}/containers/0/env", [{"name": "A", "value": "b"}],
     "must not have envs for the dataset-initializer, model-initializer, node containers"),
    ("trainjob-runtime", f"{PATCHED}/securityContext/runAsNonRoot", False, "runAsNonRoot is false"),
    ("trainjob-runtime", "spec/podTemplateOverrides", [{"targetJobs": [{"name": "node"}]}],
     "the field podTemplateOverrides is not in the schema"),
    ("job", f"{POD}/restartPolicy", None, 'Required value: valid values: "OnFailure", "Never"'),
    ("job", "spec/completions", None, "Required value: when completion mode is Indexed"),
    ("job", "spec/parallelism", 2, "2 pods run at a time, but 3 are to be completed"),
    ("job", "spec/selector", {"matchLabels": {"a": "b"}}, "`selector` not auto-generated"),
    ("job", "spec/podFailurePolicy", {"rules": []}, ""),
    ("hyperpod", "spec/replicaSpecs/0/template/spec/containers/0/command", ["torchrun"],
     "torchrun does not hear HyperPod's operator"),
    ("hyperpod", "spec/replicaSpecs/0/template/spec/nodeSelector",
     {"node.kubernetes.io/instance-type": "p5.48xlarge"},
     "they say ml. before it"),
    ("hyperpod", "spec/runPolicy/logMonitoringConfiguration", [{"name": "a", "logPattern": "("}],
     "it cannot be searched for"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "value"), titled(RULES))
def test_the_rules_of_operators_are_reported_in_their_own_terms(
    name: str, path: str, value: Any, wording: Wording
) -> None:
    job = job_of(name)
    *steps, last = [int(step) if step.isdigit() else step.replace("~", "/") for step in path.split("/")]
    inner = at(job, tuple(steps))
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    results = [problem.what for problem in find_problems(job, Profile.STRICT)]
    wording("\n".join(results))


SECRETS: list[dict[str, Any]] = [
    {"args": ["-m", "train", "--hf-token", "abcdefgh"]},
    {"args": ["-m", "train", "--task-option", "api_key=abcdefgh"]},
    {"kind": "ConfigMap", "data": {"config.yaml": "task: xor\npassword: abcdefgh\n"}},
    {"kind": "ConfigMap", "data": {"train.py": "login('hf_" + "a1" * 12 + "')"}},
    {"kind": "Secret", "stringData": {"token": "abcdefgh"}},
]
INNOCENT: list[dict[str, Any]] = [
    {"args": ["-m", "paceline.worker", "--task", "my_token", "--mode", "ddp"]},
    {"args": ["--hf-token", "$(HF_TOKEN)"]},
    {"kind": "ConfigMap", "data": {"train.py": "def encode(token: str) -> int: ..."}},
    {"kind": "ConfigMap", "data": {"config.yaml": "pad_token: <pad>\nmax_tokens: 100000\neos_token: 2\n"}},
]


@pytest.mark.parametrize("value", SECRETS)
def test_a_secret_in_arguments_or_files_is_found_and_not_shown(value: dict[str, Any]) -> None:
    findings = list(find_secrets(value))
    assert findings
    assert all("abcdefgh" not in finding.what + finding.hint for finding in findings)


@pytest.mark.parametrize("value", INNOCENT)
def test_what_only_sounds_like_a_secret_is_left_alone(value: dict[str, Any]) -> None:
    assert list(find_secrets(value)) == []

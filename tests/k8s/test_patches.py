"""Patches of manifests: strategic merge and JSON patches, and what does not apply."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording
from tests.k8s.rendered import settings

from paceline.core.errors import ManifestError
from paceline.k8s.render.json_patch import PatchFailure, apply_operations
from paceline.k8s.render.patch import apply_patches, read_patches
from paceline.k8s.spec.job import JobOptions, Target, TorchrunOptions
from paceline.k8s.spec.plain import PlainProgram
from paceline.k8s.submit.manifests import RenderedJob, render_job
from paceline.k8s.validate.offline import find_problems

SIDECAR = """
kind: Pod
metadata:
  annotations: {example.com/scrape: "yes"}
spec:
  initContainers:
    - name: fetch
      image: example.com/fetch:1
      command: [fetch, s3://bucket/data, /data]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    - name: metrics
      image: example.com/metrics:1
      restartPolicy: Always
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
PROGRAM = PlainProgram(words=("/app/train.py",))


def rendered(target: Target, patch: str = "", **torch: Any) -> RenderedJob:
    options = JobOptions(image="example.com/x:1", torch=TorchrunOptions(nodes=2, **torch))
    patches = read_patches(patch, "patch.yaml") if patch else []
    return render_job(settings(name="demo"), options, target, (), None, PROGRAM, patches)


def objects(target: Target, patch: str) -> list[Any]:
    return list(rendered(target, patch).objects)


@pytest.mark.parametrize("target", list(Target))
def test_a_sidecar_is_put_into_every_pod_of_every_kind(target: Target) -> None:
    done = rendered(target, SIDECAR)
    pods = {Target.PYTORCHJOB: 2, Target.RAYJOB: 2, Target.RAYCLUSTER: 2}.get(target, 1)
    assert done.text.count("name: metrics") == done.text.count("name: fetch") == pods
    assert done.text.count("example.com/scrape: 'yes'") == pods
    assert [finding for item in done.objects for finding in find_problems(item, done.intent.profile)] == []


def test_items_with_the_same_key_are_merged_and_others_appended() -> None:
    patch = """
    spec:
      template:
        spec:
          tolerations: [{key: a, operator: Exists}]
          containers:
            - name: pytorch
              env:
                - {name: NCCL_DEBUG, value: TRACE}
                - {name: NEW, value: "1"}
                - {name: PYTHONUNBUFFERED, $patch: delete}
              resources: {limits: {memory: 8Gi}}
    """
    before = objects(Target.JOB, "")[-1]["spec"]["template"]["spec"]["containers"][0]
    pod = objects(Target.JOB, patch)[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert (values["NCCL_DEBUG"], values["NEW"]) == ("TRACE", "1")
    assert "PYTHONUNBUFFERED" not in values
    assert len(values) == len(before["env"])
    assert container["resources"]["limits"] == {"memory": "8Gi"}
    assert container["resources"]["requests"] == before["resources"]["requests"]
    assert container["args"] == before["args"]
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}], "a list without keys is replaced"


def test_null_removes_a_field_and_replace_a_whole_mapping() -> None:
    job = objects(Target.JOB, "{spec: {ttlSecondsAfterFinished: null, backoffLimit: 2}}")[-1]
    assert "ttlSecondsAfterFinished" not in job["spec"]
    assert job["spec"]["backoffLimit"] == 2
    replaced = "spec: {template: {metadata: {annotations: {$patch: replace, a: b}}}}"
    assert objects(Target.JOB, replaced)[-1]["spec"]["template"]["metadata"]["annotations"] == {"a": "b"}


def test_an_object_is_selected_by_kind_and_groups_by_name() -> None:
    service, job = objects(Target.JOB, "{kind: Service, metadata: {name: demo, labels: {a: b}}}")
    assert service["metadata"]["labels"]["a"] == "b"
    assert "a" not in job["metadata"]["labels"]
    group = "spec: {rayClusterSpec: {workerGroupSpecs: [{groupName: workers, replicas: 1, minReplicas: 1}]}}"
    (worker,) = objects(Target.RAYJOB, group)[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (worker["replicas"], worker["maxReplicas"]) == (1, 2)
    assert worker["template"]["spec"]["containers"]


def test_a_json_patch_changes_the_job_or_its_target() -> None:
    operations = '[{"op": "test", "path": "/spec/backoffLimit", "value": 0},'
    operations += '{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--more"},'
    operations += '{"op": "remove", "path": "/spec/ttlSecondsAfterFinished"}]'
    job = objects(Target.JOB, operations)[-1]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--more"
    assert "ttlSecondsAfterFinished" not in job["spec"]
    targeted = """
    target: {kind: Pod}
    patch:
      - {op: replace, path: /spec/terminationGracePeriodSeconds, value: 300}
    """
    text = rendered(Target.PYTORCHJOB, targeted).text
    assert text.count("terminationGracePeriodSeconds: 300") == 2


REFUSED = {
    "no such object": "kind: Deployment\nspec: {}",
    "no such field": "spec:\n  backofLimit: null",
    "no such item": "spec: {template: {spec: {containers: [{name: other, $patch: delete}]}}}",
    "no key": "spec: {template: {spec: {containers: [{image: example.com/y:1}]}}}",
    "directive": "spec: {template: {spec: {$retainKeys: [containers]}}}",
    "name": "[{op: replace, path: /metadata/name, value: other}]",
    "label": "metadata: {labels: {app.kubernetes.io/instance: null}}",
    "schema": "spec: {backoffLimit: many}",
    "misspelt": "spec: {backofLimit: 3}",
    "strict profile": "{kind: Pod, spec: {hostPID: true}}",
    "sidecar below strict": "{kind: Pod, spec: {initContainers: [{name: a, image: example.com/a}]}}",
    "pointer": "[{op: remove, path: /spec/nothing}]",
    "operation": "[{op: swap, path: /spec}]",
    "operation without a value": "[{op: add, path: /spec/suspend}]",
    "test fails": "[{op: test, path: /spec/backoffLimit, value: 9}]",
    "text": "only text",
    "not yaml": "a: [",
    "secret": "{kind: Pod, spec: {containers: [{name: pytorch, env: [{name: HF_TOKEN, value: hf_abc123}]}]}}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_patch_that_does_not_apply_or_breaks_the_manifest_is_refused(name: str, wording: Wording) -> None:
    with wording.raises(ManifestError) as refused:
        rendered(Target.JOB, REFUSED[name])
    assert all(problem.hint for problem in refused.value.problems)
    assert "hf_abc123" not in str(refused.value)


def test_a_patch_leaves_the_rendered_objects_alone() -> None:
    made = rendered(Target.JOB).objects
    before = copy.deepcopy(made)
    apply_patches(made, read_patches(SIDECAR, "patch.yaml"))
    assert made == before


VALUES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(value=VALUES, other=VALUES)
def test_adding_and_removing_is_the_identity_and_a_copy_is_independent(value: Any, other: Any) -> None:
    root: dict[str, Any] = {"a": value}
    before = copy.deepcopy(root)
    apply_operations(root, [{"op": "add", "path": "/b~1~0", "value": other}])
    assert root["b/~"] == other
    apply_operations(root, [{"op": "remove", "path": "/b~1~0"}])
    assert root == before
    apply_operations(
        root, [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "move", "from": "/c", "path": "/d"}]
    )
    assert root == {"a": value, "d": value}
    assert root["a"] is not root["d"] or not isinstance(value, dict | list)


@pytest.mark.parametrize("path", ["", "spec", "/a/01", "/a/9", "/a/x", "/a/0/0"])
def test_a_pointer_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(PatchFailure):
        apply_operations({"a": [1]}, [{"op": "replace", "path": path, "value": 2}])

"""Cluster checks report nothing about eight kinds of sound clusters, and find each injected fault."""

from typing import Any

import pytest
from tests.fixtures.wording import Wording, titled
from tests.k8s.clusters import CLUSTER_RUNTIMES, CLUSTERS, GPU, named, with_kueue
from tests.k8s.faults import (
    CLOSED,
    DEPLOYMENTS,
    FAULTS,
    LOST_CLAIM,
    QUOTA,
    Fault,
    add,
    condition,
    down,
    objects,
    set_to,
)

from paceline.core.errors import ConfigError
from paceline.k8s.check.checks import CheckResult, run_checks
from paceline.k8s.check.findings import Level, Need, read_need
from paceline.k8s.check.snapshot import read_snapshot
from paceline.k8s.spec.job import Target
from paceline.k8s.validate.manifest import find_secrets

Object = dict[str, Any]
BAD = (Level.WARNING, Level.PROBLEM)


def checked(snapshot: Object, need: str = "", target: Target | None = None) -> CheckResult:
    return run_checks(read_snapshot(snapshot, "test"), read_need(need, target))


def bad(result: CheckResult) -> list[str]:
    return [f"{manifest.area}: {manifest.what}" for manifest in result.of(*BAD)]


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_sound_cluster_gives_no_alarm(name: str) -> None:
    assert bad(checked(CLUSTERS[name]())) == []


# What each of them is good for, by its owner's word.
FITS = [
    ("eks-device-plugin", "gpus=16,nodes=2,efa,rwx", Target.PYTORCHJOB),
    ("gpu-operator", "gpus=16", Target.TRAINJOB),
    ("auto-mode", "gpus=8", Target.JOB),
    ("bottlerocket", "gpus=16,efa", Target.RAYJOB),
    ("dra-only", "gpus=16,efa,nodes=2", None),
    ("mixed", "gpus=20", Target.TRAINJOB),
    ("mixed", "gpus=8,efa", Target.PYTORCHJOB),
    ("hyperpod", "gpus=32,efa,nodes=4,rwx", Target.HYPERPOD),
    ("minikube", "nodes=2", Target.RAYCLUSTER),
]


@pytest.mark.parametrize(("name", "need", "target"), FITS)
def test_what_a_healthy_cluster_has_may_be_required_of_it(
    name: str, need: str, target: Target | None
) -> None:
    assert bad(checked(CLUSTERS[name](), need, target)) == []


LACKS = [
    ("eks-device-plugin", "gpus=17", None),
    ("eks-device-plugin", "nodes=4", None),
    ("eks-device-plugin", "", Target.TRAINJOB),
    ("eks-device-plugin", "", Target.RAYJOB),
    ("gpu-operator", "efa", None),
    ("gpu-operator", "", Target.PYTORCHJOB),
    ("auto-mode", "rwx", None),
    ("mixed", "gpus=16,efa", None),
    ("minikube", "gpus=1", None),
    ("minikube", "", Target.HYPERPOD),
]


@pytest.mark.parametrize(("name", "need", "target"), LACKS)
def test_what_a_cluster_lacks_is_a_problem_if_it_is_required(
    name: str, need: str, target: Target | None, wording: Wording
) -> None:
    result = checked(CLUSTERS[name](), need, target)
    assert not result.is_fine
    wording("\n".join(manifest.what for manifest in result.of(Level.PROBLEM)))


def test_an_autoscaler_may_add_what_is_not_there(wording: Wording) -> None:
    result = checked(CLUSTERS["auto-mode"](), "gpus=64")
    assert result.is_fine
    wording("\n".join(manifest.why for manifest in result.of(Level.WARNING)))


@pytest.mark.parametrize(("name", "strike"), titled(FAULTS))
def test_a_fault_is_found_and_nothing_else_is(name: str, strike: Fault, wording: Wording) -> None:
    snapshot = CLUSTERS[name]()
    strike(snapshot)
    result = checked(snapshot).of(*BAD)
    wording("\n".join(item.what for item in result))
    assert all(item.evidence and (item.why or item.command) for item in result)
    assert all(len(item.lines()) <= 8 for item in result)
    assert len(result) == 1, [item.what for item in result]


def test_every_kind_of_cluster_has_faults() -> None:
    assert {name for name, _, _ in FAULTS} == set(CLUSTERS)


def test_a_broken_component_is_only_a_warning_where_it_is_not_required() -> None:
    snapshot = CLUSTERS["bottlerocket"]()
    down(DEPLOYMENTS, "kuberay")(snapshot)
    assert not checked(snapshot).is_fine
    assert not checked(snapshot, target=Target.RAYJOB).is_fine
    assert checked(snapshot, "gpus=16").is_fine


def test_a_generated_train_job_needs_no_runtime_of_the_cluster(wording: Wording) -> None:
    seen = CLUSTERS["gpu-operator"]()
    seen["objects"][CLUSTER_RUNTIMES] = []
    result = checked(seen, target=Target.TRAINJOB)
    assert result.is_fine
    (outcome,) = result.of(Level.WARNING)
    wording(outcome.what)


def test_a_container_that_an_operator_adds_is_reported_where_it_would_be_refused() -> None:
    seen = CLUSTERS["eks-device-plugin"]()
    labels = objects(seen, "namespaces")[0]["metadata"].setdefault("labels", {})
    labels["pod-security.kubernetes.io/enforce"] = "restricted"
    several = checked(seen, "nodes=2", Target.PYTORCHJOB)
    (result,) = several.of(Level.WARNING)
    assert "init-pytorch" in result.why
    assert several.is_fine
    assert not checked(seen, "nodes=1", Target.PYTORCHJOB).of(Level.WARNING)
    assert not checked(seen, "nodes=2", Target.JOB).of(Level.WARNING)


def test_no_flag_is_named_that_a_kind_of_job_has_not() -> None:
    for target in Target:
        findings = [
            finding
            for finding in checked(CLUSTERS["dra-only"](), "gpus=16", target).findings
            if "by DRA" in finding.what
        ]
        has_flag = target not in (Target.TRAINJOB, Target.RAYJOB, Target.RAYCLUSTER)
        assert ["--gpu-claims" in finding.why for finding in findings] == [has_flag], target


def test_lost_nodes_are_not_counted(wording: Wording) -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    condition(0, "Ready", "Unknown")(snapshot)
    result = checked(snapshot, "gpus=16").of(Level.PROBLEM)
    wording("\n".join(item.what for item in result))


def test_parts_of_gpus_are_no_lost_gpus() -> None:
    snapshot = CLUSTERS["gpu-operator"]()
    for node in objects(snapshot, "nodes"):
        node["status"]["allocatable"] |= {GPU: "0", "nvidia.com/mig-1g.5gb": "56"}
    assert bad(checked(snapshot)) == []


def test_claims_that_wait_for_a_pod_are_fine() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    waiting = {**LOST_CLAIM, "spec": {"storageClassName": "gp3", "accessModes": ["ReadWriteOnce"]}}
    add("persistentvolumeclaims", waiting)(snapshot)
    assert bad(checked(snapshot)) == []


def test_a_policy_that_lets_pods_of_the_namespace_talk_is_fine() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    rule: Object = {"from": [{"podSelector": {}}]}
    opened = {"metadata": {"name": "own"}, "spec": {**CLOSED["spec"], "ingress": [rule]}}
    add("networkpolicies.networking.k8s.io", CLOSED, opened)(snapshot)
    assert bad(checked(snapshot)) == []


def test_gpus_of_a_quota_are_counted_against_the_need(wording: Wording) -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    quota: Object = {
        "metadata": {"name": "team"},
        "status": {"hard": {"requests.nvidia.com/gpu": "16"}, "used": {}},
    }
    quota["status"]["used"] = {"requests.nvidia.com/gpu": "4"}
    add("resourcequotas", quota)(snapshot)
    assert bad(checked(snapshot, "gpus=12")) == []
    result = checked(snapshot, "gpus=13").of(Level.PROBLEM)
    wording("\n".join(item.evidence for item in result))


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_a_namespace_that_enforces_pod_security_takes_no_pod_with_efa(level: str) -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    set_to("objects|namespaces|0|metadata|labels", {"pod-security.kubernetes.io/enforce": level})(snapshot)
    assert bad(checked(snapshot, "gpus=16")) == []
    (result,) = checked(snapshot, "efa").of(*BAD)
    assert result.level is Level.PROBLEM
    assert "IPC_LOCK" in result.why
    assert ("init-pytorch" in result.why) is (level == "restricted")


def test_a_queue_that_does_not_support_the_kind_is_reported(wording: Wording) -> None:
    snapshot = with_kueue(CLUSTERS["eks-device-plugin"](), "batch/job")
    assert bad(checked(snapshot)) == []
    result = checked(snapshot, target=Target.PYTORCHJOB).of(*BAD)
    wording("\n".join(item.what for item in result))


def test_what_may_not_be_seen_is_no_fault_but_the_missing_rule_is_named() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    for resource in ("nodes", "deployments.apps"):
        del snapshot["objects"][resource]
        snapshot["refused"].append({"verb": "list", "resource": resource, "namespace": ""})
    result = checked(snapshot)
    assert result.is_fine
    assert [manifest.evidence for manifest in result.of(*BAD)] == [
        'missing: ClusterRole: apiGroups: ["apps"], resources: ["deployments"], verbs: ["list"]',
        'missing: ClusterRole: apiGroups: [""], resources: ["nodes"], verbs: ["list"]',
    ]
    assert not checked(snapshot, "gpus=1").is_fine, "it is unknown whether there are GPUs"


def test_a_right_that_a_job_needs_is_named_as_a_rule() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    snapshot["rights"]["create pytorchjobs.kubeflow.org"] = False
    assert checked(snapshot).is_fine, "who only looks needs no such right"
    (result,) = checked(snapshot, target=Target.PYTORCHJOB).of(Level.PROBLEM)
    assert 'apiGroups: ["kubeflow.org"], resources: ["pytorchjobs"], verbs: ["create"]' in result.evidence
    assert "namespace train" in result.evidence


def test_old_operators_are_reported_and_tags_without_a_number_are_not() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    for manifest in objects(snapshot, DEPLOYMENTS):
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "kubeflow/training-operator:v1.7.0"
    assert [w for w in bad(checked(snapshot)) if "old: 1.7" in w]


def test_needs_are_read_and_a_wrong_one_is_refused(wording: Wording) -> None:
    assert read_need("gpus=16, efa,nodes=2,rwx") == Need(gpus=16, nodes=2, efa=True, rwx=True)
    assert read_need("") == Need()
    for wrong in ("gpu=16", "gpus", "gpus=-1", "gpus=many", "efa=1"):
        with wording.raises(ConfigError):
            read_need(wrong)


def test_a_snapshot_comes_back_as_it_was() -> None:
    for make in CLUSTERS.values():
        snapshot = read_snapshot(make(), "test")
        assert read_snapshot(snapshot.to_json(), "test") == snapshot


def test_no_finding_shows_a_secret() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    token = "hf_" + "a1" * 17
    objects(snapshot, "nodes")[0]["metadata"]["name"] = token
    objects(snapshot, "nodes")[0]["status"]["allocatable"][GPU] = "7"
    add("resourcequotas", {**QUOTA, "metadata": {"name": token}})(snapshot)
    result = checked(snapshot)
    assert bad(result)
    messages = [line for finding in result.findings for line in finding.lines()]
    assert token not in "\n".join(messages)
    assert not list(find_secrets([finding.to_json() for finding in result.findings]))


def test_drivers_of_shared_volumes_are_seen() -> None:
    snapshot = CLUSTERS["minikube"]()
    snapshot["objects"]["csidrivers.storage.k8s.io"] = named("nfs.csi.k8s.io")
    assert bad(checked(snapshot, "rwx")) == []


def test_network_devices_without_rdma_are_not_taken_for_efa(wording: Wording) -> None:
    snapshot = CLUSTERS["dra-only"]()
    for manifest in objects(snapshot, "resourceslices.resource.k8s.io"):
        if manifest["spec"]["driver"] == "dra.net":
            for number, device in enumerate(manifest["spec"]["devices"]):
                device["attributes"] = {"dra.net/rdma": {"bool": number < 4}}
    messages = [finding.what for finding in checked(snapshot, "efa").findings if finding.area == "EFA"]
    wording("\n".join(messages))


def test_a_quota_for_some_pods_is_no_problem_for_all() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    add("resourcequotas", {**QUOTA, "spec": {"scopes": ["BestEffort"]}})(snapshot)
    result = checked(snapshot, "gpus=16", Target.PYTORCHJOB)
    assert result.is_fine
    assert bad(result)


def test_fargate_and_the_control_plane_are_no_nodes_for_training(wording: Wording) -> None:
    snapshot = CLUSTERS["minikube"]()
    first, second = objects(snapshot, "nodes")
    first["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    second["metadata"]["labels"]["eks.amazonaws.com/compute-type"] = "fargate"
    result = checked(snapshot, "nodes=1").of(Level.PROBLEM)
    wording("\n".join(item.what for item in result))


JUNK: tuple[object, ...] = (None, "junk", [None], {})


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_field_is_trusted_to_be_what_it_should_be(name: str) -> None:
    """Every field in turn is null, a text, a list: checks say what they can, and never break."""
    for path in _paths(CLUSTERS[name]()["objects"]):
        for junk in JUNK:
            snapshot = CLUSTERS[name]()
            place: Any = snapshot["objects"]
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = junk
            checked(snapshot, "gpus=8,efa,nodes=1", Target.PYTORCHJOB)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every field; of a list, the first item stands for all."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))[:1]
    here = [path] if path else []
    return here + [result for step, item in inner for result in _paths(item, (*path, step))]


def test_gpus_without_efa_do_not_count_where_efa_is_needed() -> None:
    snapshot = CLUSTERS["eks-device-plugin"]()
    del objects(snapshot, "nodes")[0]["status"]["allocatable"]["vpc.amazonaws.com/efa"]
    assert checked(snapshot, "gpus=16").is_fine
    (result,) = checked(snapshot, "gpus=16,efa").of(Level.PROBLEM)
    assert result.evidence == "eu-west-1a: 1 node, 8 GPUs"

"""A snapshot takes few requests over real HTTP, and records what the server refuses to show."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.wording import Wording
from tests.k8s import clusters
from tests.k8s_client.served import serve

from paceline.k8s.check.checks import run_checks
from paceline.k8s.check.cluster import MAX_REQUESTS, take_snapshot
from paceline.k8s.check.findings import Level, Need
from paceline.k8s.check.snapshot import Rule, read_snapshot
from paceline.k8s.client.api import UnauthorizedError, UnreachableError
from paceline.k8s.client.kubernetes_api import KubernetesApi
from paceline.k8s.kinds import ACCESS_REVIEW, JOB_KINDS, LOCAL_QUEUE, NODE, RULES_REVIEW, Kind, kind_of
from paceline.k8s.spec.job import Target
from paceline.k8s.validate import kinds as rendered_kinds

Object = dict[str, Any]
BAD = (Level.WARNING, Level.PROBLEM)
SECRET = "hf_" + "s3" * 17


def large_cluster() -> Object:
    """200 nodes, every operator, devices by DRA and by plugins: as many questions as there can be."""
    made = clusters.hyperpod()
    health = {clusters.HEALTH: "Schedulable"}
    plugged = [f"gpu-{n:03d}" for n in range(100)]
    claimed = [f"dra-{n:03d}" for n in range(100)]
    made["objects"]["nodes"] = [
        *(clusters.node(name, "ml.p5.48xlarge", gpus=8, efa=32, labels=health) for name in plugged),
        *(clusters.node(name, "ml.p5en.48xlarge", labels=health) for name in claimed),
    ]
    made["objects"]["resourceslices.resource.k8s.io"] = [
        clusters.gpu_slice(name, size, driver=driver)
        for name in claimed
        for driver, size in (("gpu.nvidia.com", 8), ("dra.net", 16))
    ]
    clusters.serve(made, "clusterpolicies.nvidia.com", "trainingruntimes.trainer.kubeflow.org")
    made["objects"]["clusterpolicies.nvidia.com"] = [
        {"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}
    ]
    return clusters.with_kueue(clusters.with_kuberay(clusters.with_trainer(made)), "kubeflow.org/pytorchjob")


def test_200_nodes_are_read_in_25_requests(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, large_cluster())
    server.rights = {"resourceRules": [], "incomplete": True}  # as on EKS: rights are asked for one by one
    seen = take_snapshot(api, "train", Target.PYTORCHJOB)
    assert len(server.asked) <= MAX_REQUESTS == 25
    assert server.writes == []
    assert not [item for item in server.asked if item.path.endswith("/pods")]
    result = run_checks(seen, Need(gpus=1600, efa=False, nodes=200, rwx=True))
    assert [manifest.what for manifest in result.of(*BAD)] == []
    assert len(seen.of("nodes")) == 200
    assert seen.rights["create pytorchjobs.kubeflow.org"]


@pytest.mark.parametrize("name", clusters.CLUSTERS)
def test_what_is_seen_over_http_is_what_is_there(name: str, server: ApiServer, api: KubernetesApi) -> None:
    made = clusters.CLUSTERS[name]()
    serve(server, made)
    seen = take_snapshot(api, "train")
    snapshot = read_snapshot(made, name)
    for need in (Need(), Need(gpus=16, efa=True), Need(rwx=True)):
        messages = [
            (finding.level, finding.area, finding.what) for finding in run_checks(seen, need).findings
        ]
        assert messages == [
            (finding.level, finding.area, finding.what) for finding in run_checks(snapshot, need).findings
        ]


@pytest.mark.parametrize("resource", ["nodes", "deployments.apps", "resourcequotas", "namespaces"])
def test_what_may_not_be_seen_is_named_as_the_missing_rule(
    resource: str, server: ApiServer, api: KubernetesApi
) -> None:
    def refuse(_verb: str, kind: Kind, _what: Object) -> Refusal | None:
        message = f'{kind.plural} is forbidden: User "me" cannot look at them'
        return (403, "Forbidden", message) if kind.resource == resource else None

    serve(server, clusters.eks_device_plugin())
    server.rules.append(refuse)
    seen = take_snapshot(api, "train")
    verb = "get" if resource == "namespaces" else "list"
    where = "train" if resource == "resourcequotas" else ""
    assert seen.refused == (Rule(verb, resource, where),)
    assert not seen.knows(resource)
    result = run_checks(seen, Need())
    assert result.is_fine
    assert [manifest.evidence for manifest in result.of(*BAD)] == [f"missing: {Rule(verb, resource, where)}"]


def test_a_role_that_may_only_read_is_enough(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, clusters.eks_device_plugin())
    look = {"verbs": ["get", "list", "watch"], "apiGroups": ["*"], "resources": ["*"]}
    server.rights = {"resourceRules": [look], "incomplete": False}
    seen = take_snapshot(api, "train", Target.PYTORCHJOB)
    assert run_checks(seen, Need(gpus=16)).is_fine
    (result,) = run_checks(seen, Need(target=Target.PYTORCHJOB)).of(*BAD)
    assert 'resources: ["pytorchjobs"], verbs: ["create"]' in result.evidence
    assert 'verbs: ["delete"]' in result.evidence
    assert 'verbs: ["get"]' not in result.evidence


def test_permissions_that_only_a_webhook_grants_are_reviewed_one_by_one(
    server: ApiServer, api: KubernetesApi
) -> None:
    serve(server, clusters.eks_device_plugin())
    server.rights = {"resourceRules": [], "incomplete": True}
    server.allowed = lambda verb, _group, _resource: verb != "delete"
    rights = take_snapshot(api, "train", Target.PYTORCHJOB).rights
    assert rights["create pytorchjobs.kubeflow.org"]
    assert rights["delete pytorchjobs.kubeflow.org"] is False
    assert rights["get pods/log"]
    assert "list resourcequotas" not in rights, "what was not asked is not known"


def test_an_unknown_user_gets_one_clear_error(
    server: ApiServer, api: KubernetesApi, wording: Wording
) -> None:
    server.is_closed_to = True
    with wording.raises(UnauthorizedError):
        take_snapshot(api, "train")
    assert len(server.asked) == 1


def test_a_cluster_that_does_not_answer_is_one_clear_error(
    server: ApiServer, api: KubernetesApi, wording: Wording
) -> None:
    server.drop_next = 1
    with wording.raises(UnreachableError):
        take_snapshot(api, "train")


def test_secrets_of_other_people_s_objects_are_not_kept(server: ApiServer, api: KubernetesApi) -> None:
    made = clusters.eks_device_plugin()
    for item in made["objects"]["deployments.apps"]:
        (container,) = item["spec"]["template"]["spec"]["containers"]
        container |= {"env": [{"name": "HF_TOKEN", "value": SECRET}], "args": ["--token", SECRET]}
        item["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET}
    for item in made["objects"]["nodes"]:
        item["metadata"]["annotations"] = {"said": SECRET}
    serve(server, made)
    saved = json.dumps(take_snapshot(api, "train").to_json())
    assert SECRET not in saved
    assert "training-operator:v1.9.4" in saved


def test_kinds_are_read_in_the_version_that_is_served(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, clusters.bottlerocket())
    newer = replace(LOCAL_QUEUE, version="v1beta2")
    server.served = server.served - {LOCAL_QUEUE} | {newer}
    for queue in server.of(LOCAL_QUEUE):
        server.put({**queue, "apiVersion": newer.api_version})
    seen = take_snapshot(api, "train")
    assert seen.served["localqueues.kueue.x-k8s.io"] == ("v1beta2",)
    assert [item for item in server.asked if item.path == newer.path("train")]
    assert len(seen.of("localqueues.kueue.x-k8s.io")) == 1
    assert "trainjobs.trainer.kubeflow.org" not in seen.served


def test_a_webhook_that_is_down_hides_its_own_kind_only(
    server: ApiServer, api: KubernetesApi, wording: Wording
) -> None:
    broken = (500, "InternalError", "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=LocalQueue failed")
    serve(server, clusters.bottlerocket())
    server.rules = [lambda _verb, kind, _what: broken if kind == LOCAL_QUEUE else None]
    result = run_checks(take_snapshot(api, "train"), Need())
    wording("\n".join(manifest.what for manifest in result.of(*BAD)))
    assert result.of(Level.OK)
    server.rules = [lambda _verb, kind, _what: broken if kind == NODE else None]
    with pytest.raises(UnreachableError):
        take_snapshot(api, "train")


def test_without_the_right_to_review_permissions_one_request_is_sent(
    server: ApiServer, api: KubernetesApi
) -> None:
    serve(server, clusters.eks_device_plugin())
    no = (403, "Forbidden", 'selfsubjectaccessreviews is forbidden: User "me" cannot create')
    server.rules = [lambda _verb, kind, _what: no if kind in (RULES_REVIEW, ACCESS_REVIEW) else None]
    assert take_snapshot(api, "train", Target.PYTORCHJOB).rights == {}
    assert len([item for item in server.asked if item.path == ACCESS_REVIEW.path()]) == 1


def test_what_can_be_rendered_can_be_created_and_checked() -> None:
    for api_version, name in rendered_kinds.KIND_RULES:
        if api_version == "ray.io/v1alpha1":
            continue  # read, and never rendered
        assert kind_of({"apiVersion": api_version, "kind": name}).name == name
    for target in Target:
        assert any(kind.resource == target.resource for kind in JOB_KINDS)

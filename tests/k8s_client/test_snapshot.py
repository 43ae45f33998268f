"""Is a cluster looked at in few questions over real HTTP, and what if it refuses to be looked at?"""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.api_server import ApiServer, Refusal
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


def test_200_nodes_are_looked_at_in_25_questions(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, large_cluster())
    server.rights = {"resourceRules": [], "incomplete": True}  # as on EKS: rights are asked for one by one
    seen = take_snapshot(api, "train", Target.PYTORCHJOB)
    assert len(server.asked) <= MAX_REQUESTS == 25
    assert server.writes == []
    assert not [one for one in server.asked if one.path.endswith("/pods")]
    result = run_checks(seen, Need(gpus=1600, efa=False, nodes=200, rwx=True))
    assert [one.what for one in result.of(*BAD)] == []
    assert len(seen.of("nodes")) == 200
    assert seen.rights["create pytorchjobs.kubeflow.org"]


@pytest.mark.parametrize("name", clusters.CLUSTERS)
def test_what_is_seen_over_http_is_what_is_there(name: str, server: ApiServer, api: KubernetesApi) -> None:
    made = clusters.CLUSTERS[name]()
    serve(server, made)
    seen = take_snapshot(api, "train")
    wanted = read_snapshot(made, name)
    for need in (Need(), Need(gpus=16, efa=True), Need(rwx=True)):
        said = [(one.level, one.area, one.what) for one in run_checks(seen, need).findings]
        assert said == [(one.level, one.area, one.what) for one in run_checks(wanted, need).findings]


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
    assert [one.evidence for one in result.of(*BAD)] == [f"missing: {Rule(verb, resource, where)}"]


def test_a_role_that_may_only_look_is_enough(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, clusters.eks_device_plugin())
    look = {"verbs": ["get", "list", "watch"], "apiGroups": ["*"], "resources": ["*"]}
    server.rights = {"resourceRules": [look], "incomplete": False}
    seen = take_snapshot(api, "train", Target.PYTORCHJOB)
    assert run_checks(seen, Need(gpus=16)).is_fine
    (found,) = run_checks(seen, Need(target=Target.PYTORCHJOB)).of(*BAD)
    assert 'resources: ["pytorchjobs"], verbs: ["create"]' in found.evidence
    assert 'verbs: ["delete"]' in found.evidence
    assert 'verbs: ["get"]' not in found.evidence


def test_a_right_that_only_a_webhook_knows_of_is_asked_for(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, clusters.eks_device_plugin())
    server.rights = {"resourceRules": [], "incomplete": True}
    server.allowed = lambda verb, _group, _resource: verb != "delete"
    rights = take_snapshot(api, "train", Target.PYTORCHJOB).rights
    assert rights["create pytorchjobs.kubeflow.org"]
    assert rights["delete pytorchjobs.kubeflow.org"] is False
    assert rights["get pods/log"]
    assert "list resourcequotas" not in rights, "what was not asked is not known"


def test_an_unknown_user_gets_one_clear_error(server: ApiServer, api: KubernetesApi) -> None:
    server.is_closed_to = True
    with pytest.raises(UnauthorizedError, match="Unauthorized") as caught:
        take_snapshot(api, "train")
    assert "aws sso login" in caught.value.hint
    assert len(server.asked) == 1


def test_a_cluster_that_does_not_answer_is_one_clear_error(server: ApiServer, api: KubernetesApi) -> None:
    server.drop_next = 1
    with pytest.raises(UnreachableError, match="gave no answer to GET /version"):
        take_snapshot(api, "train")


def test_secrets_of_other_people_s_objects_are_not_kept(server: ApiServer, api: KubernetesApi) -> None:
    made = clusters.eks_device_plugin()
    for one in made["objects"]["deployments.apps"]:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        container |= {"env": [{"name": "HF_TOKEN", "value": SECRET}], "args": ["--token", SECRET]}
        one["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET}
    for one in made["objects"]["nodes"]:
        one["metadata"]["annotations"] = {"said": SECRET}
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
    assert [one for one in server.asked if one.path == newer.path("train")]
    assert len(seen.of("localqueues.kueue.x-k8s.io")) == 1
    assert "trainjobs.trainer.kubeflow.org" not in seen.served


def test_a_webhook_that_is_down_hides_its_own_kind_only(server: ApiServer, api: KubernetesApi) -> None:
    broken = (500, "InternalError", "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=LocalQueue failed")
    serve(server, clusters.bottlerocket())
    server.rules = [lambda _verb, kind, _what: broken if kind == LOCAL_QUEUE else None]
    result = run_checks(take_snapshot(api, "train"), Need())
    assert [one.what for one in result.of(*BAD)] == ["queues in namespace train could not be read"]
    assert result.of(Level.OK)
    server.rules = [lambda _verb, kind, _what: broken if kind == NODE else None]
    with pytest.raises(UnreachableError):
        take_snapshot(api, "train")


def test_who_may_not_ask_for_rights_asks_once(server: ApiServer, api: KubernetesApi) -> None:
    serve(server, clusters.eks_device_plugin())
    no = (403, "Forbidden", 'selfsubjectaccessreviews is forbidden: User "me" cannot create')
    server.rules = [lambda _verb, kind, _what: no if kind in (RULES_REVIEW, ACCESS_REVIEW) else None]
    assert take_snapshot(api, "train", Target.PYTORCHJOB).rights == {}
    assert len([one for one in server.asked if one.path == ACCESS_REVIEW.path()]) == 1


def test_what_can_be_rendered_can_be_created_and_checked() -> None:
    for api_version, name in rendered_kinds.KIND_RULES:
        if api_version == "ray.io/v1alpha1":
            continue  # read, and never rendered
        assert kind_of({"apiVersion": api_version, "kind": name}).name == name
    for target in Target:
        assert any(kind.resource == target.resource for kind in JOB_KINDS)

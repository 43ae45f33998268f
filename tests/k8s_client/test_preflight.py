"""Pre-flight checks over real HTTP: operators, what pods refer to, and what the user may not look at."""

from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.wording import Wording
from tests.k8s_client.test_job_kinds import job_request

from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import NODE, PYTORCH_JOB, SECRET, TRAIN_JOB, Kind
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.submit.requirements import references
from paceline.k8s.submit.submission import NoRoomError, RightsError, Submitted, submit

Object = dict[str, Any]
ENV = [
    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "a"}}},
    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "maybe", "key": "b", "optional": True}}},
]


def job(**pod: Any) -> Object:
    container = {"name": "pytorch", "image": "example.com/x:1", **pod.pop("container", {})}
    spec = {"restartPolicy": "Never", "containers": [container], **pod}
    about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo"}}
    return {**about, "spec": {"template": {"spec": spec}}}


def send(cluster: ClusterConnection, *manifests: Object) -> Submitted:
    return submit(cluster, list(manifests), RetryPolicy())


def test_every_reference_of_a_pod_is_found_once() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "tokens", "optional": True}}]}},
        {"name": "c", "configMap": {"name": "brought"}},
    ]
    made = job(
        volumes=volumes,
        container={"env": ENV, "envFrom": [{"secretRef": {"name": "all"}}]},
        serviceAccountName="trainer",
        priorityClassName="high",
        imagePullSecrets=[{"name": "registry"}],
    )
    brought = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "brought"}}
    results = {
        (reference.kind, reference.name): reference.is_required for reference in references([brought, made])
    }
    assert results == {
        ("PersistentVolumeClaim", "data"): True,
        ("Secret", "tokens"): True,
        ("Secret", "all"): True,
        ("Secret", "registry"): False,
        ("ConfigMap", "maybe"): False,
        ("ServiceAccount", "trainer"): True,
        ("PriorityClass", "high"): True,
    }


@pytest.mark.parametrize(
    ("volume", "reference"),
    [
        ({"persistentVolumeClaim": {"claimName": "x"}}, ("PersistentVolumeClaim", "x", True)),
        ({"secret": {"secretName": "x"}}, ("Secret", "x", True)),
        ({"configMap": {"name": "x", "optional": True}}, ("ConfigMap", "x", False)),
        ({"projected": {"sources": [{"secret": {"name": "x"}}]}}, ("Secret", "x", True)),
        ({"projected": {"sources": [{"configMap": {"name": "x"}}]}}, ("ConfigMap", "x", True)),
    ],
)
def test_every_kind_of_volume_is_a_reference(volume: Object, reference: tuple[str, str, bool]) -> None:
    (result,) = references([job(volumes=[{"name": "a", **volume}])])
    assert (result.kind, result.name, result.is_required) == reference


def test_a_trainjob_refers_to_the_secrets_of_its_initializers_and_of_its_trainer() -> None:
    spec = {
        "initializer": {"dataset": {"secretRef": {"name": "data"}}, "model": {"secretRef": {"name": "hub"}}},
        "trainer": {"env": ENV},
    }
    manifest = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}
    results = {reference.name for reference in references([manifest])}
    assert results == {"data", "hub", "tokens", "maybe"}


@pytest.mark.parametrize(
    ("pod", "named"),
    [
        ({"container": {"env": ENV}}, "Secret tokens"),
        ({"container": {"envFrom": [{"configMapRef": {"name": "all"}}]}}, "ConfigMap all"),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}]}, "Claim data"),
        ({"serviceAccountName": "trainer"}, "ServiceAccount trainer"),
        ({"priorityClassName": "high"}, "PriorityClass high"),
        ({"initContainers": [{"name": "first", "image": "x:1", "env": ENV}]}, "Secret tokens"),
    ],
)
def test_what_pods_need_and_is_not_there_is_named_before_anything_exists(
    cluster: ClusterConnection, server: ApiServer, pod: Object, named: str
) -> None:
    with pytest.raises(RightsError) as refused:
        send(cluster, job(**pod))
    assert named in refused.value.problems[0].what
    assert server.writes == []


def test_what_may_not_be_read_is_noted_and_refuses_nothing(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    def no_secrets(_verb: str, kind: Kind, _what: Object) -> Refusal | None:
        message = 'User "me" cannot get resource "secrets" in API group "" in the namespace "train"'
        return (403, "Forbidden", f"secrets is forbidden: {message}") if kind == SECRET else None

    server.rules.append(no_secrets)
    (note,) = [note for note in send(cluster, job(container={"env": ENV[:1]})).notes if "not checked" in note]
    assert "Secret tokens" in note


def test_a_claim_that_waits_for_its_first_pod_is_fine_and_another_is_noted(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}
    for name, mode in (("late", "WaitForFirstConsumer"), ("stuck", "Immediate")):
        about = {"name": name, "namespace": "train"}
        server.put({**head, "metadata": about, "spec": {"storageClassName": name}})
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        server.put({**kind, "volumeBindingMode": mode})
    volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("late", "stuck")]
    text = " ".join(send(cluster, job(volumes=volumes)).notes)
    assert "stuck is Pending" in text
    assert "late" not in text


def test_a_claim_whose_volume_is_lost_refuses_the_job(cluster: ClusterConnection, server: ApiServer) -> None:
    about = {"name": "data", "namespace": "train"}
    server.put(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "status": {"phase": "Lost"}}
    )
    with pytest.raises(RightsError) as refused:
        send(cluster, job(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}]))
    assert "PersistentVolumeClaim data" in refused.value.problems[0].what
    assert server.writes == []


def deployment(name: str, ready: int) -> Object:
    about = {"name": name, "namespace": "kubeflow"}
    status = {"readyReplicas": ready} if ready else {}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about}
    return {**head, "spec": {"replicas": 1}, "status": status}


def test_an_operator_that_does_not_work_is_named_and_one_that_is_not_seen_is_noted(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    made = render_job(*job_request(PYTORCH_JOB)).objects
    server.put(deployment("training-operator", 0))
    with wording.raises(RightsError):
        send(cluster, *made)
    assert server.writes == []
    server.put(deployment("training-operator", 1))
    assert not [note for note in send(cluster, *made).notes if "training operator" in note]
    assert any("Kubeflow Trainer" in note for note in _notes_of_a_trainjob(cluster))


def _notes_of_a_trainjob(cluster: ClusterConnection) -> tuple[str, ...]:
    made = [dict(item) for item in render_job(*job_request(TRAIN_JOB)).objects]
    for manifest in made:
        manifest["metadata"] = {**manifest["metadata"], "name": "other"}  # type: ignore[dict-item]  # a mapping of JSON
        if manifest["kind"] == "TrainJob":
            manifest["spec"]["runtimeRef"]["name"] = "other"  # type: ignore[call-overload, index]  # of JSON
    return send(cluster, *made).notes


def test_without_nodes_it_is_refused_unless_something_adds_them(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.remove(NODE, "node-a")
    with wording.raises(NoRoomError):
        send(cluster, job())
    about = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
    assert any("cluster autoscaler" in note for note in send(cluster, job()).notes)


def test_karpenter_adds_nodes_too(cluster: ClusterConnection, server: ApiServer) -> None:
    server.remove(NODE, "node-a")
    server.served.add(Kind("NodePool", "nodepools", "v1", "karpenter.sh", is_namespaced=False))
    assert any("Karpenter" in note for note in send(cluster, job()).notes)

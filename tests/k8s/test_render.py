"""Rendered manifests hold what the options ask for, are strict, and are the same bytes every time."""

from typing import Any

import pytest
import yaml
from tests.fixtures.wording import Wording, titled
from tests.k8s.rendered import VARIANTS, objects, settings

from paceline.core.errors import ConfigError
from paceline.k8s.render.targets import to_yaml
from paceline.k8s.spec.job import JobOptions, NodeRange, Profile, Target, TorchrunOptions
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.validate.kinds import KIND_RULES
from paceline.k8s.validate.offline import find_privileges, find_problems

IMAGE = "example.com/x:1"


def pods(values: dict[str, Any]) -> list[dict[str, Any]]:
    kind = KIND_RULES[(values["apiVersion"], values["kind"])]
    return [] if kind.pods is None else [dict(spec) for spec, _ in kind.pods(values["spec"], ())]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_options_give_the_same_bytes_and_the_yaml_reads_back(name: str) -> None:
    target, text, options = VARIANTS[name]
    first = objects(name)[0]
    again = render_job(settings(name="demo", **text), JobOptions(image=IMAGE, **options), target).objects
    assert to_yaml(first) == to_yaml(again)
    assert list(yaml.safe_load_all(to_yaml(first))) == first


@pytest.mark.parametrize("name", VARIANTS)
def test_our_own_check_finds_nothing_to_complain_about(name: str) -> None:
    made, profile = objects(name)
    assert [problem for manifest in made for problem in find_problems(manifest, profile)] == []


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "compat"])
def test_every_default_pod_passes_pod_security_restricted(name: str) -> None:
    seen = [spec for item in objects(name)[0] for spec in pods(item)]
    assert seen
    for spec in seen:
        assert list(find_privileges(spec, ())) == []
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_compat_gives_up_what_it_lists_and_keeps_the_rest() -> None:
    (job,), profile = objects("compat")
    assert profile is Profile.COMPAT
    for spec in pods(job):
        assert "runAsNonRoot" not in spec["securityContext"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
    assert find_problems(job, Profile.STRICT), "and a strict check does not take it"


def test_gpus_are_requested_as_limited_and_workers_fill_them() -> None:
    (job,), _ = objects("gpu")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 2  # four workers, two GPUs in each pod
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "--device cuda" in job["spec"]["entrypoint"]
    (head,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]


def test_a_secret_is_only_referred_to() -> None:
    (job,), _ = objects("server")
    (container,) = pods(job)[0]["containers"]
    assert container["env"][-1] == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}},
    }


def test_a_fixed_group_is_fixed_a_resizable_one_has_room_and_ray_scales_only_on_request() -> None:
    def sizes(name: str) -> tuple[int, int, int, bool]:
        spec = objects(name)[0][0]["spec"]
        cluster = spec.get("rayClusterSpec", spec)
        (group,) = cluster["workerGroupSpecs"]
        automatic = cluster["enableInTreeAutoscaling"]
        return group["minReplicas"], group["replicas"], group["maxReplicas"], automatic

    assert sizes("job") == (2, 2, 2, False)
    assert sizes("cluster") == (1, 2, 3, False)
    assert sizes("autoscaled") == (1, 2, 3, True)


def test_the_autoscaler_alone_gets_an_api_token() -> None:
    head, worker = pods(objects("autoscaled")[0][0])
    assert "automountServiceAccountToken" not in head
    assert worker["automountServiceAccountToken"] is False


def test_a_job_can_be_deleted_and_applied_again() -> None:
    """Nothing in it is new at each rendering, or refers to what a first attempt has made."""
    (job,), _ = objects("job")
    assert "jobId" not in job["spec"]
    assert "generateName" not in job["metadata"]
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert job["spec"]["ttlSecondsAfterFinished"] == 600
    assert job["spec"]["submitterConfig"] == {"backoffLimit": 0}


def test_volumes_are_in_the_head_that_keeps_the_run_and_in_the_workers() -> None:
    claim, job = objects("kept")[0]
    assert (claim["kind"], claim["metadata"]["name"]) == ("PersistentVolumeClaim", "out")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"], "its pods may be on several nodes"
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        assert [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]] == ["data", "out"]
        assert spec["containers"][0]["volumeMounts"] == [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "out", "mountPath": "/out"},
        ]
    assert "--save-dir /out" in job["spec"]["entrypoint"]
    assert "volumes" not in job["spec"]["submitterPodTemplate"]["spec"]


def test_the_node_port_service_finds_the_head_of_this_job_only() -> None:
    cluster, service = objects("cluster")[0]
    head = cluster["spec"]["headGroupSpec"]["template"]["metadata"]["labels"]
    selector = service["spec"]["selector"]
    assert selector.pop("ray.io/node-type") == "head"  # KubeRay's own label
    assert selector.items() <= head.items()
    assert [port["nodePort"] for port in service["spec"]["ports"]] == [30265, 30001]


def named(name: str, kind: str) -> dict[str, Any]:
    """The only object of this kind of a variant."""
    (found,) = (item for item in objects(name)[0] if item["kind"] == kind)
    return found


def test_every_pod_of_ray_has_the_account_that_comes_with_it_and_no_token() -> None:
    account = named("access", "ServiceAccount")["metadata"]["name"]
    seen = pods(named("access", "RayJob"))
    assert {spec["serviceAccountName"] for spec in seen} == {account}
    assert {spec["automountServiceAccountToken"] for spec in seen} == {False}
    binding = named("access", "RoleBinding")
    assert binding["roleRef"]["name"] == named("access", "Role")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ml"}]
    assert account != named("access", "RayJob")["metadata"]["name"], "KubeRay uses that name for its own Role"


def test_only_an_autoscaled_head_may_change_its_cluster() -> None:
    def groups(name: str) -> set[str]:
        return {group for rule in named(name, "Role")["rules"] for group in rule["apiGroups"]}

    assert groups("access") == {""}
    assert groups("access-autoscaled") == {"", "ray.io"}
    head, worker = pods(named("access-autoscaled", "RayCluster"))
    assert head["automountServiceAccountToken"] is True, "the account withholds it"
    assert worker["automountServiceAccountToken"] is False


def test_a_network_policy_opens_three_ports_to_the_namespace_and_the_dashboard_to_the_operator() -> None:
    policy = named("access", "NetworkPolicy")["spec"]
    template = named("access", "RayJob")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    cluster, namespace, operator = policy["ingress"]
    assert cluster == {"from": [{"podSelector": policy["podSelector"]}]}, "Ray's own ports are random"
    assert namespace["from"] == [{"podSelector": {}}]
    assert [rule["port"] for rule in namespace["ports"]] == [6379, 8265, 10001]
    (source,) = operator["from"]
    assert source["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    assert [rule["port"] for rule in operator["ports"]] == [8265]


def test_a_node_port_service_is_not_closed_by_the_policy() -> None:
    *_, everyone = named("access-autoscaled", "NetworkPolicy")["spec"]["ingress"]
    assert everyone == {"ports": [{"port": port, "protocol": "TCP"} for port in (8265, 10001)]}
    service = named("access-autoscaled", "Service")["spec"]
    assert [port["targetPort"] for port in service["ports"]] == [8265, 10001]


@pytest.mark.parametrize(
    "image",
    [
        "x:1",
        "paceline-ray:1",
        "localhost:5000/a/b:1",
        "123.dkr.ecr.eu-west-1.amazonaws.com/x:v1.2_3",
        "a/b@sha256:" + "0" * 64,
    ],
)
def test_images_of_every_registry_are_taken(image: str) -> None:
    rendered_job = render_job(settings(), JobOptions(image=image), Target.RAYCLUSTER)
    assert rendered_job.intent.image == image


REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"name": "Demo_1"}, {}, "name is 'Demo_1'"),
    ({"name": "d" * 48}, {}, "47 at most"),
    ({}, {"image": "example.com/x"}, "another one at the next attempt"),
    ({}, {"image": "example.com/x:latest"}, "another one at the next attempt"),
    ({}, {"image": "registry:5000/x"}, "another one at the next attempt"),
    ({}, {"image": "Not an image"}, "which no image can be called"),
    ({}, {"namespace": "Prod"}, "namespace is 'Prod'"),
    ({}, {"autoscale": "3:1"}, "must be MIN:MAX"),
    ({}, {"autoscale": "3:4"}, "the run needs 2 worker pods from its beginning"),
    ({}, {"autoscale": "1:3", "resizable": "1:3"}, "both said"),
    ({"threads_per_worker": "4"}, {}, "have room for 0"),
    ({"num_workers": "2", "threads_per_worker": "2", "mode": "asgd"}, {}, "the run has 3 participants"),
    ({"device": "cuda"}, {}, "the worker pods have no GPU"),
    ({"launcher": "local"}, {}, "launched by ray"),
    ({"elastic": "yes", "mode": "asgd"}, {}, "elastic server"),
    ({"elastic": "yes", "transport": "shm"}, {}, "elastic shm"),
    ({"elastic": "yes"}, {"autoscale": "1:3"}, "elastic autoscale"),
    ({}, {"torch": TorchrunOptions(nodes=NodeRange(1, 2))}, "range without elastic"),
    ({"mode": "adpsgd"}, {}, "actors share none"),
    ({}, {"secret_env": ("HF_TOKEN=hf_abcdefghijklmnopqrstuv",)}, "is not VARIABLE=SECRET/KEY"),
    ({"task_options": "api_key=abc"}, {}, "a secret in plain text"),
    ({}, {"ray_version": "2"}, "ray_version is '2'"),
    ({}, {"torch": TorchrunOptions(rbac=True)}, "rbac without namespace"),
    ({}, {"pull_secret": "A B"}, "which no Secret can be called"),
]


@pytest.mark.parametrize(("text", "options"), titled(REFUSED))
def test_what_cannot_work_is_refused_before_anything_exists(
    text: dict[str, str], options: dict[str, Any], wording: Wording
) -> None:
    with pytest.raises(ConfigError) as refused:
        render_job(settings(**text), JobOptions(**{"image": IMAGE, **options}), Target.RAYJOB)
    wording(str(refused.value))
    assert all(problem.hint for problem in refused.value.problems)
    assert "hf_abcdefghij" not in str(refused.value), "what may be a secret is not shown"

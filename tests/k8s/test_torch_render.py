"""Manifests of torchrun jobs: strict, equivalent for every kind, and the same bytes every time."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from tests.fixtures.wording import Wording, titled
from tests.k8s.rendered import settings
from tests.k8s.torch_rendered import (
    AGAIN,
    BIG,
    COMPAT,
    CONFIG,
    EFA,
    GPUS,
    KEPT,
    VARIANTS,
    job_of,
    objects,
    rendered,
    variant,
)

from paceline.config.load import load
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError
from paceline.k8s.objects import is_extended
from paceline.k8s.render.targets import describe_manifest, to_yaml
from paceline.k8s.spec.job import (
    ON_RAY,
    JobOptions,
    Limits,
    NodeRange,
    Profile,
    Size,
    Target,
    TorchrunOptions,
)
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.validate.kinds import KIND_RULES
from paceline.k8s.validate.offline import find_privileges, find_problems

KINDS_OF_JOB = [target for target in Target if target not in ON_RAY]


def pods(made: list[Any]) -> list[dict[str, Any]]:
    """Every whole pod."""
    results: list[dict[str, Any]] = []
    for manifest in made:
        kind = KIND_RULES[(manifest["apiVersion"], manifest["kind"])]
        results += (
            [dict(spec) for spec, _ in kind.pods(manifest["spec"], ())] if kind.pods is not None else []
        )
    return results


@pytest.mark.parametrize("name", [*VARIANTS, *COMPAT])
def test_the_same_options_give_the_same_bytes_and_the_yaml_reads_back(name: str) -> None:
    first = objects(name)[0]
    target, text, torch, options = (VARIANTS | COMPAT)[name]
    again = rendered(target, text, torch, options).text
    assert to_yaml(first) == again
    assert list(yaml.safe_load_all(again)) == first


TORCH_OPTIONS = st.fixed_dictionaries(
    {"nodes": st.sampled_from([1, 2, 3, 100, 128])},
    optional={
        "gpus_per_node": st.sampled_from([1, 8]),
        "efa": st.sampled_from([0, 1, 32]),
        "torch_debug": st.booleans(),
        "hf_secret": st.sampled_from(["hf-token", "hub/key"]),
        "checkpoint_volume": st.sampled_from(["ckpt", "output:/output"]),
        "volumes": st.just(("data:/data:ro",)),
        "network_policy": st.booleans(),
        "rbac": st.booleans(),
        "rdzv": st.sampled_from(["static", "c10d"]),
        "queue": st.just("gpu-queue"),
        "env": st.just(("OMP_NUM_THREADS=1",)),
    },
)


@given(target=st.sampled_from(KINDS_OF_JOB), torch=TORCH_OPTIONS)
@tried(max_examples=60)
def test_whatever_is_wished_is_strict_whole_and_without_secrets(
    target: Target, torch: dict[str, Any]
) -> None:
    if target is Target.HYPERPOD:
        torch = {key: value for key, value in torch.items() if key not in ("rdzv", "network_policy")}
    options = {"worker": Size(cpus=8, memory="16Gi"), "namespace": "train"}
    made: list[Any] = list(rendered(target, {"mode": "ssgd"}, torch, options).objects)
    assert [problem for manifest in made for problem in find_problems(manifest, Profile.STRICT)] == []
    everyone = pods(made)
    assert everyone
    for pod in everyone:
        is_far = bool(torch.get("efa")) and torch["nodes"] > 1
        assert list(find_privileges(pod, ())) == []
        assert pod["automountServiceAccountToken"] is False
        assert ("podAffinity" in pod.get("affinity", {})) == is_far, "EFA does not leave a zone"
        for container in pod["containers"]:
            resources = container["resources"]
            for name in resources["requests"]:
                assert not is_extended(name) or resources["limits"][name] == resources["requests"][name]
            added = container["securityContext"]["capabilities"].get("add", [])
            assert added == (["IPC_LOCK"] if torch.get("efa") else []), "the one exception"
            assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


SECRET = "hf_" + "q7Zk" * 6
PLACES: list[tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = [
    ({}, {"env": (f"HF_TOKEN={SECRET}",)}, {}),
    ({}, {"env": (f"HELLO={SECRET}",)}, {}),
    ({}, {"env": (SECRET,)}, {}),
    ({}, {"hf_secret": SECRET}, {}),
    ({}, {"queue": SECRET}, {}),
    ({}, {"volumes": (f"{SECRET}:/data",)}, {}),
    ({}, {"node_selector": (f"a={SECRET}",)}, {}),
    ({}, {"torchrun": SECRET}, {}),
    ({}, {}, {"secret_env": (f"HF_TOKEN={SECRET}",)}),
    ({}, {}, {"pull_secret": SECRET}),
    ({}, {}, {"namespace": SECRET}),
    ({}, {}, {"image": f"example.com/{SECRET}:1"}),
    ({"task_options": f"token={SECRET}"}, {}, {}),
    ({"task_options": f"hello={SECRET}"}, {}, {}),
    ({"name": SECRET}, {}, {}),
]


@pytest.mark.parametrize("target", KINDS_OF_JOB)
@pytest.mark.parametrize(("text", "torch", "options"), PLACES)
def test_a_secret_is_refused_wherever_it_is_given_and_is_not_shown(
    target: Target, text: dict[str, str], torch: dict[str, Any], options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        rendered(target, text, {"nodes": 2, **torch}, options)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("torch", [{"nodes": 2}, EFA, {**KEPT, "rbac": False, "network_policy": False}])
def test_the_kind_of_object_changes_nothing_else(torch: dict[str, Any]) -> None:
    """Image, resources, variables and volumes are the same in every kind."""

    def essence(target: Target) -> tuple[Any, ...]:
        made: list[Any] = list(rendered(target, {}, torch, BIG).objects)
        containers = [container for pod in pods(made) for container in pod["containers"]]
        trainer = made[-1]["spec"].get("trainer", {})
        variables = trainer.get("env") or containers[0]["env"]
        words = trainer.get("args") or containers[0]["args"]
        assert all(container["resources"] == containers[0]["resources"] for container in containers)
        assert trainer.get("resourcesPerNode", containers[0]["resources"]) == containers[0]["resources"]
        mounts = (containers[0]["volumeMounts"], pods(made)[0]["volumes"])
        return (
            containers[0]["image"],
            containers[0]["resources"],
            variables,
            mounts,
            words[words.index("-m") :],
        )

    first = essence(Target.PYTORCHJOB)
    assert all(essence(target) == first for target in KINDS_OF_JOB)


def test_a_static_pytorchjob_has_its_first_rank_in_the_master() -> None:
    spec = job_of("pytorchjob-kept")["spec"]
    counts = {name: item["replicas"] for name, item in spec["pytorchReplicaSpecs"].items()}
    assert counts == {"Master": 1, "Worker": 3}
    assert {entry["restartPolicy"] for entry in spec["pytorchReplicaSpecs"].values()} == {"OnFailure"}
    assert spec["runPolicy"]["backoffLimit"] == 13, "three attempts of four pods, and the one that fails"
    (container,) = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"] == ["/opt/conda/bin/torchrun"]
    assert container["args"][:7] == [
        "--nnodes=4", "--nproc_per_node=1", "--node_rank=$(RANK)", "--master_addr=$(MASTER_ADDR)",
        "--master_port=$(MASTER_PORT)", "--rdzv_backend=static", "--rdzv_id=demo",
    ]  # fmt: skip
    assert container["args"][7:9] == ["-m", "paceline.worker"]
    assert container["args"][-4:] == ["--save-dir", "/output", "--resume", "auto"]
    assert set(job_of("pytorchjob-alone")["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_an_elastic_pytorchjob_leaves_everything_to_the_operator() -> None:
    spec = job_of("pytorchjob-elastic")["spec"]
    policy = {"rdzvBackend": "c10d", "rdzvId": "demo", "minReplicas": 1, "maxReplicas": 4, "maxRestarts": 0}
    assert spec["elasticPolicy"] == policy
    (container,) = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"][0] == "-m", "PET_* variables say the rest"
    assert set(spec["pytorchReplicaSpecs"]) == {"Worker"}


def test_a_trainjob_brings_a_runtime_or_patches_one_that_is_there() -> None:
    def shape(runtime: str | None) -> tuple[set[str], set[str]]:
        made: list[Any] = list(rendered(Target.TRAINJOB, {}, {"nodes": 2, "runtime": runtime}, {}).objects)
        return {manifest["kind"] for manifest in made}, set(made[-1]["spec"])

    always = {"runtimeRef", "trainer", "activeDeadlineSeconds"}
    assert shape(None) == ({"TrainingRuntime", "TrainJob"}, always)
    assert shape("torch-distributed") == ({"TrainJob"}, always | {"runtimePatches"})
    (runtime,) = [item for item in objects("trainjob-kept")[0] if item["kind"] == "TrainingRuntime"]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 3}
    assert runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "torch"
    trainer = job_of("trainjob")["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)
    assert job_of("trainjob-runtime")["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert job_of("trainjob-efa-runtime")["spec"]["runtimeRef"]["kind"] == "ClusterTrainingRuntime"


def test_a_plain_job_has_a_service_that_names_its_pods() -> None:
    service, job = objects("job")[0]
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"] == "demo"
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 3)
    args = pod["spec"]["containers"][0]["args"]
    assert "--node_rank=$(JOB_COMPLETION_INDEX)" in args
    assert "--master_addr=demo-0.demo" in args
    assert "--nproc_per_node=2" in args
    elastic = job_of("job-c10d")["spec"]
    words = elastic["template"]["spec"]["containers"][0]["args"]
    assert "--rdzv_endpoint=demo-0.demo:29500" in words
    assert "--max_restarts=3" in words
    assert elastic["backoffLimit"] == 12


def test_hyperpods_own_agent_starts_the_workers_on_healthy_nodes() -> None:
    spec = job_of("hyperpod")["spec"]
    (replica,) = spec["replicaSpecs"]
    assert (replica["replicas"], replica["spares"]) == (2, 1)
    pod = replica["template"]["spec"]
    assert pod["containers"][0]["command"] == ["hyperpodrun"]
    assert set(pod["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}
    again = job_of("hyperpod-kept")["spec"]["runPolicy"]
    assert again["jobMaxRetryCount"] == 3
    assert again["restartPolicy"]["numRestartBeforeFullJobRestart"] == 3


def test_efa_and_debug_set_what_they_need_and_a_token_is_only_referred_to() -> None:
    (container,) = job_of("pytorchjob-efa")["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"][
        "containers"
    ]
    plain = {item["name"]: item.get("value") for item in container["env"]}
    values = {
        "FI_PROVIDER": "efa",
        "FI_EFA_FORK_SAFE": "1",
        "NCCL_SOCKET_IFNAME": "^lo",
        "NCCL_DEBUG": "INFO",
    }
    values |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TOKENIZERS_PARALLELISM": "false", "JOB_NAME": "demo"}
    assert values.items() <= plain.items()
    reference = {"secretKeyRef": {"name": "hf-token", "key": "token"}}
    assert container["env"][-1] == {"name": "HF_TOKEN", "valueFrom": reference}
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert container["args"][-4:] == ["--device", "cuda", "--save-dir", "/results"]
    quiet = job_of("pytorchjob")["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert not {"FI_PROVIDER", "TORCH_DISTRIBUTED_DEBUG"} & {item["name"] for item in quiet["env"]}


def test_what_is_requested_comes_with_the_job() -> None:
    made = objects("pytorchjob-kept")[0]
    kinds = [manifest["kind"] for manifest in made]
    assert kinds == [
        "PersistentVolumeClaim", "PersistentVolumeClaim", "ServiceAccount", "Role", "RoleBinding",
        "NetworkPolicy", "PyTorchJob",
    ]  # fmt: skip
    data, output = made[:2]
    assert data["spec"]["accessModes"] == ["ReadWriteMany"], "drivers of EBS, EFS and FSx refuse ReadOnlyMany"
    assert output["spec"]["accessModes"] == ["ReadWriteMany"]
    assert output["spec"]["storageClassName"] == "efs"
    policy = made[5]["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
    assert made[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert "secrets" not in str(made[3]["rules"])


def test_a_file_of_settings_travels_as_it_is_and_flags_stand_beside_it() -> None:
    config, job = objects("pytorchjob-config")[0]
    assert config["data"] == {"config.yaml": CONFIG}
    args = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    words = args[args.index("paceline.worker") + 1 :]
    assert words == [
        "--config", "/config/config.yaml", "--name", "demo", "--steps", "20", "--save-dir", "/results",
    ]  # fmt: skip
    assert "mode: ssgd  # all meet" in variant("pytorchjob-config").text, "readable, and not in one line"


def test_what_no_manifest_can_express_is_reported(wording: Wording) -> None:
    def said(name: str) -> str:
        return "\n".join(describe_manifest(variant(name).intent, (VARIANTS | COMPAT)[name][0]))

    assert "IPC_LOCK" in said("pytorchjob-efa")
    assert "IPC_LOCK" not in said("hyperpod-compat")
    wording(said("pytorchjob-kept"))
    assert "init-pytorch" in said("pytorchjob")
    assert "init-pytorch" not in said("pytorchjob-elastic")
    wording(said("job"))
    wording(said("job-c10d"))
    assert "torch-distributed" in said("trainjob-runtime-compat")


def test_nodes_mean_worker_pods_to_ray() -> None:
    options = JobOptions(image="example.com/x:1", torch=TorchrunOptions(nodes=3, gpus_per_node=2))
    rendered_job = render_job(settings(name="demo"), options, Target.RAYJOB)
    assert (rendered_job.intent.pods.wanted, rendered_job.intent.worker.gpus) == (3, 2)
    assert "--num-workers 6" in " ".join(rendered_job.intent.command)


TWO: dict[str, Any] = {"nodes": 2}
AT: dict[str, Any] = {"coordinator": "paceline-coordinator"}
ELASTIC = {"elastic": "yes", "mode": "ssgd"}
REFUSED: list[tuple[Target, dict[str, str], dict[str, Any], dict[str, Any], str]] = [
    (Target.PYTORCHJOB, {"name": "d" * 41}, TWO, {}, "40 at most"),
    (Target.PYTORCHJOB, {}, TWO, {"image": "example.com/x"}, "another one at the next attempt"),
    (Target.PYTORCHJOB, {"num_workers": "3"}, TWO, {}, "num_workers is 3, but nodes and processes"),
    (Target.PYTORCHJOB, {"launcher": "ray"}, TWO, {}, "launched by torchrun"),
    (Target.PYTORCHJOB, {"mode": "asgd"}, TWO, {}, "would send it their gradients in the clear"),
    (Target.PYTORCHJOB, {"mode": "adpsgd"}, TWO, {}, "share from birth"),
    (Target.PYTORCHJOB, ELASTIC, TWO, {}, "without a coordinator"),
    (Target.PYTORCHJOB, {"elastic": "no"}, {"nodes": NodeRange(1, 2)}, {}, "range without elastic"),
    (Target.PYTORCHJOB, {}, {**TWO, **AT}, {}, "coordinator without elastic"),
    (Target.HYPERPOD, ELASTIC, {**TWO, **AT}, {}, "elastic hyperpod"),
    (Target.JOB, ELASTIC, {**TWO, "coordinator": "A:b"}, {}, "coordinator name"),
    (Target.JOB, ELASTIC, {**TWO, **AT, "rdzv": "c10d"}, {}, "elastic rdzv"),
    (Target.JOB, {**ELASTIC, "num_workers": "3"}, {**TWO, **AT}, {}, "elastic workers"),
    (Target.TRAINJOB, ELASTIC, {**TWO, **AT, "runtime": "r"}, {}, "elastic runtime"),
    (Target.PYTORCHJOB, {"threads_per_worker": "4"}, TWO, {}, "do not fit on 2 CPUs"),
    (Target.PYTORCHJOB, {}, {**GPUS, "procs_per_node": 2}, BIG, "2 processes on a node, and 8 GPUs"),
    (Target.PYTORCHJOB, {}, {**TWO, "shm": "8Gi"}, {}, "below the pod's memory"),
    (Target.PYTORCHJOB, {}, {**TWO, "elastic_nodes": "3:4"}, {}, "the job has 2 nodes"),
    (Target.PYTORCHJOB, {}, {**TWO, "volumes": ("data",)}, {}, "CLAIM:PATH"),
    (Target.PYTORCHJOB, {}, {**TWO, "volumes": ("data:/dev/shm",)}, {}, "something else is mounted"),
    (Target.PYTORCHJOB, {}, {**TWO, "volumes": ("a:/a", "b:/a")}, {}, "something else is mounted"),
    (Target.PYTORCHJOB, {}, {**TWO, "create_volumes": ("a=1Gi",)}, {}, "which no pod mounts"),
    (Target.PYTORCHJOB, {}, {**TWO, "env": ("WORLD_SIZE=3",)}, {}, "who is who"),
    (Target.PYTORCHJOB, {}, {**TWO, "rbac": True}, {}, "must name the namespace"),
    (Target.PYTORCHJOB, {}, {**TWO, "trainer": "2.2"}, {}, "--trainer is for trainjob"),
    (Target.PYTORCHJOB, {}, {**TWO, "spares": 1}, {}, "--spares is for hyperpod"),
    (Target.PYTORCHJOB, {}, TWO, {"autoscale": "1:3"}, "--autoscale is for jobs of Ray"),
    (Target.PYTORCHJOB, {}, TWO, {"limits": Limits(retries=2)}, "goes with it"),
    (
        Target.PYTORCHJOB,
        {},
        {**TWO, "checkpoint_volume": "c"},
        {"limits": Limits(retries=2)},
        "no checkpoint",
    ),
    (Target.PYTORCHJOB, {}, {**TWO, "checkpoint_volume": "c:/c:ro"}, {}, "cannot be read-only"),
    (Target.TRAINJOB, {}, {**TWO, "elastic_nodes": "1:3"}, {}, "fixed number of nodes"),
    (Target.TRAINJOB, {}, {**TWO, "trainer": "2.1"}, {}, "trainer is '2.1', but known are 2.3"),
    (Target.HYPERPOD, {}, {**TWO, "rdzv": "c10d"}, {}, "HyperPod's own agent decides"),
    (Target.HYPERPOD, {}, {**TWO, "instance_type": "p5.48xlarge"}, {}, "say ml. before it"),
    (Target.HYPERPOD, {}, {**TWO, "network_policy": True}, {}, "keep HyperPod's operator from its agents"),
    (Target.RAYJOB, {"mode": "ssgd"}, {**TWO, "efa": 1}, {}, "--efa is for jobs that torchrun starts"),
    (Target.JOB, {}, TWO, {"secret_env": ("RANK=a/b",)}, "secret_env sets RANK, which says who is who"),
    (Target.JOB, {}, {**TWO, "env": ("PET_NNODES=3",)}, {}, "env sets PET_NNODES, which says who is who"),
]


@pytest.mark.parametrize(("target", "text", "torch", "options"), titled(REFUSED))
def test_what_cannot_work_is_refused_before_anything_exists(
    target: Target, text: dict[str, str], torch: dict[str, Any], options: dict[str, Any], wording: Wording
) -> None:
    with pytest.raises(ConfigError) as refused:
        rendered(target, text, torch, options)
    wording(str(refused.value))
    assert all(problem.hint for problem in refused.value.problems)


def test_results_go_to_the_volume_and_a_flag_may_choose_the_path_on_it(wording: Wording) -> None:
    def words(folder: str) -> list[str]:
        config = load(flags=[RawSetting(key="save_dir", raw=folder, where="--save-dir")]).config
        torch = TorchrunOptions(nodes=2, checkpoint_volume="output:/output")
        return list(render_job(config, JobOptions(image="x:1", torch=torch), Target.JOB).intent.command)

    assert words("/output/mine")[-4:] == ["--save-dir", "/output/mine", "--resume", "auto"]
    with wording.raises(ConfigError):
        words("/elsewhere")


def test_a_job_may_be_retried_from_zero_on_request() -> None:
    torch = {"nodes": 2, "allow_restart_from_zero": True}
    rendered_job = rendered(Target.JOB, {}, torch, {"limits": Limits(retries=2)})
    assert "backoffLimit: 4" in rendered_job.text


def test_a_pytorchjob_on_hyperpod_requests_healthy_nodes_and_automatic_resumption() -> None:
    kept = {"nodes": 2, "instance_type": "ml.g5.8xlarge", "checkpoint_volume": "output"}
    (job,) = rendered(Target.PYTORCHJOB, {"checkpoint_every": "50"}, kept, AGAIN).objects
    about: Any = job["metadata"]
    assert about["annotations"]["sagemaker.amazonaws.com/enable-job-auto-resume"] == "true"
    assert about["annotations"]["sagemaker.amazonaws.com/job-max-retry-count"] == "3"
    spec: Any = job["spec"]
    for role in spec["pytorchReplicaSpecs"].values():
        assert role["restartPolicy"] == "OnFailure"
        assert "node-health-status" in str(role["template"]["spec"]["affinity"]["nodeAffinity"])
    (elsewhere,) = rendered(Target.PYTORCHJOB, {}, {"nodes": 2, "instance_type": "g5.8xlarge"}).objects
    assert "sagemaker" not in str(elsewhere)

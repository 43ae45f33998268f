"""The AWS side of an EKS cluster is read, checked and fixed, by boto3 over real HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.aws.eks_server import ARN, EksServer
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode, NotReadyError
from paceline.k8s.check.eks import HYPERPOD_OPERATOR, check
from paceline.k8s.check.eks_probe import read_eks_facts
from paceline.k8s.check.findings import Finding, Level, Need
from paceline.k8s.client.eks import Aws
from paceline.k8s.spec.job import Target
from paceline.training.session import Session

Object = dict[str, Any]
HYPERPOD = Need(target=Target.HYPERPOD)
USUAL = ("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-ebs-csi-driver")
NAMES = (*USUAL, HYPERPOD_OPERATOR)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[EksServer, Aws]]:
    """One for all: Amazon's clients take a second to be made."""
    with EksServer().running() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables().items():
            patch.setenv(name, value)
        aws = Aws()
        yield server, aws
        aws.close()


@pytest.fixture
def amazon(running: tuple[EksServer, Aws]) -> EksServer:
    running[0].reset()
    for name in NAMES:
        running[0].offers[name] = [f"{name}-2", f"{name}-1"]
    return running[0]


@pytest.fixture
def aws(running: tuple[EksServer, Aws]) -> Aws:
    return running[1]


def plain(amazon: EksServer) -> None:
    for name in (*USUAL, "aws-efs-csi-driver", "aws-fsx-csi-driver", "amazon-cloudwatch-observability"):
        amazon.addon(name, f"{name}-2")
    amazon.groups["gpu"] = group("AL2023_x86_64_NVIDIA", "p5.48xlarge")


def auto(amazon: EksServer) -> None:
    amazon.cluster["computeConfig"] = {"enabled": True, "nodePools": ["general-purpose"]}


def bottlerocket(amazon: EksServer) -> None:
    plain(amazon)
    amazon.groups["gpu"] = group("BOTTLEROCKET_x86_64_NVIDIA", "g6.12xlarge")
    amazon.groups["cpu"] = group("BOTTLEROCKET_x86_64", "m7i.xlarge")


def own_images(amazon: EksServer) -> None:
    """Nothing of it is managed by EKS: other ways are no faults."""
    amazon.groups["gpu"] = group("CUSTOM", "p5.48xlarge")
    amazon.cluster["accessConfig"] = {"authenticationMode": "API_AND_CONFIG_MAP"}
    amazon.entries = []


def hyperpod(amazon: EksServer) -> None:
    plain(amazon)
    amazon.addon(HYPERPOD_OPERATOR, f"{HYPERPOD_OPERATOR}-1")
    amazon.hyperpods = [hyperpod_of("InService", 4, 4), {**hyperpod_of("Failed", 0, 2), **_OTHER}]


def group(image: str, *machines: str, status: str = "ACTIVE", **more: Any) -> Object:
    return {"status": status, "amiType": image, "instanceTypes": list(machines), **more}


_OTHER = {"ClusterName": "other", "Orchestrator": {"Eks": {"ClusterArn": "arn:of:another"}}}


def hyperpod_of(status: str, current: int, target: int) -> Object:
    its = {"InstanceGroupName": "gpus", "CurrentCount": current, "TargetCount": target}
    return {
        "ClusterArn": "arn",
        "ClusterName": "pod",
        "ClusterStatus": status,
        "NodeRecovery": "Automatic",
        "InstanceGroups": [its],
        "Orchestrator": {"Eks": {"ClusterArn": ARN}},
    }


def findings(aws: Aws, need: Need | None = None) -> list[Finding]:
    return list(check(read_eks_facts(aws, "train"), need or Need()))


def wrong(aws: Aws, need: Need | None = None) -> list[str]:
    return [
        finding.what for finding in findings(aws, need) if finding.level in (Level.WARNING, Level.PROBLEM)
    ]


@pytest.mark.parametrize("kind", [plain, auto, bottlerocket, own_images, hyperpod])
def test_a_sound_cluster_gives_no_alarm(amazon: EksServer, aws: Aws, kind: Any) -> None:
    kind(amazon)
    assert wrong(aws) == []
    assert amazon.writes == []
    if kind is hyperpod:
        assert wrong(aws, HYPERPOD) == []


def degraded(amazon: EksServer) -> None:
    issue = {"code": "InsufficientNumberOfReplicas", "message": "0 of 2"}
    amazon.addon("coredns", "coredns-2", "DEGRADED", health={"issues": [issue]})


def failed_group(amazon: EksServer) -> None:
    issue = {"code": "AsgInstanceLaunchFailures", "message": "no p5 here"}
    amazon.groups["gpu"] = group(
        "AL2023_x86_64_NVIDIA", "p5.48xlarge", status="DEGRADED", health={"issues": [issue]}
    )


FAULTS: list[tuple[Any, str]] = [
    (degraded, "add-on coredns is DEGRADED: InsufficientNumberOfReplicas: 0 of 2"),
    (failed_group, "node group gpu is DEGRADED: AsgInstanceLaunchFailures: no p5 here"),
    (lambda a: a.addon("vpc-cni", "vpc-cni-0"), "add-on vpc-cni vpc-cni-0"),
    (
        lambda a: a.groups.update(gpu=group("AL2023_x86_64_STANDARD", "g5.xlarge")),
        "an image without a driver",
    ),
    (lambda a: a.cluster.update(status="FAILED"), "train is FAILED"),
    (lambda a: setattr(a, "support", "UNSUPPORTED"), "Kubernetes 1.35"),
    (lambda a: setattr(a, "entries", []), "you have no access entry"),
    (lambda a: setattr(a, "hyperpods", [hyperpod_of("Failed", 0, 2)]), "HyperPod cluster pod is Failed"),
    (lambda a: setattr(a, "hyperpods", [hyperpod_of("InService", 1, 2)]), "gpus 1 of 2"),
    (lambda a: a.denied.add("node-groups"), "eks:ListNodegroups"),
]


@pytest.mark.parametrize(("strike", "description"), FAULTS, ids=[description for _, description in FAULTS])
def test_a_fault_is_found_and_nothing_else_is(
    amazon: EksServer, aws: Aws, strike: Any, description: str
) -> None:
    plain(amazon)
    strike(amazon)
    seen = findings(aws)
    (result,) = [finding for finding in seen if finding.level in (Level.WARNING, Level.PROBLEM)]
    assert description in result.what
    assert result.command
    assert result.evidence


def test_a_driver_may_come_from_elsewhere_than_the_image(amazon: EksServer, aws: Aws) -> None:
    plain(amazon)
    amazon.groups.update(gpu=group("AL2023_x86_64_STANDARD", "g5.xlarge"))
    for need in (Need(), Need(gpus=1)):
        assert not [finding for finding in findings(aws, need) if finding.level is Level.PROBLEM]


def test_what_hyperpod_needs_is_a_problem_where_it_is_required(
    amazon: EksServer, aws: Aws, wording: Wording
) -> None:
    plain(amazon)
    wording("\n".join(wrong(aws, HYPERPOD)))
    with wording.raises(NotReadyError):
        read_eks_facts(aws, "nowhere")


def cli(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[ExitCode, Object]:
    code = ExitCode(run([*words, "--json"], Session(folder=folder)))
    captured = capsys.readouterr()
    return code, json.loads(captured.out).get("data", {})


def test_add_ons_are_planned_done_once_and_taken_back(
    amazon: EksServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain(amazon)
    amazon.addon("vpc-cni", "vpc-cni-0")
    fix = ["cluster", "fix", "--eks", "train", "--target", "hyperpod", "--only", "addon"]
    with ApiServer().running() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        code, _ = cli(tmp_path, capsys, *fix)
        assert code == ExitCode.NOT_READY, "the current context is another cluster's"
        amazon.cluster["endpoint"] = server.url
        _, data = cli(tmp_path, capsys, *fix)
        assert [(fix["name"], fix["tier"], fix["state"]) for fix in data["fixes"]] == [
            ("addon", "planned", "waits"),
            ("addon", "planned", "waits"),
        ]
        assert amazon.writes == []
        _, data = cli(tmp_path, capsys, *fix, "--apply")
        assert amazon.writes == ["POST addons/vpc-cni/update", "POST addons"]
        assert amazon.addons["vpc-cni"]["addonVersion"] == "vpc-cni-2"
        _, again = cli(tmp_path, capsys, *fix, "--apply")
        assert (again["fixes"], len(amazon.writes)) == ([], 2), "a second run writes nothing"
        undo = ["cluster", "fix", "--undo", data["id"], "--eks", "train"]
        amazon.addons["vpc-cni"]["addonVersion"] = "vpc-cni-3"
        _, undone = cli(tmp_path, capsys, *undo)
        assert [step["undone"] for step in undone["steps"]] == [True, False], "it was updated since"
        assert amazon.addons["vpc-cni"]["addonVersion"] == "vpc-cni-3"
        amazon.addons["vpc-cni"]["addonVersion"] = "vpc-cni-2"
        _, undone = cli(tmp_path, capsys, *undo)
        assert [step["undone"] for step in undone["steps"]] == [True]
        assert HYPERPOD_OPERATOR not in amazon.addons
        assert amazon.addons["vpc-cni"]["addonVersion"] == "vpc-cni-0"
        _, checked = cli(tmp_path, capsys, "cluster", "check", "--eks", "train")
        assert {"EKS", "GPU software"} <= {finding["area"] for finding in checked["findings"]}
        assert server.writes == []


def test_a_cluster_that_no_context_names_is_half_known(
    amazon: EksServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    plain(amazon)
    code, data = cli(tmp_path, capsys, "cluster", "check", "--eks", "train")
    assert code == ExitCode.OK
    assert data["findings"][-1]["next"] == "aws eks update-kubeconfig --name train --region eu-west-1"
    code, data = cli(tmp_path, capsys, "cluster", "check", "--eks", "train", "--need", "gpus=8")
    assert code == ExitCode.NOT_READY, "no GPU was observed"
    code, _ = cli(tmp_path, capsys, "cluster", "check", "--eks", "train", "--save", "seen.json")
    assert code == ExitCode.NOT_READY
    assert not (tmp_path / "seen.json").exists()

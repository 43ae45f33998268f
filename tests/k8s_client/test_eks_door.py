"""The EKS client lists clusters, from moto's server over real HTTP."""

import json
import os
from pathlib import Path

import boto3
import pytest
from tests.fixtures.aws.s3_server import s3_server
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.check.eks_probe import read_eks_facts
from paceline.k8s.client.api import UnreachableError
from paceline.k8s.client.eks import Aws, eks_clusters
from paceline.training.session import Session


def test_clusters_of_eks_are_listed_with_the_command_to_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with s3_server(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        (tmp_path / "config").write_text("{}")
        client = boto3.client("eks")
        network = {"subnetIds": ["subnet-1"]}
        role = "arn:aws:iam::123456789012:role/eks"
        client.create_cluster(name="train", version="1.35", roleArn=role, resourcesVpcConfig=network)
        client.create_nodegroup(
            clusterName="train",
            nodegroupName="gpus",
            amiType="AL2023_x86_64_NVIDIA",
            instanceTypes=["g6.12xlarge"],
            nodeRole=role,
            subnets=["subnet-1"],
        )
        client.close()
        (tmp_path / "aws").write_text(
            "[profile other]\naws_access_key_id = other\naws_secret_access_key = other\n"
        )
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
        (result,) = eks_clusters()
        assert (result.name, result.region, result.status, result.version) == (
            *("train", "us-east-1", "ACTIVE", "1.35"),
        )
        assert eks_clusters("eu-west-1") == eks_clusters("eu-west-1", "other") == []
        aws = Aws()
        facts = read_eks_facts(aws, "train")
        aws.close()
        assert [(group.name, group.image, group.machines) for group in facts.groups] == [
            ("gpus", "AL2023_x86_64_NVIDIA", ("g6.12xlarge",))
        ]
        assert "sagemaker:ListClusters" not in facts.refused
        assert "eks:ListAddons" in facts.refused, "moto knows no add-ons, and that is no fault of the cluster"
        assert (
            run(
                ["cluster", "list", "--eks", "--region", "us-east-1", "--region", "eu-west-1", "--json"],
                Session(folder=tmp_path),
            )
            == ExitCode.OK
        )
    stdout = capsys.readouterr().out
    assert json.loads(stdout)["data"]["eks"][0]["name"] == "train"
    assert result.command == "aws eks update-kubeconfig --name train --region us-east-1"


def test_without_a_region_or_credentials_there_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with wording.raises(UnreachableError):
        eks_clusters()
    with wording.raises(UnreachableError):
        eks_clusters("eu-west-1")

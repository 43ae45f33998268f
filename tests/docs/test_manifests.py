"""The manifests under examples/ray equal the renderer's output and request the expected resources."""

import shlex
from typing import Any

import pytest
import yaml
from docs.manifests import COMMANDS, FOLDER, manifests

from paceline.cli.compare import compare
from paceline.k8s.validate.offline import validate
from paceline.training.session import Session


def test_the_examples_are_what_the_renderer_writes() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*")}
    stale = sorted(name for name, text in manifests().items() if written.pop(name, None) != text)
    assert not stale, "examples/ray is out of date: run `make examples`"
    assert set(written) <= {"README.md"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_valid(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert validate(text, name).problems == ()


def test_the_standing_cluster_is_the_documented_one() -> None:
    text = (FOLDER / "raycluster.yaml").read_text(encoding="utf-8")
    cluster, service = yaml.safe_load_all(text)
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert _requested_resources(head) == {"cpu": "2", "memory": "4Gi"}
    assert [port["containerPort"] for port in head["ports"]] == [6379, 8265, 10001]
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert _requested_resources(group["template"]["spec"]["containers"][0]) == {"cpu": "2", "memory": "4Gi"}
    assert [group[key] for key in ("minReplicas", "replicas", "maxReplicas")] == [1, 2, 3]
    assert cluster["spec"]["enableInTreeAutoscaling"] is False
    ports = {port["name"]: port["nodePort"] for port in service["spec"]["ports"]}
    assert ports == {"dashboard": 30265, "client": 30001}


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd"])
def test_there_is_one_job_for_each_experiment(mode: str) -> None:
    job = yaml.safe_load((FOLDER / f"rayjob-{mode}.yaml").read_text(encoding="utf-8"))
    assert job["kind"] == "RayJob"
    entrypoint = job["spec"]["entrypoint"]
    assert ("--mode" in entrypoint) == (mode != "ssgd"), "ssgd is the default"
    assert entrypoint.startswith("paceline train --launcher ray --address auto ")


@pytest.mark.parametrize("experiment", ["localsgd", "asgd", "adaptive", "diloco"])
def test_there_is_one_comparison_for_each_experiment_and_the_command_reads_it(experiment: str) -> None:
    text = (FOLDER / f"rayjob-compare-{experiment}.yaml").read_text(encoding="utf-8")
    claim, job = yaml.safe_load_all(text)
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["paceline", "compare"]
    params = compare.make_context("compare", words[2:], obj=Session()).params
    assert (params["launcher"], params["address"]) == ("ray", "auto")
    assert experiment in params["modes"].split(",")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == int(params["num_workers"])
    mounts = group["template"]["spec"]["containers"][0]["volumeMounts"]
    assert mounts == [{"name": claim["metadata"]["name"], "mountPath": "/out"}]
    assert str(params["out"]).startswith("/out/"), "the report is kept"


def _requested_resources(container: dict[str, Any]) -> dict[str, str]:
    assert container["resources"]["requests"] == container["resources"]["limits"]
    limits = container["resources"]["limits"]
    assert isinstance(limits, dict)
    return limits

"""The manifests under examples/ray equal the renderer's output and request the expected resources."""

from typing import Any

import pytest
import yaml
from docs.manifests import COMMANDS, FOLDER, manifests

from paceline.k8s.validate.offline import validate


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


def _requested_resources(container: dict[str, Any]) -> dict[str, str]:
    assert container["resources"]["requests"] == container["resources"]["limits"]
    limits = container["resources"]["limits"]
    assert isinstance(limits, dict)
    return limits

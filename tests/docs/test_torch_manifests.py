"""The manifests of torchrun jobs equal the renderer's output and hold what the guide promises."""

from typing import Any

import pytest
import yaml
from docs.manifests import EXAMPLES, TORCH, torch_manifests

from paceline.k8s.validate.offline import validate


def test_the_examples_are_what_the_renderer_writes() -> None:
    written = {
        path.relative_to(EXAMPLES).as_posix(): path.read_text(encoding="utf-8")
        for path in EXAMPLES.glob("*/*.yaml")
        if path.parent.name not in ("ray", "patches")
    }
    stale = sorted(name for name, text in torch_manifests().items() if written.pop(name, None) != text)
    assert not stale, "examples are out of date: run `make examples`"
    assert not written, "no command renders these"


@pytest.mark.parametrize("name", TORCH)
def test_every_example_is_valid(name: str) -> None:
    assert validate((EXAMPLES / name).read_text(encoding="utf-8"), name).problems == ()


def test_there_is_one_of_every_kind() -> None:
    kinds = {kind for name in TORCH for kind in (item["kind"] for item in _read(name))}
    assert {"PyTorchJob", "TrainJob", "TrainingRuntime", "Job", "HyperPodPyTorchJob"} <= kinds


def test_the_index_job_is_the_documented_one() -> None:
    """ConfigMap, claims, one Master and three Workers with 1 GPU, 8Gi and 4 CPUs each, in ml-training."""
    config, data, output, job = _read("kubeflow/pytorchjob-sp500.yaml")
    assert {item["metadata"]["namespace"] for item in (config, data, output, job)} == {"ml-training"}
    assert yaml.safe_load(config["data"]["config.yaml"])["model"]["kind"] == "lstm"
    assert data["spec"]["accessModes"] == ["ReadWriteMany"]
    assert output["spec"]["accessModes"] == ["ReadWriteMany"]
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: item["replicas"] for name, item in replicas.items()} == {"Master": 1, "Worker": 3}
    for entry in replicas.values():
        assert entry["restartPolicy"] == "OnFailure"
        (container,) = entry["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
        assert mounts == {"/dev/shm": False, "/data": True, "/output": False, "/config": True}


def _read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))

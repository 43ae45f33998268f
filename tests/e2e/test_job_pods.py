"""The pods of a rendered job train together. Each is a torchrun here, with a cluster's environment."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.fixtures.runs.torchrun import free_port, starting
from tests.k8s.torch_rendered import rendered
from torch.distributed.run import get_args_parser

from paceline.k8s.spec.command import read_torchrun
from paceline.k8s.spec.job import Target


def test_the_two_pods_of_a_job_connect_and_train(tmp_path: Path) -> None:
    torch: dict[str, Any] = {"nodes": 2, "checkpoint_volume": "output:/output"}
    _, job = rendered(Target.JOB, {"steps": "6", "timeout": "120s"}, torch).objects
    container = _container(job)
    port = free_port()
    with ExitStack() as both:
        pods = [
            both.enter_context(
                starting(
                    *_argv(container, index, port, tmp_path),
                    folder=tmp_path,
                    is_warm=True,
                    **_environment(container),
                )
            )
            for index in range(2)
        ]
        results = [pod.end(within_s=180) for pod in pods]
    assert [result.code for result in results] == [0, 0], [result.err for result in results]
    assert " xor with 2 workers" in results[0].err
    assert " ddp" in results[0].err
    result = json.loads((tmp_path / "output" / "demo" / "result.json").read_text())
    assert set(result["state_sha256"]) == {"worker-0", "worker-1"}
    assert (result["launcher"], result["steps"]) == ("torchrun", 6)


def test_every_flag_that_torchrun_has_is_known_to_validate() -> None:
    for action in get_args_parser()._actions:
        for flag in action.option_strings:
            if flag.startswith("--") and flag != "--help":
                words = [flag] if action.nargs == 0 else [flag, "value"]
                read = read_torchrun(["torchrun", *words, "-m", "paceline.worker", "--mode", "ddp"])
                assert read is not None
                assert read.problems == (), flag
                assert read.worker == ("--mode", "ddp") or flag == "--module", flag


def _container(job: Any) -> dict[str, Any]:  # Any: JSON
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def _argv(container: dict[str, Any], index: int, port: int, folder: Path) -> list[str]:
    """As the kubelet, the Service and the volume would have it."""
    cluster = {
        "$(JOB_COMPLETION_INDEX)": str(index),
        "demo-0.demo": "127.0.0.1",
        "--master_port=29500": f"--master_port={port}",
        "/output": str(folder / "output"),
    }
    words = [str(word) for word in container["args"]]
    for name, value in cluster.items():
        assert any(name in word for word in words), name
        words = [word.replace(name, value) for word in words]
    return words


def _environment(container: dict[str, Any]) -> dict[str, str]:
    """Its variables; both pods share one network here, and it is this one."""
    return {**{item["name"]: item["value"] for item in container["env"]}, "GLOO_SOCKET_IFNAME": "lo"}

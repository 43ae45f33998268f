"""`job render -- compare`: a comparison as one job on a Ray cluster that fits its largest run."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.compare import compare
from paceline.cli.main import run
from paceline.training.session import Session

CAPTURED = pytest.CaptureFixture[str]


def render(folder: Path, capsys: CAPTURED, *words: str, flags: tuple[str, ...] = (), code: int = 0) -> Any:
    command = ["job", "render", "--json", "--target", "rayjob", "--image", "example.com/x:1", *flags]
    assert run([*command, "--", "compare", *words], Session(folder=folder)) == code
    answer = json.loads(capsys.readouterr().out)
    return answer["data"] if code == 0 else answer["error"]["problems"]


def test_the_words_are_those_of_the_command_with_ray_as_launcher(tmp_path: Path, capsys: CAPTURED) -> None:
    words = ["--modes", "ssgd,localsgd", "--num-workers", "2,4", "--straggler", "worker=1,factor=3"]
    done = render(tmp_path, capsys, *words, "--out", "/out/comparison")
    (job,) = done["manifests"]
    entrypoint = shlex.split(job["spec"]["entrypoint"])
    assert entrypoint[:6] == ["paceline", "compare", "--launcher", "ray", "--address", "auto"]
    assert entrypoint[6:-2] == words
    params = compare.make_context("compare", entrypoint[2:], obj=Session()).params
    assert (params["modes"], params["num_workers"]) == ("ssgd,localsgd", "2,4")
    assert params["launcher"] == "ray"
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 4, "as many as the largest of its runs has workers"
    assert job["metadata"]["name"] == "compare"


def test_volumes_names_and_sizes_are_those_of_every_ray_job(tmp_path: Path, capsys: CAPTURED) -> None:
    flags = ("--name", "experiment", "--volume", "out:/out", "--nodes", "2", "--worker-cpus", "4")
    (job,) = render(tmp_path, capsys, "--num-workers", "4", flags=flags)["manifests"]
    assert job["metadata"]["name"] == "experiment"
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 2
    assert group["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/out"


REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mode": (("--modes", "sgd"), ()),
    "launcher": (("--launcher", "local"), ()),
    "file": (("--config", "train.yaml"), ()),
    "script": (("train.py",), ()),
    "settings before": ((), ("--steps", "5")),
    "room": (("--num-workers", "4", "--threads-per-worker", "8"), ()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_there_is_refused(
    name: str, tmp_path: Path, capsys: CAPTURED, wording: Wording
) -> None:
    words, flags = REFUSED[name]
    problems = render(tmp_path, capsys, *words, flags=flags, code=3)
    wording("\n".join(f"{one['where']}: {one['what']}\n{one['hint']}" for one in problems))


def test_a_file_of_that_name_is_a_script(tmp_path: Path, capsys: CAPTURED) -> None:
    (tmp_path / "compare").write_text("print(1)\n")
    assert render(tmp_path, capsys)["command"] == ["python", "/config/compare"]

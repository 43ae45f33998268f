"""`paceline job render -- SCRIPT`: what travels, what is refused, and that a pod's command really runs."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.processes.command import CommandResult
from tests.fixtures.processes.warm_helpers import THREADS, warm_helpers
from tests.fixtures.runs.torchrun import TORCHRUN, free_port, python

from paceline.cli.main import run
from paceline.training.session import Session

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "logging_script.py"
CAPTURED = pytest.CaptureFixture[str]
Rendered = dict[str, Any]  # Any: JSON of manifests


def render(folder: Path, capsys: CAPTURED, *args: str, code: int = 0) -> Rendered:
    command = ["job", "render", "--json", "--image", "example.com/mine:1", *args]
    assert run(command, Session(folder=folder)) == code
    out = capsys.readouterr().out
    answer: dict[str, Rendered] = json.loads(out)
    return answer["data"] if code == 0 else answer["error"]


def written_script(folder: Path) -> str:
    """A script that needs a module beside it, which needs another one."""
    (folder / "mine.py").write_text("import first\n" + SCRIPT.read_text())
    (folder / "first.py").write_text("from second import NAME\n")
    (folder / "second.py").write_text("NAME = 'second'\n")
    (folder / "unused.py").write_text("raise AssertionError\n")
    return "mine.py"


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob", "job", "hyperpod", "rayjob"])
def test_a_local_script_travels_with_its_modules_and_its_hash(
    target: str, tmp_path: Path, capsys: CAPTURED
) -> None:
    script = written_script(tmp_path)
    done = render(tmp_path, capsys, "--target", target, "--mode", "ssgd", "--", script, "3")
    carried = next(obj for obj in done["manifests"] if obj["kind"] == "ConfigMap")
    assert set(carried["data"]) == {"mine.py", "first.py", "second.py"}
    digest = hashlib.sha256((tmp_path / script).read_bytes()).hexdigest()
    assert carried["metadata"]["annotations"] == {"paceline.dev/script-sha256": digest}
    assert done["command"][-2:] == ["/config/mine.py", "3"]
    (tmp_path / "job.yaml").write_text(done["yaml"])
    assert run(["job", "validate", "--profile", "strict", "job.yaml"], Session(folder=tmp_path)) == 0


def test_a_script_of_the_image_is_named_by_its_absolute_path(tmp_path: Path, capsys: CAPTURED) -> None:
    done = render(tmp_path, capsys, "--target", "job", "--", "/app/train.py", "--lr", "0.1")
    assert done["command"][-3:] == ["/app/train.py", "--lr", "0.1"]
    assert all(obj["kind"] != "ConfigMap" for obj in done["manifests"])


def test_an_elastic_job_of_a_script_runs_it_on_agents(tmp_path: Path, capsys: CAPTURED) -> None:
    flags = ("--target", "pytorchjob", "--elastic", "--nodes", "2:4", "--coordinator", "paceline-coordinator")
    done = render(tmp_path, capsys, *flags, "--mode", "ssgd", "--", written_script(tmp_path))
    assert done["command"][:2] == ["paceline", "run"]
    assert {"agents", "--min-workers", "--num-workers"} <= set(done["command"])
    (tmp_path / "job.yaml").write_text(done["yaml"])
    assert run(["job", "validate", "job.yaml"], Session(folder=tmp_path)) == 0
    assert done["yaml"].count("mountPath: /config") == 2  # hosts, and the command


@pytest.mark.parametrize(
    ("flags", "content"),
    [
        ((), None),  # there is no such file
        ((), "#" * (600 << 10)),
        ((), "import package"),
        ((), "for\n"),
        (("--lr", "0.1"), "pass"),
        (("--mode", "ddp"), "pass"),
    ],
    ids=["missing", "large", "package", "syntax", "setting", "mode"],
)
def test_what_cannot_travel_or_run_is_refused(
    flags: Sequence[str], content: str | None, tmp_path: Path, capsys: CAPTURED
) -> None:
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").touch()
    error = render(tmp_path, capsys, "--target", "job", *flags, "--", "mine.py", code=3)
    assert len(error["problems"]) == 1


def test_the_command_of_a_pod_trains_the_script_that_travelled(tmp_path: Path, capsys: CAPTURED) -> None:
    """With the file where kubelet puts it: a link to a folder of this pod."""
    script = written_script(tmp_path)
    flags = ("--target", "pytorchjob", "--procs-per-node", "2", "--mode", "ssgd")
    done = render(tmp_path, capsys, *flags, "--", script, "2")
    carried, job = done["manifests"]
    mounted = tmp_path / "pod" / "config"
    (mounted / "..data").mkdir(parents=True)
    for name, text in carried["data"].items():
        (mounted / "..data" / name).write_text(text)
        (mounted / name).symlink_to(Path("..data") / name)
    result = run_pod(job, tmp_path / "pod")
    assert result.code == 0, result.err
    (ended,) = (tmp_path / "pod" / "results").glob("*/result.json")
    record = json.loads(ended.read_text())
    assert (record["num_workers"], record["mode"], record["samples"]) == (2, "ssgd", 256)
    assert record["metrics"]["is_launched"] == 0.0
    plan = json.loads((ended.parent / "plan.json").read_text())
    assert plan["task_options"]["file"] == str(mounted / script)


def run_pod(job: Rendered, folder: Path) -> CommandResult:
    """The container's command with the operator's variables filled in, and its mounts in this folder."""
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    known = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = []
    for word in container["args"]:
        for name, value in known.items():
            word = word.replace(f"$({name})", value)
        is_mounted = word.startswith(tuple(mount["mountPath"] for mount in container["volumeMounts"]))
        words.append(f"{folder}{word}" if is_mounted else word)
    warm = warm_helpers().python
    variables = {**THREADS, "PYTHON_EXEC": warm}
    return python(*TORCHRUN, *words, folder=folder, variables=variables, program=warm)

"""Jobs whose image has nothing of Paceline: a plain script, a module, a raw command, for every kind."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.runs.torchrun import free_port
from tests.fixtures.wording import Wording
from tests.own_scripts.test_script_jobs import CAPTURED, Rendered, render

from paceline.cli.main import run
from paceline.core import environ
from paceline.k8s.kinds import JOB_KINDS
from paceline.training.session import Session

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "plain_script.py"
TORCHRUN = Path(sys.executable).parent / "torchrun"
WORDS = ("/fsdp/train.py", "--model_type=llama_v3", "--max_steps=100")
KINDS = ["pytorchjob", "trainjob", "job", "hyperpod", "rayjob", "raycluster"]
WITH_TORCHRUN = KINDS[:4]


def container_of(done: Rendered) -> Rendered:
    """What a pod of the job starts."""
    names = {kind.name for kind in JOB_KINDS}
    job = next(item for item in done["manifests"] if item["kind"] in names)
    found: list[Rendered] = []

    def search(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(one for one in value.get("containers", []) if "command" in one)
            value = list(value.values())
        for inner in value if isinstance(value, list) else []:
            search(inner)

    search(job)
    trainer: Rendered = job["spec"].get("trainer", {})
    return trainer or found[0]


@pytest.mark.parametrize("target", KINDS)
def test_a_script_of_any_image_is_started_without_paceline(
    target: str, tmp_path: Path, capsys: CAPTURED
) -> None:
    done = render(tmp_path, capsys, "--target", target, "--nodes", "2", "--", *WORDS)
    if target in WITH_TORCHRUN:
        container = container_of(done)
        program = "hyperpodrun" if target == "hyperpod" else "/opt/conda/bin/torchrun"
        assert container["command"] == [program]
        assert tuple(container["args"][-3:]) == WORDS
        assert "/results" not in done["yaml"], "a run folder has no use here"
    else:
        assert tuple(done["command"]) == ("python", *WORDS)
    started = json.dumps([done["command"], container_of(done) if target in WITH_TORCHRUN else {}])
    assert "paceline" not in started
    (tmp_path / "job.yaml").write_text(done["yaml"])
    assert run(["job", "validate", "--profile", "strict", "job.yaml"], Session(folder=tmp_path)) == 0


@pytest.mark.parametrize("target", KINDS)
def test_a_raw_command_is_executed_as_it_is(target: str, tmp_path: Path, capsys: CAPTURED) -> None:
    words = ["accelerate", "launch", "--num_processes=2", "/app/train.py"]
    done = render(tmp_path, capsys, "--target", target, "--nodes", "2", "--command", "--", *words)
    assert done["command"] == words
    if target in WITH_TORCHRUN:
        container = container_of(done)
        assert [*container["command"], *container["args"]] == words
    (tmp_path / "job.yaml").write_text(done["yaml"])
    assert run(["job", "validate", "--profile", "strict", "job.yaml"], Session(folder=tmp_path)) == 0


def test_the_pods_of_a_job_tell_a_raw_command_who_they_are(tmp_path: Path, capsys: CAPTURED) -> None:
    flags = ("--target", "job", "--nodes", "3", "--procs-per-node", "2", "--name", "demo")
    container = container_of(render(tmp_path, capsys, *flags, "--command", "--", "python", "/app/train.py"))
    plain = {item["name"]: item.get("value") for item in container["env"]}
    assert (plain["WORLD_SIZE"], plain["MASTER_ADDR"], plain["PET_NNODES"]) == ("6", "demo-0.demo", "3")
    rank = next(item for item in container["env"] if item["name"] == "RANK")
    assert "job-completion-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize("target", ["pytorchjob", "rayjob"])
def test_a_module_is_started_by_its_name(target: str, tmp_path: Path, capsys: CAPTURED) -> None:
    done = render(tmp_path, capsys, "--target", target, "--", "-m", "team.train", "--lr", "1")
    assert done["command"][-4:] == ["-m", "team.train", "--lr", "1"]
    assert "instance: team-train" in done["yaml"]


def test_a_local_plain_script_travels(tmp_path: Path, capsys: CAPTURED) -> None:
    (tmp_path / "mine.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("")
    done = render(tmp_path, capsys, "--target", "job", "--", "mine.py", "3")
    assert set(done["manifests"][0]["data"]) == {"mine.py", "beside.py"}
    assert done["command"] == ["/config/mine.py", "3"]


def test_settings_or_an_import_of_paceline_choose_paceline_and_a_flag_overrides(
    tmp_path: Path, capsys: CAPTURED
) -> None:
    (tmp_path / "mine.py").write_text("import paceline\n")
    (tmp_path / "plain.py").write_text("import torch\n")

    def has_paceline(*words: str) -> bool:
        return "paceline.worker" in render(tmp_path, capsys, "--target", "job", *words)["command"]

    assert has_paceline("--", "mine.py")
    assert not has_paceline("--no-paceline", "--", "mine.py")
    assert not has_paceline("--", "plain.py")
    assert has_paceline("--mode", "ssgd", "--", "plain.py")
    assert has_paceline("--paceline", "--", "/app/train.py")
    assert not has_paceline("--name", "demo", "--", "/app/train.py")


REFUSED = {
    "setting": ("--no-paceline", "--mode", "ssgd", "--", "/app/train.py"),
    "setting-of-command": ("--steps", "5", "--command", "--", "python", "/app/train.py"),
    "nothing": ("--command",),
    "torchrun": ("--torchrun", "torchrun", "--command", "--", "python", "/app/train.py"),
    "retries": ("--retries", "2", "--", "/app/train.py"),
    "master-c10d": ("--rdzv", "c10d", "--master-addr", "a", "--", "/app/train.py"),
    "endpoint-static": ("--rdzv-endpoint", "a:1", "--", "/app/train.py"),
    "range": ("--nodes", "1:2", "--", "/app/train.py"),
    "host-network": ("--host-network", "--", "/app/train.py"),
    "toleration": ("--toleration", "a=b:Never", "--", "/app/train.py"),
    "label": ("--label", "app.kubernetes.io/instance=x", "--", "/app/train.py"),
    "env-from": ("--env-from", "settings", "--", "/app/train.py"),
    "storage": ("--ephemeral-storage", "much", "--", "/app/train.py"),
    "compare": ("--", "compare", "--modes", "ssgd"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name: str, tmp_path: Path, capsys: CAPTURED, wording: Wording) -> None:
    error = render(tmp_path, capsys, "--target", "job", *REFUSED[name], code=3)
    wording("\n".join(f"{one['where']}: {one['what']}\n{one['hint']}" for one in error["problems"]))


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize(
    "words",
    [
        ("--", "/app/train.py", "--hf_token=hf_abcdefghijklmnopqrstuvwxyz01234567"),
        ("--command", "--", "env", "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "x"),
        ("--annotation", "token=hf_abcdefghijklmnopqrstuvwxyz01234567", "--", "/app/train.py"),
        ("--explain-command", "--", "/app/train.py", "--api_key=hf_abcdefghijklmnopqrstuvwxyz01234567"),
    ],
)
def test_a_secret_in_the_words_is_refused_and_not_repeated(
    target: str, words: tuple[str, ...], tmp_path: Path, capsys: CAPTURED
) -> None:
    command = ["job", "render", "--image", "x:1", "--target", target, *words]
    assert run(command, Session(folder=tmp_path)) == 3
    said = capsys.readouterr()
    assert "abcdefghijkl" not in said.out + said.err
    assert "wJalrXUtn" not in said.out + said.err


@pytest.mark.parametrize("target", KINDS)
def test_fields_of_pods_are_those_of_every_kind(target: str, tmp_path: Path, capsys: CAPTURED) -> None:
    flags = ["--toleration", "dedicated=ml:NoSchedule", "--label", "team=vision", "--queue", "gpus"]
    flags += ["--annotation", "owner=a person", "--env-from", "secret/keys", "--env-from", "configmap/all"]
    flags += ["--ephemeral-storage", "50Gi", "--priority-class", "high", "--runtime-class", "nvidia"]
    flags += ["--scheduler", "volcano", "--host-network", "--profile", "compat", "--env", "A=b"]
    flags += ["--node-selector", "disk=ssd", "--instance-type", "ml.g5.8xlarge", "--running-s", "none"]
    done = render(tmp_path, capsys, "--target", target, "--nodes", "2", *flags, "--", *WORDS)
    text = done["yaml"]
    for part in ("priorityClassName: high", "runtimeClassName: nvidia", "schedulerName: volcano"):
        assert part in text
    for part in ("hostNetwork: true", "ephemeral-storage: 50Gi", "team: vision", "owner: a person"):
        assert part in text
    for part in ("secretRef:", "configMapRef:", "key: dedicated", "disk: ssd", "queue-name: gpus"):
        assert part in text
    for part in ("instance-type: ml.g5.8xlarge", "name: A"):
        assert part in text
    assert "activeDeadlineSeconds" not in text
    (tmp_path / "job.yaml").write_text(text)
    assert run(["job", "validate", "job.yaml"], Session(folder=tmp_path)) == 0


def test_the_deadline_is_announced_until_it_is_chosen(
    tmp_path: Path, capsys: CAPTURED, wording: Wording
) -> None:
    def said(*flags: str) -> str:
        words = ["job", "render", "--image", "x:1", "--target", "rayjob", *flags, "--", "/x.py"]
        assert run(words, Session(folder=tmp_path)) == 0
        return capsys.readouterr().err

    wording(said())
    assert "24 hours" not in said("--running-s", "none")
    assert "24 hours" not in said("--running-s", "3600")


@pytest.mark.parametrize("target", KINDS)
def test_the_command_is_explained_flag_by_flag(
    target: str, tmp_path: Path, capsys: CAPTURED, wording: Wording
) -> None:
    words = ["job", "render", "-q", "--image", "x:1", "--target", target, "--nnodes", "2"]
    words += [] if "ray" in target else ["--nproc-per-node", "8", "--max-restarts", "1", "--worker-cpus", "8"]
    assert run([*words, "--explain-command", "--", *WORDS], Session(folder=tmp_path)) == 0
    wording(capsys.readouterr().out)


def test_c10d_is_explained_with_its_own_endpoint(tmp_path: Path, capsys: CAPTURED) -> None:
    flags = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "meet.example.com:1234", "--rdzv-id", "mine")
    for target in ("pytorchjob", "job", "trainjob"):
        words = ("--target", target, "--nodes", "2", *flags, "--explain-command", "--", *WORDS)
        on_node_0 = render(tmp_path, capsys, *words)["on_node_0"]
        assert {"--rdzv_backend=c10d", "--rdzv_endpoint=meet.example.com:1234"} <= set(on_node_0)
        assert "--rdzv_id=mine" in on_node_0
        assert not any(word.startswith("--master") for word in on_node_0 if target != "trainjob")


# The generated command lines, executed as processes of this machine.


def pod(words: list[str], variables: Mapping[str, str], folder: Path) -> "subprocess.Popen[str]":
    """A container of an image that has torch alone; the kubelet has expanded $(NAME)."""
    for name, value in variables.items():
        words = [word.replace(f"$({name})", value) for word in words]
    outside = {n: v for n, v in os.environ.items() if n not in environ.torchrun_variables()}
    outside |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ""}
    return subprocess.Popen(
        words, cwd=folder, env=outside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(pods: "list[subprocess.Popen[str]]", out: Path) -> list[dict[str, Any]]:
    """The facts that each rank has written."""
    with ExitStack() as stack:
        for one in pods:
            stack.enter_context(one)
            stack.callback(one.kill)
        ended = [(one.communicate(timeout=180)[0], one.returncode) for one in pods]
    assert [code for _, code in ended] == [0] * len(pods), ended
    return [json.loads(file.read_text()) for file in sorted(out.glob("rank-*.json"))]


def words_of(done: Rendered) -> list[str]:
    container = container_of(done)
    return [*container["command"], *container["args"]]


def test_one_pod_trains_a_plain_script_with_two_processes(tmp_path: Path, capsys: CAPTURED) -> None:
    port = str(free_port())
    flags: tuple[str, ...] = ("--target", "pytorchjob", "--name", "demo", "--nproc-per-node", "2")
    flags += ("--torchrun", str(TORCHRUN), "--master-addr", "127.0.0.1", "--master-port", port)
    flags += ("--rdzv-id", "mine", "--max-restarts", "3")
    script = (str(SCRIPT), "--model_type=llama_v3", f"--out={tmp_path}")
    done = render(tmp_path, capsys, *flags, "--", *script)
    facts = finish([pod(words_of(done), {"RANK": "0"}, tmp_path)], tmp_path)
    assert [(one["rank"], one["size"], one["local_rank"]) for one in facts] == [(0, 2, 0), (1, 2, 1)]
    assert {one["sum"] for one in facts} == {3.0}
    assert {one["model_type"] for one in facts} == {"llama_v3"}
    assert {(one["run_id"], one["max_restarts"]) for one in facts} == {("mine", 3)}
    assert not any(one["has_paceline"] for one in facts)
    explained = render(tmp_path, capsys, *flags, "--explain-command", "--", *script)["on_node_0"]
    filled = [word.replace("$(RANK)", "0") for word in words_of(done)]
    assert sorted(explained) == sorted(filled), "what is explained is what runs"


@pytest.mark.parametrize("rdzv", ["static", "c10d"])
def test_two_pods_of_a_job_meet_as_torchruns_flags_say(rdzv: str, tmp_path: Path, capsys: CAPTURED) -> None:
    port = str(free_port())
    flags = ["--target", "job", "--nodes", "2", "--torchrun", str(TORCHRUN), "--rdzv", rdzv]
    if rdzv == "c10d":
        flags += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
    else:
        flags += ["--master-addr", "127.0.0.1", "--master-port", port]
    done = render(tmp_path, capsys, *flags, "--", str(SCRIPT), "--model_type=x", f"--out={tmp_path}")
    pods = [pod(words_of(done), {"JOB_COMPLETION_INDEX": str(rank)}, tmp_path) for rank in (0, 1)]
    facts = finish(pods, tmp_path)
    assert [(one["size"], one["local_rank"], one["sum"]) for one in facts] == [(2, 0, 3.0)] * 2


def test_a_raw_command_runs_as_typed(tmp_path: Path, capsys: CAPTURED) -> None:
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "two words", "$HOME"]
    done = render(tmp_path, capsys, "--target", "rayjob", "--name", "demo", "--command", "--", *words)
    entrypoint = done["manifests"][-1]["spec"]["entrypoint"]
    assert shlex.split(entrypoint) == words
    result = subprocess.run(["sh", "-c", entrypoint], capture_output=True, text=True, check=True)
    assert result.stdout == "['two words', '$HOME']\n"

"""The scripts of the skills run from an empty folder, after an installation, and pass exit codes on."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.skills.reader import BUNDLED, variables_with_paceline

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

SCRIPTS = sorted(str(path.relative_to(BUNDLED / "skills")) for path in BUNDLED.rglob("*.sh"))
JOB = ["--target", "job", "--name", "demo", "--image", "example.com/x:1", "--nodes", "2"]


@pytest.fixture
def skills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of installed skills."""
    (tmp_path / "installed").mkdir()
    words = ["skills", "install", "--for", "claude-code", "--scope", str(tmp_path / "installed")]
    assert run(words, Session(folder=tmp_path)) == ExitCode.OK
    capsys.readouterr()
    return tmp_path / "installed" / ".claude" / "skills"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def call(script: Path, *words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    variables = variables_with_paceline(folder.parent / "shell")
    variables.pop("KUBECONFIG", None)
    return subprocess.run(
        [str(script), *words], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_the_checker_reports_a_conflict_and_nothing_is_left_behind(skills: Path, empty: Path) -> None:
    (empty / "Dockerfile").write_text(
        "FROM python:3.11-slim\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"
    )
    (empty / "requirements.txt").write_text("torch==2.6.0\ntorchvision==0.20.1\n")
    result = call(skills / "image-builder/scripts/check-image.sh", folder=empty)
    assert result.returncode == ExitCode.GATE_FAILED
    assert "torch-trio" in {finding["id"] for finding in json.loads(result.stdout)["data"]["findings"]}
    assert sorted(path.name for path in empty.iterdir()) == ["Dockerfile", "requirements.txt"]


def test_a_job_is_rendered_and_validated(skills: Path, empty: Path) -> None:
    script = skills / "job-deployer/scripts/render-job.sh"
    result = call(script, "job.yaml", *JOB, "--", "/fsdp/train.py", "--max_steps=100", folder=empty)
    assert result.returncode == 0, result.stderr
    assert "Job/demo" in json.loads(result.stdout)["data"]["objects"]
    assert "/fsdp/train.py" in (empty / "job.yaml").read_text()
    assert [path.name for path in empty.iterdir()] == ["job.yaml"]


def test_a_job_with_a_wrong_option_leaves_no_file(skills: Path, empty: Path) -> None:
    script = skills / "job-deployer/scripts/render-job.sh"
    result = call(script, "job.yaml", *JOB, "--mode", "nonsense", folder=empty)
    assert result.returncode == ExitCode.BAD_CONFIG
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    "script", ["cluster-manager/scripts/check-cluster.sh", "cluster-manager/scripts/plan-fixes.sh"]
)
def test_without_a_cluster_the_error_is_passed_on(script: str, skills: Path, empty: Path) -> None:
    result = call(skills / script, folder=empty)
    assert result.returncode == ExitCode.NOT_READY
    assert json.loads(result.stdout)["error"]["problems"][0]["hint"]


def test_a_destination_is_of_ecr_unless_it_names_a_registry(skills: Path, empty: Path) -> None:
    calls = empty / "calls"
    tools = empty.parent / "shell" / "tools"
    variables = variables_with_paceline(empty.parent / "shell")
    (tools / "paceline").write_text(f'#!/bin/sh\necho "$*" >> {calls}\n')
    for repository in ("fsdp", "team/fsdp", "registry.example.com/fsdp", "localhost:5000/fsdp"):
        script = skills / "registry-pusher/scripts/push-image.sh"
        subprocess.run([script, "x:1", repository, "--tags", "auto"], env=variables, cwd=empty, check=True)
    destinations = [line.split("--to ")[1].split()[0] for line in calls.read_text().splitlines()]
    assert destinations == ["ecr:fsdp", "ecr:team/fsdp", "registry.example.com/fsdp", "localhost:5000/fsdp"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_paceline_is_named_with_what_to_install(script: str, skills: Path, empty: Path) -> None:
    tools = empty.parent / "bare"
    tools.mkdir()
    for name in ("bash", "env"):
        (tools / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    result = subprocess.run(
        [skills / script, "a", "b"],
        cwd=empty,
        env={"PATH": str(tools), "HOME": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ExitCode.NOT_READY
    assert "paceline[" in result.stderr
    assert list(empty.iterdir()) == []

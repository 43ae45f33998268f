"""The buildspec on a real engine: podman builds, and MiniStack's ECR receives the push."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from infra.run_buildspec import Build, run
from tests.fixtures.aws.emulator import Cloud
from tests.fixtures.aws.ministack import ministack
from tests.fixtures.processes.command import ROOT

engine = pytest.importorskip("tests.fixtures.containers.engine", reason="there is no engine for tests here")
SPEC = yaml.safe_load((ROOT / "infra" / "buildspec.yml").read_text())
DOCKERFILE = """FROM python:3.11-slim-bookworm
COPY requirements.txt .
RUN python -m pip install --no-cache-dir -r requirements.txt
{more}
USER 1000
"""
# Can be built, but not be used: only a look into the image finds it.
_WRITES = 'import pathlib, requests; pathlib.Path(requests.__file__).write_text("raise ImportError")'
BREAKS = f"RUN python -c '{_WRITES}'"


def build(folder: Path, cloud: Cloud, variables: dict[str, str], *, name: str, more: str) -> Build:
    source = folder / name
    source.mkdir()
    (source / "Dockerfile").write_text(DOCKERFILE.format(more=more))
    (source / "requirements.txt").write_text("requests==2.32.3\n")
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    paceline = tools / "paceline"
    paceline.write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline "$@"\n')
    paceline.chmod(0o755)
    project = {
        "IMAGE_REPOSITORY": "ecr:paceline-images",
        "IMAGE_TAGS": "latest",
        "TEST_LEVEL": "quick",
        "PUSH_OPTIONS": f"--endpoint-url {cloud.url}",
        "CODEBUILD_BUILD_NUMBER": "17",
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    # paceline is here already, and there may be no network to install it from.
    return run(SPEC, source, {**cloud.variables, **variables, **project}, skipping=["install"])


@pytest.mark.soak
def test_a_good_image_arrives_and_a_bad_one_does_not(tmp_path: Path) -> None:
    if engine.WHY_NOT is not None:
        pytest.skip(engine.WHY_NOT)
    with engine.engine_in(tmp_path) as here, ministack(tmp_path) as cloud:
        ecr = cloud.client("ecr")
        ecr.create_repository(repositoryName="paceline-images")

        bad = build(tmp_path, cloud, here.variables, name="bad", more=BREAKS)
        assert bad.ran == ["pre_build", "build", "post_build"]
        (command,) = [phase.failed for phase in bad.phases if phase.name == "build"]
        assert command is not None
        assert " image test " in command  # it was built: the test is what failed
        assert ecr.describe_images(repositoryName="paceline-images")["imageDetails"] == []

        good = build(tmp_path, cloud, here.variables, name="good", more="")
        assert good.succeeds
        (image,) = ecr.describe_images(repositoryName="paceline-images")["imageDetails"]
        assert set(image["imageTags"]) == {"build-17", "latest"}
        reports = tmp_path / "good" / "reports"
        assert json.loads((reports / "push" / "push.json").read_text())["digest"] == image["imageDigest"]
        assert (reports / "test" / "junit.xml").exists()

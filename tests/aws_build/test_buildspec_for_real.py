"""Does the buildspec do on a real engine what it says? podman builds and runs, MiniStack's ECR takes the push."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from infra.run_buildspec import Build, run
from tests.fixtures.command import ROOT
from tests.fixtures.emulator import Cloud
from tests.fixtures.ministack import ministack

engine = pytest.importorskip("tests.fixtures.engine", reason="there is no engine for tests here")
SPEC = yaml.safe_load((ROOT / "infra" / "buildspec.yml").read_text())
DOCKERFILE = """FROM python:3.11-slim-bookworm
COPY requirements.txt .
RUN python -m pip install --no-cache-dir -r requirements.txt
USER 1000
"""


def build(folder: Path, cloud: Cloud, variables: dict[str, str], requirement: str) -> Build:
    source = folder / requirement.replace("=", "-")
    source.mkdir()
    (source / "Dockerfile").write_text(DOCKERFILE)
    (source / "requirements.txt").write_text(f"{requirement}\n")
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

        bad = build(tmp_path, cloud, here.variables, "no-such-package==1.0")
        assert bad.ran == ["pre_build", "build", "post_build"]
        assert not bad.succeeds
        assert ecr.describe_images(repositoryName="paceline-images")["imageDetails"] == []

        good = build(tmp_path, cloud, here.variables, "requests==2.32.3")
        assert good.succeeds
        (image,) = ecr.describe_images(repositoryName="paceline-images")["imageDetails"]
        assert set(image["imageTags"]) == {"build-17", "latest"}
        reports = tmp_path / "requests--2.32.3" / "reports"
        assert json.loads((reports / "push" / "push.json").read_text())["digest"] == image["imageDigest"]
        assert (reports / "test" / "junit.xml").exists()

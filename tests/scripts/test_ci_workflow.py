"""The workflow of continuous integration runs `make test` under every Python that the package supports."""

import re
import tomllib

import yaml
from tests.fixtures.processes.command import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_every_supported_python_runs_all_tests() -> None:
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["test"]
    pythons = job["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == f">={pythons[0]}"
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[-1].startswith("make test PYTHON=python")
    assert job["strategy"]["fail-fast"] is False


def test_the_workflow_names_no_registry_and_no_secret_and_may_only_read() -> None:
    text = WORKFLOW.read_text()
    assert not re.search(r"https?://|\.(io|com|org|dev)\b|index-url|secrets\.", text)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}

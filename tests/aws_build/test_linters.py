"""External linters accept infra/, except for documented findings with a reason."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.aws_build.template import PARAMETERS, TEMPLATE
from tests.fixtures.processes.command import ROOT
from tests.fixtures.processes.tools import tool

INFRA = ROOT / "infra"
BASELINE = yaml.safe_load((INFRA / "checkov-baseline.yaml").read_text())


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is missing: apt-get install shellcheck"
)
def test_shellcheck_reports_nothing() -> None:
    files = sorted(INFRA.rglob("*.sh"))
    assert len(files) == 3
    result = subprocess.run(
        ["shellcheck", "-x", *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_every_script_stops_at_the_first_failure() -> None:
    for file in INFRA.rglob("*.sh"):
        assert "\nset -euo pipefail\n" in file.read_text(), file


def test_cfn_lint_reports_nothing() -> None:
    result = subprocess.run(
        [tool("cfn-lint"), "--include-checks", "I", "--", TEMPLATE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_checkov_finds_what_is_written_down_and_nothing_else() -> None:
    # --skip-download: or it asks its makers' server. The rest of the environment is not its business.
    command: list[str | Path] = [
        tool("checkov"),
        "--skip-download",
        "--quiet",
        "--compact",
        "--output",
        "json",
    ]
    command += ["--framework", "cloudformation", "terraform", "--directory", str(INFRA)]
    result = subprocess.run(
        command, env={**os.environ, "LOG_LEVEL": "ERROR"}, capture_output=True, text=True, check=False
    )
    answers = json.loads(result.stdout)
    assert {answer["check_type"] for answer in answers} == {"cloudformation", "terraform"}
    assert all(answer["summary"]["passed"] > 25 for answer in answers)
    assert not any(answer["summary"]["parsing_errors"] for answer in answers)
    results = {each["check_id"] for answer in answers for each in answer["results"]["failed_checks"]}
    assert results == BASELINE.keys()


def test_whatever_checkov_may_find_has_a_reason() -> None:
    for row in BASELINE.values():
        assert row.keys() == {"what", "why"}
        assert len(row["why"]) > 30


def test_no_credential_is_written_anywhere() -> None:
    words = ("AKIA", "aws_secret_access_key", "aws_session_token", "ghp_", "github_pat_", "BEGIN PRIVATE KEY")
    for file in INFRA.rglob("*"):
        if file.is_file() and ".terraform" not in file.parts and "__pycache__" not in file.parts:
            text = file.read_text()
            assert not [word for word in words if word in text], file
    assert "@" not in json.loads(PARAMETERS.read_text())[1]["ParameterValue"]

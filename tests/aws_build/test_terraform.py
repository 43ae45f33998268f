"""The Terraform module creates, keeps and destroys what the template describes; applied to moto."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.aws_build.choices import OTHER, SOURCE, as_variables
from tests.aws_build.read_back import read_back
from tests.aws_build.template import load, parameters, says
from tests.aws_build.test_stack import NOTHING
from tests.fixtures.aws.emulator import Cloud, moto
from tests.fixtures.aws.terraform import Terraform, terraform
from tests.fixtures.processes.command import ROOT
from tests.fixtures.processes.tools import tool

MODULE = ROOT / "infra" / "terraform"
SERVICES = ("cloudwatchlogs", "codebuild", "ecr", "events", "iam", "s3", "sns", "sts")


def applying(folder: Path, cloud: Cloud, choices: dict[str, str]) -> Terraform:
    """A root module with the module in it, and a provider that asks the emulator and gives up soon."""
    endpoints = "\n".join(f'    {service} = "{cloud.url}"' for service in SERVICES)
    chosen = "\n".join(f"  {name} = {json.dumps(value)}" for name, value in as_variables(choices).items())
    (folder / "main.tf").write_text(f"""
provider "aws" {{
  region = "{cloud.region}"
  max_retries = 2
  s3_use_path_style = true
  skip_credentials_validation = true
  skip_metadata_api_check = true
  skip_region_validation = true
  endpoints {{
{endpoints}
  }}
}}
module "images" {{
  source = "{MODULE}"
{chosen}
}}
output "images" {{
  value = module.images
}}
""")
    variables = {name: value for name, value in cloud.variables.items() if name != "AWS_ENDPOINT_URL"}
    # The AWS CLI makes the webhook of pull requests.
    path = f"{tool('aws').parent}{os.pathsep}{os.environ['PATH']}"
    return terraform(folder, {**variables, "PATH": path, "AWS_ENDPOINT_URL_CODEBUILD": cloud.url})


@pytest.mark.soak
@pytest.mark.timeout(1200)  # three programs of half a gigabyte, one after another
def test_it_is_applied_stays_as_it_is_and_is_destroyed(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the module is NOT tested: pip install 'moto[server]'")
    _round(tmp_path, dict(OTHER))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_by_itself_it_makes_what_the_parameters_file_makes(tmp_path: Path) -> None:
    """Also the rule for old versions, for which the provider waits a minute."""
    _round(tmp_path, parameters(SourceUrl=SOURCE))


def _round(tmp_path: Path, choices: dict[str, str]) -> None:
    with moto(tmp_path) as cloud:
        tool = applying(tmp_path, cloud, choices)
        for words in (["init", "-input=false"], ["apply", "-input=false", "-auto-approve"]):
            result = tool.run(*words)
            assert result.returncode == 0, result.stdout + result.stderr
        assert read_back(cloud) == says(choices)
        outputs = json.loads(tool.run("output", "-json").stdout)["images"]["value"]
        assert len(outputs) == 7
        assert outputs["project"] == choices["Name"]

        plan = tool.run("plan", "-input=false", "-detailed-exitcode")
        assert plan.returncode == 0, plan.stdout + plan.stderr  # 2 would be: something differs

        # It was just looked at: once is enough.
        result = tool.run("destroy", "-input=false", "-auto-approve", "-refresh=false")
        assert result.returncode == 0, result.stdout + result.stderr
        assert read_back(cloud) == NOTHING


@pytest.mark.soak
def test_what_cannot_be_is_refused_with_all_reasons_at_once(tmp_path: Path) -> None:
    bad = {"Name": "Capital", "SourceUrl": "git@github.com:a/b", "LogDays": "31", "TimeoutMinutes": "4"}
    tool = applying(tmp_path, Cloud(1, "us-east-1"), bad)
    assert tool.run("init", "-input=false").returncode == 0
    result = tool.run("plan", "-input=false")
    assert result.returncode == 1
    text = " ".join(result.stderr.replace("│", " ").split())
    for words in ("name must be", "source_url must look", "log_days must be", "timeout_minutes must be"):
        assert words in text


def test_defaults_are_the_same_in_both() -> None:
    text = (MODULE / "variables.tf").read_text()
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.M | re.S)
    defaults = {
        name: match[1].strip('"')
        for name, block in blocks
        if (match := re.search(r"^  default += (.*)$", block, re.M))
    }
    reported = {name: str(row["Default"]) for name, row in load()["Parameters"].items() if "Default" in row}
    ours = as_variables(reported)
    assert {name: value for name, value in defaults.items() if name in ours} == ours
    assert defaults.keys() - ours.keys() == {
        "delete_data",
        "tags",
    }  # a stack has tags of its own, and a script to empty it
    file = {key: value for key, value in parameters().items() if key != "SourceUrl"}
    assert file == reported


def test_the_example_s_variables_are_those_of_the_module_with_its_defaults() -> None:
    text = (MODULE / "variables.tf").read_text()
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.M | re.S)
    example = (MODULE / "terraform.tfvars.example").read_text()
    given = dict(re.findall(r"^(\w+) = (.*)$", example, re.M))
    assert list(given) == [name for name, _ in blocks]
    for name, block in blocks:
        match = re.search(r"^  default += (.*)$", block, re.M)
        assert given[name] == (match[1] if match else '"https://github.com/OWNER/NAME.git"')


@pytest.mark.soak
def test_the_module_is_formatted_and_the_basic_example_is_valid(tmp_path: Path) -> None:
    shutil.copytree(
        MODULE, tmp_path / "terraform", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")
    )
    formatted = terraform(tmp_path / "terraform", {}).run("fmt", "-check", "-recursive", "-diff")
    assert (formatted.returncode, formatted.stdout) == (0, "")
    tool = terraform(tmp_path / "terraform" / "examples" / "basic", {})
    for words in (["init", "-input=false"], ["validate"]):
        result = tool.run(*words)
        assert result.returncode == 0, result.stdout + result.stderr


def test_every_variable_has_a_description_and_every_value_is_validated() -> None:
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', (MODULE / "variables.tf").read_text(), re.M | re.S)
    assert len(blocks) >= 14
    for name, block in blocks:
        assert "description" in block, name
        assert "type        = bool" in block or "validation {" in block, name
    outputs = re.findall(r'^output "(\w+)"', (MODULE / "outputs.tf").read_text(), re.M)
    assert len(outputs) == 7
    assert [name.replace("_", "") for name in outputs] == [name.lower() for name in load()["Outputs"]]

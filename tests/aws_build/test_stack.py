"""Does the template become a whole stack, with each attribute? Made on MiniStack, read back by boto3."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.aws_build.choices import SOURCE
from tests.aws_build.read_back import read_back
from tests.aws_build.template import load, parameters, says
from tests.fixtures.aws_cli import aws_cli
from tests.fixtures.ministack import ministack

SCRIPT = "cloudformation/stack.sh"
NOTHING: dict[str, Any] = {
    kind: {} for kind in ("buckets", "repositories", "log groups", "roles", "projects", "rules")
}


def as_ministack_keeps_it(made: dict[str, Any], *, by_template: bool) -> dict[str, Any]:
    """Without what MiniStack forgets: that is compared on moto (test_script.py, test_terraform.py)."""
    for project in made["projects"].values():
        project |= {"cache": {}, "logsConfig": {}, "queuedTimeoutInMinutes": None, "webhook": []}
    for bucket in made["buckets"].values() if by_template else ():
        bucket |= {"lifecycle": [], "tags": {}}
    for group in made["log groups"].values():
        group["tags"] = {key: value for key, value in group["tags"].items() if not key.startswith("aws:")}
    return made


def test_the_stack_is_made_whole_once_and_leaves_nothing(tmp_path: Path) -> None:
    chosen = parameters(SourceUrl=SOURCE, Webhook="true")
    file = tmp_path / "parameters.json"
    file.write_text(
        json.dumps([{"ParameterKey": key, "ParameterValue": value} for key, value in chosen.items()])
    )
    with ministack(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        for _ in range(2):  # the second changes nothing, and is no error
            done = cli.run(SCRIPT, "create", "--parameters", str(file), variables=cloud.variables)
            assert done.code == 0, done.err
            assert as_ministack_keeps_it(read_back(cloud), by_template=True) == as_ministack_keeps_it(
                says(chosen), by_template=True
            )
        outputs = {each["Output"]: each["Value"] for each in json.loads(done.out)}
        assert outputs.keys() == load()["Outputs"].keys()
        assert outputs["RepositoryUrl"].endswith(".dkr.ecr.us-east-1.amazonaws.com/paceline-images")
        resources = cloud.client("cloudformation").describe_stack_resources(StackName="paceline-images")
        states = {each["LogicalResourceId"]: each["ResourceStatus"] for each in resources["StackResources"]}
        assert states == dict.fromkeys(load()["Resources"], "CREATE_COMPLETE")

        done = cli.run(SCRIPT, "teardown", "--parameters", str(file), variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == NOTHING


def test_the_example_s_repository_is_not_built_by_mistake(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    aws = tmp_path / "bin" / "aws"
    aws.write_text("#!/bin/sh\necho arn:aws:sts::1:me\n")
    aws.chmod(0o755)
    from tests.fixtures.aws_cli import AwsCli

    done = AwsCli(aws.parent).run(SCRIPT, "create", variables={"AWS_DEFAULT_REGION": "us-east-1"})
    assert done.code == 1
    assert "still names https://github.com/OWNER/NAME.git" in done.err


@pytest.mark.parametrize("webhook", ["true", "false"])
@pytest.mark.parametrize("nightly", ["true", "false"])
def test_webhook_and_nightly_are_choices(webhook: str, nightly: str) -> None:
    made = says(parameters(SourceUrl=SOURCE, Webhook=webhook, Nightly=nightly))
    project = made["projects"]["paceline-images"]
    assert bool(project["webhook"]) == (webhook == "true")
    assert project["source"].get("reportBuildStatus", False) == (webhook == "true")
    assert list(made["rules"]) == (["paceline-images-nightly"] if nightly == "true" else [])
    assert len(made["roles"]) == (2 if nightly == "true" else 1)

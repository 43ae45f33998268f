"""The template becomes a whole stack with every attribute: created on MiniStack, read back by boto3."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.aws_build.choices import SOURCE
from tests.aws_build.read_back import read_back
from tests.aws_build.template import load, parameters, says
from tests.fixtures.aws.aws_cli import aws_cli, stand_in
from tests.fixtures.aws.ministack import ministack
from tests.fixtures.wording import Wording

SCRIPT = "cloudformation/stack.sh"
NOTHING: dict[str, Any] = {
    kind: {} for kind in ("buckets", "repositories", "log groups", "roles", "projects", "topics", "rules")
}


def as_ministack_keeps_it(made: dict[str, Any], *, by_template: bool) -> dict[str, Any]:
    """Without what MiniStack forgets: that is compared on moto (test_script.py, test_terraform.py)."""
    for project in made["projects"].values():
        project |= {"cache": {}, "logsConfig": {}, "queuedTimeoutInMinutes": None, "webhook": []}
        project["pull request policy"] = {}
    for bucket in made["buckets"].values() if by_template else ():
        bucket |= {"lifecycle": [], "tags": {}}
    for group in made["log groups"].values():
        group["tags"] = {key: value for key, value in group["tags"].items() if not key.startswith("aws:")}
    return made


def test_the_stack_is_made_whole_once_and_leaves_nothing(tmp_path: Path) -> None:
    chosen = parameters(SourceUrl=SOURCE, Webhook="true", PullRequests="true", AlertEmail="team@example.com")
    file = tmp_path / "parameters.json"
    file.write_text(
        json.dumps([{"ParameterKey": key, "ParameterValue": value} for key, value in chosen.items()])
    )
    with ministack(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        for _ in range(2):  # the second changes nothing, and is no error
            result = cli.run(SCRIPT, "create", "--parameters", str(file), variables=cloud.variables)
            assert result.code == 0, result.err
            assert as_ministack_keeps_it(read_back(cloud), by_template=True) == as_ministack_keeps_it(
                says(chosen), by_template=True
            )
        outputs = {each["Output"]: each["Value"] for each in json.loads(result.out)}
        assert outputs.keys() == load()["Outputs"].keys()
        assert outputs["RepositoryUrl"].endswith(".dkr.ecr.us-east-1.amazonaws.com/paceline-images")
        resources = cloud.client("cloudformation").describe_stack_resources(StackName="paceline-images")
        states = {each["LogicalResourceId"]: each["ResourceStatus"] for each in resources["StackResources"]}
        assert states == dict.fromkeys(load()["Resources"], "CREATE_COMPLETE")

        result = cli.run(SCRIPT, "teardown", "--parameters", str(file), variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == NOTHING


US = {"AWS_DEFAULT_REGION": "us-east-1"}
ME = "*get-caller-identity*) echo arn:aws:sts::123456789012:user/me ;;"


def test_the_example_s_repository_is_not_built_by_mistake(tmp_path: Path) -> None:
    cli, _ = stand_in(tmp_path, ME)
    result = cli.run(SCRIPT, "create", variables=US)
    assert result.code == 1
    assert "https://github.com/OWNER/NAME.git" in result.err


def _written(folder: Path, **chosen: str) -> str:
    file = folder / "parameters.json"
    rows = [{"ParameterKey": key, "ParameterValue": value} for key, value in chosen.items()]
    file.write_text(json.dumps(rows, indent=2).replace("\n", "\r\n\t"))
    return str(file)


def test_after_a_failed_attempt_the_stack_is_created_again(tmp_path: Path) -> None:
    cli, calls = stand_in(tmp_path, f"{ME}\n*StackStatus*) echo ROLLBACK_COMPLETE ;;")
    file = _written(tmp_path, Name="team-vision", SourceUrl=SOURCE)
    result = cli.run(SCRIPT, "create", "--parameters", file, variables=US)
    assert result.code == 0, result.err
    changes = [call.split()[1] for call in calls.read_text().splitlines() if "-stack " in call]
    assert changes == ["delete-stack", "create-stack"]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ("*describe-stacks*) echo 'Stack with id x does not exist' >&2; exit 254 ;;", 0),
        ("*ParameterKey*) echo another ;;", 1),
    ],
    ids=["gone", "another"],
)
def test_data_that_the_stack_did_not_make_is_not_deleted(
    answers: str, code: int, tmp_path: Path, wording: Wording
) -> None:
    cli, calls = stand_in(tmp_path, f"{ME}\n{answers}")
    file = _written(tmp_path, Name="team-vision", SourceUrl=SOURCE)
    result = cli.run(SCRIPT, "teardown", "--delete-data", "--parameters", file, variables=US)
    assert result.code == code
    wording(result.err)
    assert "delete" not in calls.read_text()


def test_a_name_that_cannot_be_read_is_not_taken_for_the_usual_one(tmp_path: Path) -> None:
    cli, calls = stand_in(tmp_path, ME)
    file = tmp_path / "parameters.json"
    file.write_text('[{"ParameterValue": "team-vision", "ParameterKey": "Name"}]')
    result = cli.run(SCRIPT, "teardown", "--delete-data", "--parameters", str(file), variables=US)
    assert result.code == 1
    assert "Name of" in result.err
    assert not calls.exists()


@pytest.mark.parametrize("webhook", ["true", "false"])
@pytest.mark.parametrize("nightly", ["true", "false"])
def test_webhook_and_nightly_are_choices(webhook: str, nightly: str) -> None:
    made = says(parameters(SourceUrl=SOURCE, Webhook=webhook, Nightly=nightly))
    project = made["projects"]["paceline-images"]
    assert bool(project["webhook"]) == (webhook == "true")
    assert project["source"].get("reportBuildStatus", False) == (webhook == "true")
    assert ("paceline-images-nightly" in made["rules"]) == (nightly == "true")
    assert len(made["roles"]) == (2 if nightly == "true" else 1)

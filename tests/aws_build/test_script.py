"""The script creates and deletes what the template describes, with the real AWS CLI on emulators."""

import json
import re
from pathlib import Path

import pytest
from tests.aws_build.choices import OTHER, SOURCE, as_flags
from tests.aws_build.read_back import read_back
from tests.aws_build.template import parameters, says
from tests.aws_build.test_stack import NOTHING, as_ministack_keeps_it
from tests.fixtures.aws.aws_cli import AwsCli, aws_cli, stand_in
from tests.fixtures.aws.emulator import moto
from tests.fixtures.aws.ministack import ministack
from tests.fixtures.wording import Wording

SCRIPT = "aws-cli/build-infra.sh"
THEIR_POLICY = json.dumps(
    {
        "rules": [
            {
                "rulePriority": 1,
                "selection": {
                    "tagStatus": "untagged",
                    "countType": "sinceImagePushed",
                    "countUnit": "days",
                    "countNumber": 90,
                },
                "action": {"type": "expire"},
            }
        ]
    }
)


@pytest.mark.soak  # the AWS CLI is started some eighty times
def test_every_choice_comes_out_as_cloudformation_has_it_and_goes_only_with_its_data(
    tmp_path: Path, wording: Wording
) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    from botocore.exceptions import ClientError

    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        result = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == says(OTHER)
        outputs = json.loads(result.out)
        assert outputs["webhook_url"].startswith("https://")
        assert len(outputs) == 7

        # Again, with other choices: nothing is made twice, and what was switched off is gone.
        otherwise = {
            **OTHER,
            "Webhook": "false",
            "Nightly": "false",
            "PullRequests": "false",
            "AlertEmail": "",
            "TimeoutMinutes": "45",
            "OldVersionDays": "5",
        }
        result = cli.run(SCRIPT, "create", *as_flags(otherwise), variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == says(otherwise)

        s3, report = cloud.client("s3"), {"Bucket": outputs["bucket"], "Key": "artifacts/report.json"}
        with wording.raises(ClientError):  # the emulator speaks no TLS, and the policy wants it
            s3.put_object(**report, Body=b"one")
        s3.delete_bucket_policy(Bucket=outputs["bucket"])
        for text in (b"one", b"two"):  # two versions of one object
            s3.put_object(**report, Body=text)
        name = ["--name", OTHER["Name"]]
        refused = cli.run(SCRIPT, "teardown", *name, variables=cloud.variables)
        assert refused.code == 1
        assert "add --delete-data" in refused.err
        assert len(s3.list_object_versions(Bucket=outputs["bucket"])["Versions"]) == 2

        result = cli.run(SCRIPT, "teardown", *name, "--delete-data", variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == NOTHING


def test_what_others_have_under_the_name_stays_and_a_half_made_role_goes(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    name = ["--name", OTHER["Name"]]
    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        ecr, iam = cloud.client("ecr"), cloud.client("iam")
        theirs = ecr.create_repository(repositoryName=OTHER["Name"])["repository"]
        ecr.put_lifecycle_policy(repositoryName=OTHER["Name"], lifecyclePolicyText=THEIR_POLICY)
        before = read_back(cloud)
        for words in (["create", *as_flags(OTHER)], ["teardown", *name, "--delete-data"]):
            refused = cli.run(SCRIPT, *words, variables=cloud.variables)
            assert refused.code == 1
            assert "repository team-vision " in refused.err
            assert read_back(cloud) == before

        # As an interrupted run leaves it: a role that has no policy yet.
        ecr.tag_resource(
            resourceArn=theirs["repositoryArn"], tags=[{"Key": "Project", "Value": OTHER["Name"]}]
        )
        iam.create_role(
            RoleName="team-vision-build-us-east-1",
            AssumeRolePolicyDocument='{"Version": "2012-10-17", "Statement": []}',
            Tags=[{"Key": "Project", "Value": OTHER["Name"]}],
        )
        result = cli.run(SCRIPT, "teardown", *name, variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == NOTHING


def test_a_caller_that_cannot_list_the_remaining_resources_deletes_nothing(tmp_path: Path) -> None:
    answers = """
      *get-caller-identity*) echo arn:aws:sts::123456789012:user/me ;;
      *list-object-versions*) echo "An error occurred (AccessDenied)" >&2; exit 254 ;;
      *list-images*) echo 0 ;;
      *tags*) echo team-vision ;;
    """
    cli, calls = stand_in(tmp_path, answers)
    result = cli.run(
        SCRIPT, "teardown", "--name", "team-vision", variables={"AWS_DEFAULT_REGION": "us-east-1"}
    )
    assert result.code == 1
    assert "AccessDenied" in result.err
    assert "s3api list-object-versions" in calls.read_text()
    assert "delete" not in calls.read_text()


def test_a_teardown_touches_only_the_roles_of_its_region(tmp_path: Path) -> None:
    answers = """
      *get-caller-identity*) echo arn:aws:sts::123456789012:user/me ;;
      *list-object-versions*|*list-images*) echo 0 ;;
      *head-bucket*|*describe-repositories*|*batch-get-projects*|*describe-log-groups*) ;;
      *tags*) echo team-vision ;;
      *get-role*|*describe-rule*) echo '{}' ;;
    """
    cli, calls = stand_in(tmp_path, answers)
    result = cli.run(
        SCRIPT, "teardown", "--name", "team-vision", variables={"AWS_DEFAULT_REGION": "eu-west-1"}
    )
    assert result.code == 0, result.err
    roles = re.findall(r"--role-name (\S+)", calls.read_text())
    assert set(roles) == {f"team-vision-{use}-eu-west-1" for use in ("build", "nightly", "pr")}
    assert "iam delete-role " in calls.read_text()


@pytest.mark.soak  # the AWS CLI is started more than a hundred times
def test_a_second_region_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        there = {**cloud.variables, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-1"}
        result = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=cloud.variables)
        assert result.code == 0, result.err
        first = read_back(cloud)["roles"]
        result = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=there)
        assert result.code == 0, result.err
        both = read_back(cloud)["roles"]
        assert len(both) == 2 * len(first)
        assert {name: both[name] for name in first} == first
        result = cli.run(SCRIPT, "teardown", "--name", OTHER["Name"], "--delete-data", variables=there)
        assert result.code == 0, result.err
        assert read_back(cloud)["roles"] == first


def test_a_token_in_an_address_is_not_repeated(tmp_path: Path) -> None:
    cli, _ = stand_in(tmp_path, "")
    result = cli.run(SCRIPT, "create", "--source-url", "https://me:planted@github.com/a/b.git", variables={})
    assert "https://***@github.com/a/b.git" in result.err
    assert "planted" not in result.err


@pytest.mark.soak
def test_a_second_run_changes_nothing_on_another_emulator(tmp_path: Path) -> None:
    with ministack(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        for _ in range(2):
            result = cli.run(SCRIPT, "create", "--source-url", SOURCE, variables=cloud.variables)
            assert result.code == 0, result.err
            reported = says(parameters(SourceUrl=SOURCE))
            assert read_back(cloud) == as_ministack_keeps_it(reported, by_template=False)
        result = cli.run(SCRIPT, "teardown", variables=cloud.variables)
        assert result.code == 0, result.err
        assert read_back(cloud) == NOTHING


@pytest.mark.parametrize(
    "flags",
    [
        ["--name", "Capital"],
        ["--source-url", "https://me:token@github.com/a/b.git"],
        ["--image-dir", "../elsewhere"],
        ["--timeout-minutes", "4"],
        ["--timeout-minutes", "1e2"],
        ["--log-days", "31"],
        ["--tag-mutability", "mutable"],
        ["--nightly-schedule", "every night"],
        ["--alert-email", 'me"@example.com'],
        ["--tag", 'a="b'],
        ["--keep-images"],
        ["--nonsense"],
    ],
)
def test_an_invalid_request_is_refused_before_aws_is_called(
    flags: list[str], tmp_path: Path, wording: Wording
) -> None:
    aws = tmp_path / "aws"
    aws.write_text("#!/bin/sh\necho asked >&2\nexit 9\n")
    aws.chmod(0o755)
    result = AwsCli(tmp_path).run(SCRIPT, "create", "--source-url", SOURCE, *flags, variables={})
    assert result.code == 1
    wording(result.err)
    assert result.err.startswith("error: ")
    assert "\nhint: " in result.err
    assert "asked" not in result.err

"""Does the script make what the template says, and take it away? With the real AWS CLI, on emulators."""

import json
import re
from pathlib import Path

import pytest
from tests.aws_build.choices import OTHER, SOURCE, as_flags
from tests.aws_build.read_back import read_back
from tests.aws_build.template import parameters, says
from tests.aws_build.test_stack import NOTHING, as_ministack_keeps_it
from tests.fixtures.aws_cli import AwsCli, aws_cli, stand_in
from tests.fixtures.emulator import moto
from tests.fixtures.ministack import ministack

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
def test_every_choice_comes_out_as_cloudformation_has_it_and_goes_only_with_its_data(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    from botocore.exceptions import ClientError

    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        done = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == says(OTHER)
        outputs = json.loads(done.out)
        assert outputs["webhook_url"].startswith("https://")
        assert len(outputs) == 7

        # Again, with other choices: nothing is made twice, and what was switched off is gone.
        otherwise = {
            **OTHER,
            "Webhook": "false",
            "Nightly": "false",
            "TimeoutMinutes": "45",
            "OldVersionDays": "5",
        }
        done = cli.run(SCRIPT, "create", *as_flags(otherwise), variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == says(otherwise)

        s3, report = cloud.client("s3"), {"Bucket": outputs["bucket"], "Key": "artifacts/report.json"}
        with pytest.raises(
            ClientError, match="Forbidden"
        ):  # the emulator speaks no TLS, and the policy wants it
            s3.put_object(**report, Body=b"one")
        s3.delete_bucket_policy(Bucket=outputs["bucket"])
        for text in (b"one", b"two"):  # two versions of one object
            s3.put_object(**report, Body=text)
        name = ["--name", OTHER["Name"]]
        refused = cli.run(SCRIPT, "teardown", *name, variables=cloud.variables)
        assert refused.code == 1
        assert "add --delete-data" in refused.err
        assert len(s3.list_object_versions(Bucket=outputs["bucket"])["Versions"]) == 2

        done = cli.run(SCRIPT, "teardown", *name, "--delete-data", variables=cloud.variables)
        assert done.code == 0, done.err
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
            assert "there is a repository team-vision that this did not make" in refused.err
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
        done = cli.run(SCRIPT, "teardown", *name, variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == NOTHING


def test_who_may_not_see_what_is_left_deletes_nothing(tmp_path: Path) -> None:
    answers = """
      *get-caller-identity*) echo arn:aws:sts::123456789012:user/me ;;
      *list-object-versions*) echo "An error occurred (AccessDenied)" >&2; exit 254 ;;
      *list-images*) echo 0 ;;
      *tags*) echo team-vision ;;
    """
    cli, calls = stand_in(tmp_path, answers)
    done = cli.run(SCRIPT, "teardown", "--name", "team-vision", variables={"AWS_DEFAULT_REGION": "us-east-1"})
    assert done.code == 1
    assert "AccessDenied" in done.err
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
    done = cli.run(SCRIPT, "teardown", "--name", "team-vision", variables={"AWS_DEFAULT_REGION": "eu-west-1"})
    assert done.code == 0, done.err
    roles = re.findall(r"--role-name (\S+)", calls.read_text())
    assert set(roles) == {"team-vision-build-eu-west-1", "team-vision-nightly-eu-west-1"}
    assert "iam delete-role " in calls.read_text()


@pytest.mark.soak  # the AWS CLI is started more than a hundred times
def test_a_second_region_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        there = {**cloud.variables, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-1"}
        done = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=cloud.variables)
        assert done.code == 0, done.err
        first = read_back(cloud)["roles"]
        done = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=there)
        assert done.code == 0, done.err
        both = read_back(cloud)["roles"]
        assert len(both) == 2 * len(first)
        assert {name: both[name] for name in first} == first
        done = cli.run(SCRIPT, "teardown", "--name", OTHER["Name"], "--delete-data", variables=there)
        assert done.code == 0, done.err
        assert read_back(cloud)["roles"] == first


def test_a_token_in_an_address_is_not_repeated(tmp_path: Path) -> None:
    cli, _ = stand_in(tmp_path, "")
    done = cli.run(SCRIPT, "create", "--source-url", "https://me:planted@github.com/a/b.git", variables={})
    assert "https://***@github.com/a/b.git" in done.err
    assert "planted" not in done.err


@pytest.mark.soak
def test_a_second_run_changes_nothing_on_another_emulator(tmp_path: Path) -> None:
    with ministack(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        for _ in range(2):
            done = cli.run(SCRIPT, "create", "--source-url", SOURCE, variables=cloud.variables)
            assert done.code == 0, done.err
            told = says(parameters(SourceUrl=SOURCE))
            assert read_back(cloud) == as_ministack_keeps_it(told, by_template=False)
        done = cli.run(SCRIPT, "teardown", variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == NOTHING


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--name", "Capital"], "--name is 'Capital'"),
        (["--source-url", "https://me:token@github.com/a/b.git"], "without a user or token"),
        (["--image-dir", "../elsewhere"], "outside of the repository"),
        (["--timeout-minutes", "4"], "whole number from 5 to 480"),
        (["--timeout-minutes", "1e2"], "whole number from 5 to 480"),
        (["--log-days", "31"], "a number that CloudWatch knows"),
        (["--tag-mutability", "mutable"], "MUTABLE or IMMUTABLE"),
        (["--nightly-schedule", "every night"], "as EventBridge writes it"),
        (["--tag", 'a="b'], "KEY=VALUE"),
        (["--keep-images"], "--keep-images has no value"),
        (["--nonsense"], "there is no flag --nonsense"),
    ],
)
def test_what_cannot_be_is_refused_before_aws_is_asked(flags: list[str], words: str, tmp_path: Path) -> None:
    aws = tmp_path / "aws"
    aws.write_text("#!/bin/sh\necho asked >&2\nexit 9\n")
    aws.chmod(0o755)
    done = AwsCli(tmp_path).run(SCRIPT, "create", "--source-url", SOURCE, *flags, variables={})
    assert done.code == 1
    assert words in done.err
    assert done.err.startswith("error: ")
    assert "\nhint: " in done.err
    assert "asked" not in done.err

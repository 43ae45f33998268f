"""The IAM privileges of a build: the minimum, on the resources it needs."""

from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml
from tests.aws_build.choices import OTHER
from tests.aws_build.template import says
from tests.fixtures.processes.command import ROOT

ROLES = says(OTHER)["roles"]
STATEMENTS = [
    statement
    for row in ROLES.values()
    for policy in row["policies"].values()
    for statement in policy["Statement"]
]


def test_only_the_token_action_applies_to_all_resources() -> None:
    everywhere = [statement["Action"] for statement in STATEMENTS if "*" in statement["Resource"]]
    assert everywhere == [["ecr:GetAuthorizationToken"]] * 2, "once for builds, once for pull requests"


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_permission_names_what_it_is_for(statement: dict[str, Any]) -> None:
    assert statement["Effect"] == "Allow"
    assert not [action for action in statement["Action"] if "*" in action]
    named = [resource for resource in statement["Resource"] if resource != "*"]
    if statement["Sid"] == "Bases":
        return  # images of AWS, which are read: below
    # Stars stand only at the end of what is ours: objects of our bucket, streams of our log group. Not behind
    # a hyphen: team-vision-* would also be what belongs to team-vision-two. Regions share the name.
    own = [resource.replace(":ecr:*:ACCOUNT:", ":ecr:REGION:ACCOUNT:") for resource in named]
    assert all("*" not in resource[:-1] and "team-vision" in resource for resource in own)
    assert not [resource for resource in named if resource.endswith("-*")]


def _allows(action: str, resource: str) -> bool:
    return any(
        action in statement["Action"] and any(fnmatchcase(resource, item) for item in statement["Resource"])
        for statement in STATEMENTS
    )


def test_a_build_may_push_to_its_repository_in_every_region_and_to_no_other() -> None:
    for action in (
        "ecr:InitiateLayerUpload",
        "ecr:UploadLayerPart",
        "ecr:CompleteLayerUpload",
        "ecr:PutImage",
    ):
        for region in ("us-east-1", "eu-central-1"):
            assert _allows(action, f"arn:aws:ecr:{region}:ACCOUNT:repository/team-vision")
            assert not _allows(action, f"arn:aws:ecr:{region}:ACCOUNT:repository/team-vision-two")
            assert not _allows(action, f"arn:aws:ecr:{region}:763104351884:repository/pytorch-training")


def test_a_build_may_begin_with_an_image_of_aws_and_only_read_it() -> None:
    for place in ("us-east-1:763104351884", "ap-east-1:871362719292", "af-south-1:626614931356"):
        base = f"arn:aws:ecr:{place}:repository/pytorch-training"
        assert all(_allows(f"ecr:{each}", base) for each in ("BatchGetImage", "GetDownloadUrlForLayer"))
    assert not _allows("ecr:BatchGetImage", "arn:aws:ecr:us-east-1:999999999999:repository/pytorch-training")


def test_roles_of_two_regions_have_two_names() -> None:
    assert set(ROLES) == {f"team-vision-{use}-us-east-1" for use in ("build", "nightly", "pr")}


def test_the_reports_of_the_buildspec_may_be_written() -> None:
    reports = [statement["Resource"] for statement in STATEMENTS if statement["Sid"] == "Reports"]
    names = yaml.safe_load((ROOT / "infra" / "buildspec.yml").read_text())["reports"]
    for project, resources in zip(("team-vision", "team-vision-pr"), reports, strict=True):
        groups = [resource.partition(":report-group/")[2] for resource in resources]
        assert groups == [f"{project}-{name}" for name in names]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_lent_to_one_service_for_one_thing(role: str) -> None:
    (trust,) = ROLES[role]["trust"]["Statement"]
    assert trust["Principal"].keys() == {"Service"}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": "ACCOUNT"}
    assert "*" not in trust["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert ROLES[role]["attached"] == []


def test_what_pushes_is_not_started_by_a_pull_request() -> None:
    groups = says(OTHER)["projects"]["team-vision"]["webhook"]
    assert len(groups) == 2
    assert all(["EVENT", "PUSH"] in group for group in groups)


def test_pull_requests_are_built_only_on_request_and_those_of_forks_only_after_an_approval() -> None:
    made = says({**OTHER, "PullRequests": "false"})
    assert set(made["projects"]) == {"team-vision"}
    assert "team-vision-pr-us-east-1" not in made["roles"]
    project = says(OTHER)["projects"]["team-vision-pr"]
    ((base, event),) = project["webhook"]
    assert base == ["BASE_REF", "^refs/heads/release/2.x$"]
    assert all(name.startswith("PULL_REQUEST_") for name in event[1].split(", "))
    assert project["pull request policy"] == {
        "requiresCommentApproval": "FORK_PULL_REQUESTS",
        "approverRoles": ["GITHUB_ADMIN", "GITHUB_MAINTAIN", "GITHUB_WRITE"],
    }


def test_a_pull_request_can_neither_push_nor_write_what_a_later_build_reads() -> None:
    made = says(OTHER)
    project = made["projects"]["team-vision-pr"]
    assert project["variables"]["PUSH"] == ["PLAINTEXT", "no"]
    assert "IMAGE_REPOSITORY" not in project["variables"]
    assert (project["artifacts"], project["cache"]) == ({"type": "NO_ARTIFACTS"}, {"type": "NO_CACHE"})
    role = project["serviceRole"].rpartition("/")[2]
    (policy,) = made["roles"][role]["policies"].values()
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert not [action for action in actions if action.startswith("s3:")]
    assert {action for action in actions if action.startswith("ecr:")} == {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:GetAuthorizationToken",
        "ecr:GetDownloadUrlForLayer",
    }


def test_a_failed_build_is_told_to_a_topic_and_to_an_address_if_there_is_one() -> None:
    made = says(OTHER)
    rule = made["rules"]["team-vision-failed-builds"]
    assert rule["pattern"]["detail"] == {
        "build-status": ["FAILED", "FAULT", "TIMED_OUT"],
        "project-name": ["team-vision"],
    }
    topic = made["topics"]["team-vision-failed-builds"]
    assert topic["subscriptions"] == [["email", "team@example.com"]]
    (statement,) = topic["policy"]["Statement"]
    assert statement["Resource"] == rule["targets"][0]["Arn"]
    assert says({**OTHER, "AlertEmail": ""})["topics"]["team-vision-failed-builds"]["subscriptions"] == []
    without = says({**OTHER, "Alerts": "false"})
    assert without["topics"] == {}
    assert "team-vision-failed-builds" not in without["rules"]

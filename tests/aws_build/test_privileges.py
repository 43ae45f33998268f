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
    assert everywhere == [["ecr:GetAuthorizationToken"]]


@pytest.mark.parametrize("statement", STATEMENTS, ids=[each["Sid"] for each in STATEMENTS])
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
    assert set(ROLES) == {"team-vision-build-us-east-1", "team-vision-nightly-us-east-1"}


def test_the_reports_of_the_buildspec_may_be_written() -> None:
    (reports,) = [statement["Resource"] for statement in STATEMENTS if statement["Sid"] == "Reports"]
    names = yaml.safe_load((ROOT / "infra" / "buildspec.yml").read_text())["reports"]
    assert [resource.partition(":report-group/")[2] for resource in reports] == [
        f"team-vision-{name}" for name in names
    ]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_lent_to_one_service_for_one_thing(role: str) -> None:
    (trust,) = ROLES[role]["trust"]["Statement"]
    assert trust["Principal"].keys() == {"Service"}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": "ACCOUNT"}
    assert "*" not in trust["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert ROLES[role]["attached"] == []


def test_no_build_is_started_by_a_stranger_s_pull_request() -> None:
    groups = says(OTHER)["projects"]["team-vision"]["webhook"]
    assert len(groups) == 2
    assert all(["EVENT", "PUSH"] in group for group in groups)

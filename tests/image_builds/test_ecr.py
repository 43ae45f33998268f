"""Pushes to ECR, in two regions of an emulator that receives images.

MiniStack keeps repositories, and receives images by Docker's protocol. It requires no login: a refused login
is in test_refusing_registries.py.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures.aws.emulator import Cloud
from tests.fixtures.aws.ministack import ministack
from tests.fixtures.containers.engine import BASE, EngineHere

from paceline.core.errors import ConfigError
from paceline.images.build.engine import find_engine
from paceline.images.push.errors import NoRepositoryError, TagTakenError, WrongAccountError
from paceline.images.push.publish import PushRequest, PushResult, push_image
from paceline.images.push.references import EcrDestination, lifecycle_policy

REGIONS = ("us-east-1", "eu-central-1")


def describe(cloud: Cloud, name: str) -> tuple[dict[str, object], str, str]:
    client = cloud.client("ecr")
    try:
        (result,) = client.describe_repositories(repositoryNames=[name])["repositories"]
        (image,) = client.describe_images(repositoryName=name)["imageDetails"]
        rules = client.get_lifecycle_policy(repositoryName=name)["lifecyclePolicyText"]
        return result, image["imageDigest"], rules
    finally:
        client.close()


def test_an_image_goes_to_two_regions_with_one_digest_and_every_refusal_has_its_own_error(
    here: EngineHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    here.podman(
        "build", "--quiet", "--tag", "localhost/other:1", "-f", "-", said=f"FROM {BASE}\nRUN touch /x\n"
    )
    with ExitStack() as stack:
        clouds = []
        for region in REGIONS:
            (tmp_path / region).mkdir()
            clouds.append(stack.enter_context(ministack(tmp_path / region, region)))
        urls = {cloud.region: cloud.url for cloud in clouds}

        def push(image: str, place: EcrDestination, **more: object) -> PushResult:
            given = {"regions": REGIONS, "endpoints": urls, "tags": ("1.0.0",), "immutable": True, **more}
            request = PushRequest(image=image, places=(place,), folder=tmp_path, **given)  # type: ignore[arg-type]
            return push_image(find_engine("podman"), request, lambda _: None)

        team = EcrDestination(repository="team/model")
        pushed = push(BASE, team)
        assert [push.how for push in pushed.sent] == ["pushed", "copied"]
        assert all(push.verified_by == ("registry", "DescribeImages") for push in pushed.sent)
        for cloud in clouds:
            result, digest, rules = describe(cloud, "team/model")
            assert digest == pushed.digest
            assert result["imageTagMutability"] == "IMMUTABLE"
            assert result["imageScanningConfiguration"] == {"scanOnPush": True}
            assert result["encryptionConfiguration"] == {"encryptionType": "AES256"}
            assert rules == lifecycle_policy()

        with pytest.raises(TagTakenError):
            push("localhost/other:1", team)
        with pytest.raises(ConfigError):  # before anything is sent
            push(BASE, team, tags=(), strategies=("latest",))
        with pytest.raises(NoRepositoryError):
            push(BASE, EcrDestination(repository="team/none"), create=False)
        with pytest.raises(WrongAccountError) as wrong:
            push(BASE, EcrDestination(repository="team/model", account="999999999999", region="us-east-1"))
        assert "000000000000" in wrong.value.what
        assert "999999999999" in wrong.value.what

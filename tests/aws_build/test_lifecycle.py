"""The lifecycle policy never deletes releases, however many images follow; simulated."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.aws_build.choices import SOURCE
from tests.aws_build.ecr_lifecycle import Image, expired
from tests.aws_build.template import parameters, says

from paceline.images.push.references import lifecycle_policy

KEPT = 5
POLICY = says(parameters(SourceUrl=SOURCE, KeepImages=str(KEPT)))["repositories"]["paceline-images"][
    "lifecycle"
]

kept_tags = st.sampled_from(["0.1.0", "v1.2.3", "2.0.0-rc1", "latest", "deployed-production"])
other_tags = st.from_regex(r"[0-9a-f]{12}", fullmatch=True) | st.integers(1, 999).map(
    lambda number: f"build-{number}"
)
tags = st.frozensets(kept_tags | other_tags, max_size=3)
images = st.lists(st.tuples(tags, st.floats(0, 3000)), max_size=40).map(
    lambda rows: [Image(f"sha256:{number}", tags, age) for number, (tags, age) in enumerate(rows)]
)


def is_kept(image: Image) -> bool:
    return any("." in tag or tag == "latest" or tag.startswith("deployed-") for tag in image.tags)


@given(images)
def test_releases_latest_and_what_is_deployed_are_never_deleted(images: list[Image]) -> None:
    gone = expired(POLICY, images)
    assert not [image for image in images if is_kept(image) and image.digest in gone]


@given(images)
def test_of_all_others_the_newest_stay_and_the_rest_goes(images: list[Image]) -> None:
    gone = expired(POLICY, images)
    oldest_first = sorted(images, key=lambda image: image.pushed_days_ago, reverse=True)
    newest = {image.digest for image in oldest_first[-KEPT:]} if images else set()
    for image in images:
        if image.tags and not is_kept(image):
            # Of equal age, either may be the one that is too much.
            alike = [each for each in images if each.pushed_days_ago == image.pushed_days_ago]
            if len(alike) == 1:
                assert (image.digest in gone) == (image.digest not in newest)
        if not image.tags:
            assert (image.digest in gone) == (image.pushed_days_ago > 7)


def test_a_plain_rule_for_all_would_have_deleted_a_release() -> None:
    """The mistake that the order of rules avoids: only the last rule, and the oldest image is a release."""
    release = Image("sha256:release", frozenset({"1.0.0"}), 400)
    nightly = [Image(f"sha256:{day}", frozenset({f"build-{day}"}), day) for day in range(KEPT + 1)]
    only_the_last = {"rules": POLICY["rules"][-1:]}
    assert "sha256:release" in expired(only_the_last, [release, *nightly])
    assert "sha256:release" not in expired(POLICY, [release, *nightly])


def test_a_repository_that_push_makes_keeps_the_same() -> None:
    by_itself = says(parameters(SourceUrl=SOURCE))["repositories"]["paceline-images"]["lifecycle"]
    assert [_rule(rule) for rule in json.loads(lifecycle_policy())["rules"]] == [
        _rule(rule) for rule in by_itself["rules"]
    ]


def _rule(rule: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Without its words."""
    return rule["rulePriority"], rule["selection"]

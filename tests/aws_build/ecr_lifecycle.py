"""ECR lifecycle evaluation: the images that a policy deletes, by the rules of its documentation.

An image is expired by one rule or none. An image that matches the tags of a rule is never expired by a rule
of lower priority (a higher number), though it is still counted there. Patterns of one rule must all match.
https://docs.aws.amazon.com/AmazonECR/latest/userguide/LifecyclePolicies.html
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True)
class Image:
    digest: str
    tags: frozenset[str]
    pushed_days_ago: float


def expired(policy: Mapping[str, Any], images: Sequence[Image]) -> set[str]:
    """Digests of those that go."""
    gone: set[str] = set()
    spoken_for: set[str] = set()
    for rule in sorted(policy["rules"], key=lambda rule: rule["rulePriority"]):
        matching = [image for image in images if _matches(rule["selection"], image)]
        gone |= {image.digest for image in _beyond(rule["selection"], matching)} - spoken_for
        spoken_for |= {image.digest for image in matching}
    return gone


def _matches(selection: Mapping[str, Any], image: Image) -> bool:
    match selection["tagStatus"]:
        case "any":
            return True
        case "untagged":
            return not image.tags
    patterns = [f"{prefix}*" for prefix in selection.get("tagPrefixList", [])] + selection.get(
        "tagPatternList", []
    )
    return bool(image.tags) and all(_has(image.tags, pattern) for pattern in patterns)


def _has(tags: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(tag, pattern) for tag in tags)


def _beyond(selection: Mapping[str, Any], images: Sequence[Image]) -> list[Image]:
    if selection["countType"] == "sinceImagePushed":
        return [image for image in images if image.pushed_days_ago > selection["countNumber"]]
    newest_first = sorted(images, key=lambda image: image.pushed_days_ago)
    return newest_first[selection["countNumber"] :]

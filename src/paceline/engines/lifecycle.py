"""Which images does a repository forget? A policy that can never take a release, and its own simulation.

Amazon applies rules by priority, and an image belongs to the first that matches: so releases, `latest` and
what is deployed have rules of their own above the one that takes what is old, with a count never reached.
`infra/` makes repositories with the same six rules.
"""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Selection: TypeAlias = Mapping[str, Any]  # Any: JSON as Amazon writes it
_NEVER = 9999  # more images than a repository of releases will hold


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    digest: str
    tags: tuple[str, ...]
    age_days: float


def policy(*, keep: int = 50) -> str:
    """The text for ecr:PutLifecyclePolicy."""
    rules = [
        _rule(1, "keep releases: 1.2.3 and v1.2.3", _tagged("tagPatternList", "*.*.*"), _more_than(_NEVER)),
        _rule(2, "keep latest", _tagged("tagPatternList", "latest"), _more_than(_NEVER)),
        _rule(
            3, "keep what is deployed: deployed-*", _tagged("tagPrefixList", "deployed-"), _more_than(_NEVER)
        ),
        _rule(4, "few layer caches", _tagged("tagPrefixList", "buildcache"), _more_than(3)),
        _rule(5, "untagged images go after a week", {"tagStatus": "untagged"}, _older_than(7)),
        _rule(6, "of all others, the newest stay", {"tagStatus": "any"}, _more_than(keep)),
    ]
    return json.dumps({"rules": rules})


def _tagged(kind: str, text: str) -> dict[str, object]:
    return {"tagStatus": "tagged", kind: [text]}


def _more_than(count: int) -> dict[str, object]:
    return {"countType": "imageCountMoreThan", "countNumber": count}


def _older_than(days: int) -> dict[str, object]:
    return {"countType": "sinceImagePushed", "countUnit": "days", "countNumber": days}


def _rule(priority: int, what: str, chosen: Selection, counted: Selection) -> dict[str, object]:
    return {
        "rulePriority": priority,
        "description": what,
        "selection": {**chosen, **counted},
        "action": {"type": "expire"},
    }


def expired(text: str, images: Sequence[StoredImage]) -> set[str]:
    """Which digests such a policy takes, as Amazon describes it: by priority, each image by one rule only."""
    rules = sorted(json.loads(text)["rules"], key=lambda rule: int(rule["rulePriority"]))
    taken: set[str] = set()
    seen: set[str] = set()
    for rule in rules:
        chosen = [one for one in images if one.digest not in seen and _matches(one, rule["selection"])]
        seen |= {one.digest for one in chosen}
        taken |= {one.digest for one in _beyond(chosen, rule["selection"])}
    return taken


def _matches(image: StoredImage, selection: Selection) -> bool:
    match selection["tagStatus"]:
        case "untagged":
            return not image.tags
        case "any":
            return True
    patterns = [*selection.get("tagPatternList", ()), *(f"{p}*" for p in selection.get("tagPrefixList", ()))]
    return any(fnmatch.fnmatchcase(tag, pattern) for tag in image.tags for pattern in patterns)


def _beyond(images: list[StoredImage], selection: Selection) -> list[StoredImage]:
    count = int(selection["countNumber"])
    if selection["countType"] == "sinceImagePushed":
        return [one for one in images if one.age_days > count]
    return sorted(images, key=lambda one: one.age_days)[count:]

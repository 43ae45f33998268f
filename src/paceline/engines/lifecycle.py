"""Which images does a repository forget? A policy that can never take a release.

Amazon applies rules by priority, and an image belongs to the first that matches: so releases, `latest` and
what is deployed have rules of their own above the one that takes what is old, with a count never reached.
`infra/` makes repositories with the same six rules.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Selection: TypeAlias = Mapping[str, Any]  # Any: JSON as Amazon writes it
_NEVER = 9999  # more images than a repository of releases will hold


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

"""Image references: parse a destination into registry and repository, and find out whether it is on ECR.

ecr:team/model                                        the account of the current AWS credentials
123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/model
registry.example.com:5000/team/model
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.core.errors import ConfigError, ImageOptionError, Problem

_ECR_HOST = re.compile(r"^(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.(amazonaws\.com(?:\.cn)?|on\.aws)$")
_REPOSITORY = re.compile(
    r"^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*$"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryDestination:
    host: str
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EcrDestination:
    repository: str
    account: str | None = None  # None: that of the credentials
    region: str | None = None  # None: the user's own


Destination = RegistryDestination | EcrDestination


def parse_destination(text: str) -> Destination:
    if text.startswith("ecr:"):
        return EcrDestination(repository=_repository(text.removeprefix("ecr:").strip("/"), text))
    host, slash, rest = text.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        raise _refused(text, "it names no registry")
    if match := _ECR_HOST.match(host):
        return EcrDestination(repository=_repository(rest, text), account=match[1], region=match[2])
    return RegistryDestination(host=host, repository=_repository(rest, text))


def _repository(name: str, text: str) -> str:
    if not _REPOSITORY.match(name):
        raise _refused(text, f"{name!r} is not a repository name; set the tag with --tag or --tags")
    return name


def validate_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        hint = "letters, digits, dots, dashes and underscores, at most 128 of them"
        raise ImageOptionError([Problem(f"{tag!r} is not a tag", hint, "--tag")])
    return tag


def _refused(text: str, why: str) -> ConfigError:
    hint = "write HOST[:PORT]/NAME, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME or ecr:NAME"
    return ImageOptionError([Problem(f"{text!r} is not an image repository: {why}", hint, "--to")])


def is_local(host: str) -> bool:
    """Whether the registry is on this machine: such registries use plain HTTP, as in docker."""
    name = host.rpartition(":")[0] if ":" in host else host
    return name in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


# The commit is that of the image's label, not that of the folder at the time of the push.
#
# git-sha   the commit, 12 signs of it; with -dirty where the build had other files
# semantic  1.4.2, and 1.4 and 1 where tags may move; the version is --version, or the commit's tag
# latest    latest
# auto      the version where the commit has one, else the commit

_NUMBER = r"(0|[1-9][0-9]*)"
_WORDS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SEMANTIC = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_WORDS})?(\+{_WORDS})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    sha: str
    is_dirty: bool
    tags: tuple[str, ...] = ()  # of this commit


def tags_for(
    strategies: Iterable[str], *, commit: Commit | None, version: str | None, may_move: bool
) -> list[str]:
    """Each once, in order. Raises ConfigError where a strategy has nothing to go by."""
    tags: dict[str, None] = {}
    for strategy in strategies:
        for tag in _tags(strategy, commit, version, may_move=may_move):
            tags[tag] = None
    return list(tags)


def _tags(strategy: str, commit: Commit | None, version: str | None, *, may_move: bool) -> list[str]:
    if strategy == "latest":
        if not may_move:
            raise _tags_refused(
                "latest must be mutable, but this repository's tags are immutable",
                "leave it out, or push to a repository with mutable tags",
            )
        return ["latest"]
    if strategy == "semantic" or (strategy == "auto" and _version(commit, version) is not None):
        return _semantic(commit, version, may_move=may_move and strategy == "semantic")
    if commit is None:
        raise _tags_refused(
            "the image has no label org.opencontainers.image.revision, so its commit is not known",
            "build it with paceline image build in a git repository, or use --tag NAME or --version X.Y.Z",
        )
    return [commit.sha[:12] + ("-dirty" if commit.is_dirty else "")]


def _semantic(commit: Commit | None, version: str | None, *, may_move: bool) -> list[str]:
    match = _version(commit, version)
    if match is None:
        raise _tags_refused("no version is set", "use --version X.Y.Z, or tag the commit: git tag v1.4.2")
    matched = _SEMANTIC.fullmatch(match)
    if matched is None:
        raise _tags_refused(f"{match!r} is not a semantic version", "such as 1.4.2 or 1.4.2-rc1")
    major, minor, patch, early, _built = matched.groups()  # a tag cannot hold the + of a build
    full = f"{major}.{minor}.{patch}{early or ''}"
    # A pre-release must not become the default tag.
    return [full, f"{major}.{minor}", major] if may_move and early is None else [full]


def _version(commit: Commit | None, version: str | None) -> str | None:
    if version is not None:
        return version
    if commit is None or commit.is_dirty:
        return None
    versions = [tag for tag in commit.tags if _SEMANTIC.fullmatch(tag)]
    return max(versions, key=_order) if versions else None


def _order(tag: str) -> tuple[int, int, int, bool, str]:
    match = _SEMANTIC.fullmatch(tag)
    assert match is not None, "only versions are ordered"
    return int(match[1]), int(match[2]), int(match[3]), match[4] is None, match[4] or ""


def _tags_refused(message: str, hint: str) -> ConfigError:
    return ImageOptionError([Problem(message, hint, "--tags")])


# Amazon applies rules by priority, and an image belongs to the first that matches: so releases, `latest` and
# deployed images have separate rules above the one that expires old images, with a count never reached.
# `infra/` makes repositories with the same six rules.

Selection: TypeAlias = Mapping[str, Any]  # Any: JSON as Amazon writes it
_NEVER = 9999  # more images than a repository of releases will hold


def lifecycle_policy(*, keep: int = 50) -> str:
    """The text for ecr:PutLifecyclePolicy."""
    rules = [
        _rule(1, "keep releases: 1.2.3 and v1.2.3", _tagged("tagPatternList", "*.*.*"), _more_than(_NEVER)),
        _rule(2, "keep latest", _tagged("tagPatternList", "latest"), _more_than(_NEVER)),
        _rule(
            3, "keep what is deployed: deployed-*", _tagged("tagPrefixList", "deployed-"), _more_than(_NEVER)
        ),
        _rule(4, "few layer caches", _tagged("tagPrefixList", "buildcache"), _more_than(3)),
        _rule(5, "untagged images expire after a week", {"tagStatus": "untagged"}, _older_than(7)),
        _rule(6, "the newest of all others are kept", {"tagStatus": "any"}, _more_than(keep)),
    ]
    return json.dumps({"rules": rules})


def _tagged(kind: str, text: str) -> dict[str, object]:
    return {"tagStatus": "tagged", kind: [text]}


def _more_than(count: int) -> dict[str, object]:
    return {"countType": "imageCountMoreThan", "countNumber": count}


def _older_than(days: int) -> dict[str, object]:
    return {"countType": "sinceImagePushed", "countUnit": "days", "countNumber": days}


def _rule(priority: int, description: str, chosen: Selection, counted: Selection) -> dict[str, object]:
    return {
        "rulePriority": priority,
        "description": description,
        "selection": {**chosen, **counted},
        "action": {"type": "expire"},
    }

"""Which tags does an image get? By strategy, out of what git and the user say; pure.

git-sha   the commit, 12 signs of it; with -dirty where files differ from it
semantic  1.4.2, and 1.4 and 1 where tags may move; the version is --version, or the commit's tag
latest    latest
auto      the version where the commit has one, else the commit
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import ConfigError, ImageWishError, Problem

_NUMBER, _WORDS = r"(0|[1-9][0-9]*)", r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
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
    found: dict[str, None] = {}
    for strategy in strategies:
        for tag in _tags(strategy, commit, version, may_move=may_move):
            found[tag] = None
    return list(found)


def _tags(strategy: str, commit: Commit | None, version: str | None, *, may_move: bool) -> list[str]:
    if strategy == "latest":
        if not may_move:
            raise _refused(
                "latest moves, and this repository's tags do not",
                "leave it out, or push to a repository whose tags move",
            )
        return ["latest"]
    if strategy == "semantic" or (strategy == "auto" and _version(commit, version) is not None):
        return _semantic(commit, version, may_move=may_move and strategy == "semantic")
    if commit is None:
        raise _refused("there is no git repository to name a commit", "say --tag NAME, or --version X.Y.Z")
    return [commit.sha[:12] + ("-dirty" if commit.is_dirty else "")]


def _semantic(commit: Commit | None, version: str | None, *, may_move: bool) -> list[str]:
    said = _version(commit, version)
    if said is None:
        raise _refused("no version is known", "say --version X.Y.Z, or tag the commit: git tag v1.4.2")
    found = _SEMANTIC.fullmatch(said)
    if found is None:
        raise _refused(f"{said!r} is no semantic version", "such as 1.4.2 or 1.4.2-rc1")
    major, minor, patch, early, _built = found.groups()  # a tag cannot hold the + of a build
    full = f"{major}.{minor}.{patch}{early or ''}"
    # A release that is not one yet must not become what everybody gets.
    return [full, f"{major}.{minor}", major] if may_move and early is None else [full]


def _version(commit: Commit | None, version: str | None) -> str | None:
    if version is not None:
        return version
    if commit is None or commit.is_dirty:
        return None
    found = [tag for tag in commit.tags if _SEMANTIC.fullmatch(tag)]
    return max(found, key=_order) if found else None


def _order(tag: str) -> tuple[int, int, int, bool, str]:
    found = _SEMANTIC.fullmatch(tag)
    assert found is not None, "only versions are ordered"
    return int(found[1]), int(found[2]), int(found[3]), found[4] is None, found[4] or ""


def _refused(what: str, hint: str) -> ConfigError:
    return ImageWishError([Problem(what, hint, "--tags")])

"""Which commit an image was built from: the label that a build writes, and that a push reads.

The label is org.opencontainers.image.revision, with `-dirty` behind the commit, as in `git describe --dirty`,
where the build had something else than the commit: a changed file, or an automatic fix. A base image may
have the same label of its own, so a build without a commit empties it. Tags name what is in the image, not
what the folder is at the time of the push.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.images.build.engine import Engine, run_command
from paceline.images.build.engine_cli import inspect_argv
from paceline.images.push.references import Commit

REVISION_LABEL = "org.opencontainers.image.revision"
_REVISION = re.compile(r"([0-9a-f]{7,64})(-dirty)?")


def commit_of(folder: Path, dockerfile: str | None = None) -> Commit | None:
    """None: no git, no repository, or no commit yet. Untracked files do not count, but the Dockerfile."""
    git = _git(folder)
    head = None if git is None else run_command([*git, "rev-parse", "HEAD"])
    if git is None or head is None or not head.is_well:
        return None
    status = run_command([*git, "status", "--porcelain", "--untracked-files=no"])
    # If git fails, the image must not claim to be this commit.
    is_dirty = bool(status.text.strip()) or not status.is_well
    if dockerfile is not None and not is_dirty:
        tracked = run_command([*git, "ls-files", "--", dockerfile])
        is_dirty = not (tracked.is_well and tracked.text.strip())
    sha = head.text.strip()
    return Commit(sha=sha, is_dirty=is_dirty, tags=version_tags(folder, sha))


def version_tags(folder: Path, sha: str) -> tuple[str, ...]:
    """The git tags of this commit; none where the folder does not have it."""
    git = _git(folder)
    if git is None:
        return ()
    listed = run_command([*git, "tag", "--points-at", sha])
    return tuple(listed.text.split()) if listed.is_well else ()


def _git(folder: Path) -> list[str] | None:
    path = shutil.which("git")
    return None if path is None else [path, "-C", str(folder)]


def revision_text(commit: Commit) -> str:
    return commit.sha + ("-dirty" if commit.is_dirty else "")


def revision_labels(commit: Commit | None, dockerfile: str) -> tuple[str, ...]:
    """The labels of a build from this commit; `dockerfile` is its text, which may set the label itself."""
    if commit is not None:
        return (f"{REVISION_LABEL}={revision_text(commit)}",)
    return () if REVISION_LABEL in dockerfile else (f"{REVISION_LABEL}=",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIdentity:
    """What an engine records about an image."""

    id: str
    digests: tuple[str, ...] = ()  # NAME@sha256:…, as this engine knows them
    size_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> str | None:
        """The label as it stands; None where it is missing or empty."""
        return self.labels.get(REVISION_LABEL) or None

    @property
    def commit(self) -> Commit | None:
        """The commit that the label names, without tags."""
        match = _REVISION.fullmatch(self.revision or "")
        return None if match is None else Commit(sha=match[1], is_dirty=match[2] is not None)


def identify(engine: Engine, image: str) -> ImageIdentity | None:
    """None: this engine does not have the image, or says nothing that can be read."""
    done = run_command(inspect_argv(engine, image))
    if not done.is_well:
        return None
    try:
        answer = json.loads(done.text)
    except json.JSONDecodeError:
        return None
    facts = answer[0] if isinstance(answer, list) and answer else answer
    return _identity(facts) if isinstance(facts, dict) else None


def _identity(facts: dict[str, Any]) -> ImageIdentity | None:  # Any: JSON that an engine wrote
    """podman and docker write Id, buildah FromImageID."""
    image_id = facts.get("Id") or facts.get("FromImageID")
    if not image_id:
        return None
    config = facts.get("Config") or facts.get("OCIv1", {}).get("config") or {}
    digests = facts.get("RepoDigests") or ()
    if not digests and facts.get("FromImageDigest"):
        digests = (f"{str(facts.get('FromImage', '')).rpartition(':')[0]}@{facts['FromImageDigest']}",)
    size = facts.get("Size")
    return ImageIdentity(
        id=str(image_id).removeprefix("sha256:"),
        digests=tuple(str(digest) for digest in digests),
        size_bytes=size if isinstance(size, int) else None,
        labels={str(name): str(value) for name, value in (config.get("Labels") or {}).items()},
    )

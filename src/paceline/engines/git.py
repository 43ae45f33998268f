"""Which commit is this folder at? Asked from git, where there is one."""

import shutil
from pathlib import Path

from paceline.engines.process import ask
from paceline.engines.tags import Commit


def commit_of(folder: Path) -> Commit | None:
    """None: no git, no repository, or no commit yet."""
    path = shutil.which("git")
    if path is None:
        return None
    git = [path, "-C", str(folder)]
    head = ask([*git, "rev-parse", "HEAD"])
    if not head.is_well:
        return None
    status = ask([*git, "status", "--porcelain", "--untracked-files=no"])
    # Where git cannot say, nobody may believe that the image is this commit.
    is_dirty = bool(status.text.strip()) or not status.is_well
    tags = ask([*git, "tag", "--points-at", "HEAD"]).text.split()
    return Commit(sha=head.text.strip(), is_dirty=is_dirty, tags=tuple(tags))

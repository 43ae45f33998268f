"""How do files on disk become a project to check, and a mended one files again?

load_project(folder, dockerfile=None, requirements=())   reads; nothing is written
write_project(folder, before, after)                     writes what changed
"""

from collections.abc import Sequence
from pathlib import Path

from paceline.images.api import changed
from paceline.images.project import DOCKERFILE, Project, Source


def load_project(folder: Path, dockerfile: Path | None = None, requirements: Sequence[Path] = ()) -> Project:
    """The Dockerfile, the requirement files beside it, and the names of what else is there."""
    name = DOCKERFILE if dockerfile is None else dockerfile.as_posix()
    return Project(files=(Source(name, (folder / name).read_text("utf-8")),), dockerfile=name)


def write_project(folder: Path, before: Project, after: Project) -> list[Path]:
    """Write what differs into the folder (the user's, or a copy of it)."""
    written = []
    for path, text in changed(before, after).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", newline="") as out:
            out.write(text)
        written.append(file)
    return written

"""What does an engine build from, when the user's own files must stay as they are?

Where only the Dockerfile was mended, from the user's folder, with another Dockerfile. Where more was mended,
from a second tree of the same files: hard links where they can be, so that nothing large is copied.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import NotReadyError
from paceline.images.api import changed
from paceline.images.project import Project


@dataclass(frozen=True, slots=True)
class Context:
    folder: Path
    dockerfile: Path


@contextmanager
def context_of(folder: Path, before: Project, after: Project) -> Iterator[Context]:
    """The folder as `after` says; whatever was made for it is gone afterwards."""
    news = changed(before, after)
    if not news:
        yield Context(folder, folder / after.dockerfile)
        return
    with tempfile.TemporaryDirectory(prefix="paceline-image-") as made:
        place = Path(made)
        if set(news) == {after.dockerfile}:
            yield _beside(folder, after, place)
        else:
            yield _second_tree(folder, after, news, place / "context")


def _beside(folder: Path, after: Project, place: Path) -> Context:
    mended = place / "Dockerfile"
    _write(mended, after.text(after.dockerfile))
    # Engines look for the list of what is not sent beside the Dockerfile, under its name.
    ignored = folder / f"{after.dockerfile}.dockerignore"
    if ignored.is_file():
        shutil.copyfile(ignored, place / "Dockerfile.dockerignore")
    return Context(folder, mended)


def _second_tree(folder: Path, after: Project, news: dict[str, str], place: Path) -> Context:
    _link_tree(folder, place)
    for path, text in news.items():
        if not _is_outside(path) and not _leads_out(place / path, place):
            _replace(place / path, text)
    if not _is_outside(after.dockerfile):
        return Context(place, place / after.dockerfile)
    _write(place.parent / "Dockerfile", after.text(after.dockerfile))
    return Context(place, place.parent / "Dockerfile")


def _is_outside(path: str) -> bool:
    """What is not in the context is not sent."""
    return path.startswith(("../", "/"))


def _leads_out(file: Path, place: Path) -> bool:
    """By a folder that is a link to elsewhere: engines do not follow it, and what is there is the user's."""
    return not file.parent.resolve().is_relative_to(place.resolve())


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        file.unlink()  # a link is the user's own file: it is replaced, never written to
    _write(file, text)


def _link_tree(folder: Path, place: Path) -> None:
    try:
        place.mkdir(parents=True)
        with os.scandir(folder) as entries:
            for entry in entries:
                goal = place / entry.name
                if entry.is_symlink():
                    goal.symlink_to(Path(entry.path).readlink())
                elif entry.is_dir():
                    _link_tree(Path(entry.path), goal)
                elif entry.is_file():
                    _link(Path(entry.path), goal)
        shutil.copystat(folder, place)  # COPY takes the modes of folders too
    except OSError as error:
        raise NotReadyError(
            f"the build context cannot be linked or copied: {error.strerror}: {error.filename or folder}",
            "make it readable, or set TMPDIR to a folder of the same file system",
        ) from error


def _link(source: Path, goal: Path) -> None:
    try:
        os.link(source, goal)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, goal)


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        out.write(text)

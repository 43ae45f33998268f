"""Load a project from a build context on disk, and write a fixed project back."""

import os
from collections.abc import Iterator, Sequence
from os.path import relpath
from pathlib import Path

from paceline.core.errors import ConfigError, ImageOptionError, Problem
from paceline.images.lint.check import changed_files
from paceline.images.lint.dependency_files import is_manifest, read_requirements
from paceline.images.lint.dockerfile import read_dockerfile, substituted
from paceline.images.lint.installs import pip_installs
from paceline.images.lint.project import DOCKERFILE, Project, Source
from paceline.images.lint.rules.secrets import is_secret_file

_PATTERNS = (
    "requirements*.txt",
    "constraints*.txt",
    "requirements/*.txt",
    "requirements*.in",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "environment*.y*ml",
    "conda*.y*ml",
)
_MAX_BYTES = 1_000_000
_NOT_ENTERED = (".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages")
_MAX_DEPTH = 4
_MAX_FILES = 20_000
_CODE = (".py", ".sh")
_MOST_CODE = 500


def load_project(folder: Path, dockerfile: Path | None = None, requirements: Sequence[Path] = ()) -> Project:
    """The Dockerfile, the requirement files that it may install, and the names of other files.

    `dockerfile` and `requirements` are relative to the folder, or absolute. Nothing is written.
    """
    if not folder.is_dir():
        raise ImageOptionError(
            [Problem(f"{folder} is not a folder", "name the folder of the build context", "DIR")]
        )
    file = folder / (dockerfile or DOCKERFILE)
    text = _text(file)
    name = _name(file, folder)
    sources = {name: Source(name, text)}
    required = [folder / name for name in requirements]
    for path in (*required, *filter(_is_readable, _dependency_files(folder)), *_named(folder, name, text)):
        _add(sources, folder, path, is_wanted=path in required)
    names = frozenset(entry.name for entry in folder.iterdir()).union(_secret_files(folder))
    listed = _listed(folder)
    code = [path for path in sorted(listed or ()) if path.endswith(_CODE) and path not in sources]
    return Project(
        files=tuple(sources.values()),
        dockerfile=name,
        names=names,
        code=tuple(_code(folder, code[:_MOST_CODE])),
        paths=listed,
        runnable=None if listed is None else frozenset(o for o in listed if os.access(folder / o, os.X_OK)),
    )


def _listed(folder: Path) -> frozenset[str] | None:
    """Every file below the folder; None for a context that is too large to list."""
    paths: set[str] = set()
    for directory, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_ENTERED]
        paths |= {_name(Path(directory) / name, folder) for name in files}
        if len(paths) > _MAX_FILES:
            return None
    return frozenset(paths)


def _code(folder: Path, paths: Sequence[str]) -> Iterator[Source]:
    for path in paths:
        if _is_readable(folder / path):
            yield Source(path, _text(folder / path))


def write_project(folder: Path, before: Project, after: Project) -> list[Path]:
    """Write what differs into the folder (the user's, or a copy of it)."""
    written = []
    for path, text in changed_files(before, after).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", newline="") as out:
            out.write(text)
        written.append(file)
    return written


def _dependency_files(folder: Path) -> list[Path]:
    paths = [path for pattern in _PATTERNS for path in sorted(folder.glob(pattern))]
    return [*paths, folder / ".dockerignore"]


def _secret_files(folder: Path) -> Iterator[str]:
    """Paths below the folder whose names suggest secrets; a large context is inspected in part."""
    looked_at = 0
    for directory, folders, files in os.walk(folder):
        depth = len(Path(directory).relative_to(folder).parts)
        folders[:] = (
            [name for name in sorted(folders) if name not in _NOT_ENTERED] if depth < _MAX_DEPTH else []
        )
        looked_at += len(files)
        if looked_at > _MAX_FILES:
            return
        for name in files:
            path = _name(Path(directory) / name, folder)
            if is_secret_file(path):
                yield path


def _named(folder: Path, name: str, text: str) -> Iterator[Path]:
    """Files that pip and conda are given, where a file of that path or that name is in the context."""
    docker = read_dockerfile(name, text)
    for stage in docker.stages:
        for step in stage.instructions:
            values = docker.variables(stage, step.first)
            for by in pip_installs(name, text, step, values):
                for path in by.values("requirement", "constraint"):
                    yield folder / path.lstrip("/")
                    yield folder / Path(path).name
            argv = [word for command in step.commands for word in command.texts]
            for path in [*argv, *(step.values[:-1] if step.word == "COPY" else ())]:
                if path.endswith((".yml", ".yaml")) and is_manifest(path):
                    yield folder / substituted(path, values).lstrip("/")


def _add(sources: dict[str, Source], folder: Path, file: Path, *, is_wanted: bool) -> None:
    name = _name(file, folder)
    if name in sources or not (is_wanted or _is_small_file(file)):
        return
    sources[name] = Source(name, _text(file))
    if file.suffix in (".txt", ".in"):
        for option in read_requirements(name, sources[name].text).options:
            if option.name in ("requirement", "constraint"):
                _add(sources, folder, file.parent / option.value, is_wanted=False)


def _is_small_file(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= _MAX_BYTES
    except OSError:  # a name that no file system takes, or a folder that may not be entered
        return False


def _is_readable(file: Path) -> bool:
    """An unreadable file that is merely in the Dockerfile's folder is no error."""
    if not _is_small_file(file):
        return False
    try:
        _text(file)
    except ConfigError:
        return False
    return True


def _name(file: Path, folder: Path) -> str:
    return Path(relpath(file, folder)).as_posix()


def _text(file: Path) -> str:
    """Text with unchanged line ends, so that they can be written back."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        hint = "name it with --dockerfile or --requirements, or change to the folder of the build context"
        raise ImageOptionError([Problem(f"there is no {file}", hint, str(file))]) from None
    except OSError as error:
        hint = "it must be a readable file"
        raise ImageOptionError(
            [Problem(f"{file} cannot be read: {error.strerror}", hint, str(file))]
        ) from error
    except UnicodeDecodeError as error:
        problem = Problem(f"{file} is not UTF-8 text: {error.reason}", "save it as UTF-8", str(file))
        raise ImageOptionError([problem]) from error

"""Rules about the build context: sources of COPY, and files that a project needs to be built (36, 29).

A context is checked only if every file of it is known and it holds code: a lone Dockerfile with its
requirements is no evidence of the other files.
"""

import posixpath
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase

from paceline.images.lint.dockerfile import Instruction, substituted
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.packages.spelling import is_one_letter_off
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.secrets import ignored_patterns, is_ignored
from paceline.images.lint.view import StageView

NOT_THERE = Pattern(
    number=36,
    id="not-in-context",
    what="COPY or ADD names a file or folder that the build context does not have.",
    fix="only reported: the name that is near, or the file",
)
PATTERNS = (NOT_THERE,)
_CODE = re.compile(r"\.(?:py|sh|ipynb|cpp|cu|go|rs|js|ts)$")


def has_code(view: StageView) -> bool:
    """The context is known, and it is that of a project."""
    paths = view.project.paths
    return paths is not None and any(_CODE.search(path) and path != "setup.py" for path in paths)


def copied_files(view: StageView, source: str) -> dict[str, str] | None:
    """Files of a source of COPY: path below the destination, path in the context; None if unknown."""
    paths = view.project.paths
    if paths is None or not has_code(view) or re.search(r"[$<\[?]|://", source):
        return None
    plain = _plain(source)
    patterns = ignored_patterns(view)
    kept = [path for path in paths if not is_ignored(path, patterns)]
    if "*" in plain:
        matched = [path for path in kept if fnmatchcase(path, plain) and path.count("/") == plain.count("/")]
        return {posixpath.basename(path): path for path in matched} or None
    if plain in paths:
        return {posixpath.basename(plain): plain} if plain in kept else {}
    below = {
        path[len(plain) + 1 :] if plain else path: path
        for path in kept
        if not plain or path.startswith(f"{plain}/")
    }
    return below or None


def _plain(source: str) -> str:
    return "/".join(part for part in source.strip("\"'").split("/") if part not in ("", ".", ".."))


def _sources(view: StageView, step: Instruction) -> list[str]:
    if step.word not in ("COPY", "ADD") or step.flag("from") is not None or len(step.values) < 2:
        return []
    values = view.docker.variables(view.stage, step.first)
    named = [substituted(source, values) for source in step.values[:-1]]
    return [
        source for source in named if not re.search(r"[$]|://|<<|^git@|^[~/]|\.\.", source) and _plain(source)
    ]


def _exists(source: str, paths: frozenset[str]) -> bool:
    plain = _plain(source)
    parts = [head for path in paths for head in _heads(path)]
    return any(fnmatchcase(part, plain) for part in parts) if re.search(r"[*?\[]", plain) else plain in parts


def _heads(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def not_in_context(view: StageView) -> Iterator[Finding]:
    paths = view.project.paths
    if paths is None:
        return
    everything = [
        source
        for stage in view.docker.stages
        for step in stage.instructions
        for source in _sources(view, step)
    ]
    existing = [source for source in everything if _exists(source, paths)]
    is_complete = has_code(view) and len(existing) * 2 >= len(everything) - 1
    for step in view.stage.instructions:
        missing = next((source for source in _sources(view, step) if not _exists(source, paths)), None)
        if missing is None or re.search(
            r"^\.git(?:/|$)|(?:^|/)(?:dist|build|target|wheels?)(?:/|$)|\.whl$", _plain(missing)
        ):
            continue
        near = _near(_plain(missing), paths)
        is_typo = bool(near) and (has_code(view) or is_one_letter_off(_plain(missing), near))
        yield NOT_THERE.finding(
            view,
            step,
            f"the build context has no {missing}: `failed to compute cache key: not found`",
            f"{step.word} {' '.join(step.values)}"[:120],
            f"write {near}" if near else "add it to the context, or correct its path",
            level=Level.PROBLEM if is_complete or is_typo else Level.NOTE,
        )


def _near(path: str, paths: frozenset[str]) -> str:
    """The same name in another folder or in other letters, or a name that differs by a letter or two."""
    known = sorted({head for path in paths for head in _heads(path)})
    name = posixpath.basename(path)
    same = [path for path in known if posixpath.basename(path).lower() == name.lower()]
    if len(same) == 1 and "." in name and name not in ("__init__.py", "README.md", "Dockerfile"):
        return same[0]
    close = get_close_matches(path, known, n=1, cutoff=0.88)
    is_version = bool(close) and re.sub(r"\d", "", close[0]) == re.sub(r"\d", "", path)
    return close[0] if close and not is_version else ""


# Build backends that read the README of the metadata, and that refuse a project without its package.
_STRICT = re.compile(r"hatchling|poetry|flit|pdm|uv_build")


def needed_files(view: StageView, by: PipInstall) -> Iterator[str]:
    """Paths, in addition to pyproject.toml, that building the project reads: relative to its folder."""
    if by.is_uv and not by.is_pip:
        if by.flags & {"--frozen", "--locked"}:
            yield "uv.lock"
        if by.flags & {"--no-install-project", "--no-install-workspace"}:
            return
    elif (by.tool == "poetry" and ("--no-root" in by.flags or "--only-root" in by.flags)) or (
        by.is_pip
        and not any(
            re.fullmatch(r"\./?(?:\[[\w,-]*\])?", t)
            for t in [*(a.text for a in by.specs), *by.values("editable")]
        )
    ):
        return
    text = view.project.code_text("pyproject.toml")
    yield from _needed_by(text) if text is not None else ()


def _needed_by(text: str) -> Iterator[str]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    project = document.get("project", {})
    build = document.get("build-system", {})
    backend = str(build.get("build-backend", "")) if isinstance(build, dict) else ""
    if not _STRICT.search(backend) or not isinstance(project, dict):
        return
    readme = project.get("readme")
    name = readme.get("file") if isinstance(readme, dict) else readme
    if isinstance(name, str):
        yield name
    package = re.sub(r"[-.]", "_", str(project.get("name", "")))
    chosen = re.search(
        r"packages|only-include|sources|include|module-name|force-include", str(document.get("tool", ""))
    )
    if package and chosen is None:
        yield f"{package}/__init__.py|src/{package}/__init__.py|{package}.py|{package}/__init__.pyi"


RULES = (not_in_context,)

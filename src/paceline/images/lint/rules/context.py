"""Rules about the build context: what COPY names, and what a project needs to be built (36, 29).

A context is judged only where every file of it is known and it holds code: a lone Dockerfile with its
requirements tells nothing about the files beside it.
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
from paceline.images.lint.rules.names import is_one_letter_off
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.secrets import ignored_patterns, is_ignored
from paceline.images.lint.view import Place

NOT_THERE = Pattern(
    number=36,
    id="not-in-context",
    what="COPY or ADD names a file or folder that the build context does not have.",
    fix="only reported: the name that is near, or the file",
)
PATTERNS = (NOT_THERE,)
_CODE = re.compile(r"\.(?:py|sh|ipynb|cpp|cu|go|rs|js|ts)$")


def has_code(place: Place) -> bool:
    """The context is known, and it is that of a project."""
    paths = place.project.paths
    return paths is not None and any(_CODE.search(one) and one != "setup.py" for one in paths)


def copied_files(place: Place, source: str) -> dict[str, str] | None:
    """What a source of COPY brings: path below the goal, path in the context; None where it is not known."""
    paths = place.project.paths
    if paths is None or not has_code(place) or re.search(r"[$<\[?]|://", source):
        return None
    plain = _plain(source)
    patterns = ignored_patterns(place)
    kept = [one for one in paths if not is_ignored(one, patterns)]
    if "*" in plain:
        matched = [one for one in kept if fnmatchcase(one, plain) and one.count("/") == plain.count("/")]
        return {posixpath.basename(one): one for one in matched} or None
    if plain in paths:
        return {posixpath.basename(plain): plain} if plain in kept else {}
    below = {
        one[len(plain) + 1 :] if plain else one: one
        for one in kept
        if not plain or one.startswith(f"{plain}/")
    }
    return below or None


def _plain(source: str) -> str:
    return "/".join(part for part in source.strip("\"'").split("/") if part not in ("", ".", ".."))


def _sources(place: Place, step: Instruction) -> list[str]:
    if step.word not in ("COPY", "ADD") or step.flag("from") is not None or len(step.values) < 2:
        return []
    values = place.docker.variables(place.stage, step.first)
    named = [substituted(one, values) for one in step.values[:-1]]
    return [one for one in named if not re.search(r"[$]|://|<<|^git@|^[~/]|\.\.", one) and _plain(one)]


def _exists(source: str, paths: frozenset[str]) -> bool:
    plain = _plain(source)
    parts = [one for path in paths for one in _heads(path)]
    return any(fnmatchcase(one, plain) for one in parts) if re.search(r"[*?\[]", plain) else plain in parts


def _heads(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def not_in_context(place: Place) -> Iterator[Finding]:
    paths = place.project.paths
    if paths is None:
        return
    everything = [
        one for stage in place.docker.stages for step in stage.instructions for one in _sources(place, step)
    ]
    there = [one for one in everything if _exists(one, paths)]
    is_complete = has_code(place) and len(there) * 2 >= len(everything) - 1
    for step in place.stage.instructions:
        missing = next((one for one in _sources(place, step) if not _exists(one, paths)), None)
        if missing is None or re.search(
            r"^\.git(?:/|$)|(?:^|/)(?:dist|build|target|wheels?)(?:/|$)|\.whl$", _plain(missing)
        ):
            continue
        near = _near(_plain(missing), paths)
        is_typo = bool(near) and (has_code(place) or is_one_letter_off(_plain(missing), near))
        yield NOT_THERE.found(
            place,
            step,
            f"the build context has no {missing}: `failed to compute cache key: not found`",
            f"{step.word} {' '.join(step.values)}"[:120],
            f"write {near}" if near else "add it to the context, or correct its path",
            level=Level.PROBLEM if is_complete or is_typo else Level.NOTE,
        )


def _near(path: str, paths: frozenset[str]) -> str:
    """The same name in another folder or in other letters, or a name that differs by a letter or two."""
    known = sorted({head for one in paths for head in _heads(one)})
    name = posixpath.basename(path)
    same = [one for one in known if posixpath.basename(one).lower() == name.lower()]
    if len(same) == 1 and "." in name and name not in ("__init__.py", "README.md", "Dockerfile"):
        return same[0]
    close = get_close_matches(path, known, n=1, cutoff=0.88)
    is_version = bool(close) and re.sub(r"\d", "", close[0]) == re.sub(r"\d", "", path)
    return close[0] if close and not is_version else ""


# Build backends that read the README of the metadata, and that refuse a project without its package.
_STRICT = re.compile(r"hatchling|poetry|flit|pdm|uv_build")


def needed_files(place: Place, by: PipInstall) -> Iterator[str]:
    """Paths, beside the project's own pyproject.toml, that building it reads: relative to its folder."""
    if by.is_uv and not by.is_pip:
        if by.flags & {"--frozen", "--locked"}:
            yield "uv.lock"
        if by.flags & {"--no-install-project", "--no-install-workspace"}:
            return
    elif (by.tool == "poetry" and ("--no-root" in by.flags or "--only-root" in by.flags)) or (
        by.is_pip
        and not any(
            re.fullmatch(r"\./?(?:\[[\w,-]*\])?", t)
            for t in [*(a.text for a in by.asked), *by.values("editable")]
        )
    ):
        return
    text = place.project.code_text("pyproject.toml")
    yield from _needed_by(text) if text is not None else ()


def _needed_by(text: str) -> Iterator[str]:
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    project, build = said.get("project", {}), said.get("build-system", {})
    backend = str(build.get("build-backend", "")) if isinstance(build, dict) else ""
    if not _STRICT.search(backend) or not isinstance(project, dict):
        return
    readme = project.get("readme")
    name = readme.get("file") if isinstance(readme, dict) else readme
    if isinstance(name, str):
        yield name
    package = re.sub(r"[-.]", "_", str(project.get("name", "")))
    chosen = re.search(
        r"packages|only-include|sources|include|module-name|force-include", str(said.get("tool", ""))
    )
    if package and chosen is None:
        yield f"{package}/__init__.py|src/{package}/__init__.py|{package}.py|{package}/__init__.pyi"


RULES = (not_in_context,)

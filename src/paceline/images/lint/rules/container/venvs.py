"""Rules about virtual environments that are copied into a stage without the Python they were made by (29).

`bin/python` of an environment is a link to the interpreter that made it, and its packages lie below
`lib/python3.N`. A copy works only where the same path has the same minor version. An interpreter is a folder
and a version; where either cannot be told, nothing is reported.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.dockerfile import Instruction, Stage, substituted
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.commands import OTHER_PYTHON
from paceline.images.lint.rules.paths import joined
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place, places

PATTERNS: tuple[Pattern, ...] = ()
_LOCAL = "/usr/local/bin"
_SYSTEM = "/usr/bin"
_UV_FOLDER = "/root/.local/share/uv/python"
_UV_IMAGE = re.compile(r"^ghcr\.io/astral-sh/uv$|^astral/uv$")
_BUILDS_PYTHON = re.compile(
    r"pyenv|Python-3|altinstall|update-alternatives|\.deb$|^spack$|^nix|deadsnakes-|^make$|\.run$|mise|asdf"
)


class Interpreter(NamedTuple):
    folder: str
    version: str  # "3.11"; "": not known


def environment_without_python(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        source = _source_of(place, step)
        if source is None or len(step.values) < 2:
            continue
        for written in step.values[:-1]:
            path = substituted(written, source.variables).rstrip("/")
            made_by = _maker(source, path)
            why = "" if made_by is None else _why_broken(place, step, made_by)
            if made_by is None or not why:
                continue
            yield OTHER_PYTHON.found(
                place,
                step,
                f"{path} was made by {_shown(made_by)}, and {why}: `No module named …`, or no Python",
                f"FROM {source.base.reference}; FROM {place.base.reference}",
                "use the same Python in both stages",
            )
            return


def _shown(one: Interpreter) -> str:
    name = f"Python {one.version}" if one.version else "the Python"
    return f"{name} in {one.folder}"


def copied_stages(place: Place) -> list[Place]:
    """The earlier stages that this one copies from."""
    sources = [_source_of(place, step) for step in place.stage.instructions]
    return [source for source in sources if source is not None]


def _source_of(place: Place, step: Instruction) -> Place | None:
    name = step.flag("from") if step.word == "COPY" else None
    stages: list[Stage] = [
        one
        for one in place.docker.stages[: place.stage.number]
        if name and name.lower() in (one.name, str(one.number))
    ]
    if not stages:
        return None
    return next(one for one in places(place.project, place.target) if one.stage.number == stages[-1].number)


def _maker(source: Place, path: str) -> Interpreter | None:
    """The interpreter that made the environment at a path of another stage; None where it cannot be told."""
    folder: str | None = "/"
    maker: Interpreter | None = None
    for step in source.steps:
        values = source.docker.variables(source.stage, step.first)
        if step.word == "WORKDIR" and step.values:
            folder = joined(folder, substituted(step.values[0].strip("\"'"), values))
        for command in step.commands:
            words = [substituted(word, values) for word in command.texts]
            made = _environment_made(words, values)
            target = None if made is None else joined(folder, made)
            if target is not None and path and f"{target}/".startswith(f"{path}/"):
                maker = _interpreter_of(source, words, values)
    return maker


def _environment_made(words: list[str], values: dict[str, str]) -> str | None:
    """The path of the environment that a command makes."""
    while words and re.match(r"^\w+=", words[0]):
        words = words[1:]
    name = posixpath.basename(words[0]) if words else ""
    plain = [word for word in words if not word.startswith("-")]
    if re.fullmatch(r"python[\d.]*", name) and words[1:3] in (["-m", "venv"], ["-m", "virtualenv"]):
        return plain[-1] if "--copies" not in words else None
    if name == "virtualenv" and len(plain) > 1:
        return plain[-1]
    if name == "uv" and words[1:2] == ["venv"]:
        behind = [
            word
            for at, word in enumerate(words[2:], 2)
            if not word.startswith("-") and words[at - 1] not in ("--python", "-p", "--prompt")
        ]
        return behind[0] if behind else ".venv"
    if name == "uv" and words[1:2] == ["sync"] and "VIRTUAL_ENV" not in values:
        return values.get("UV_PROJECT_ENVIRONMENT", ".venv")
    return None


def _interpreter_of(source: Place, words: list[str], values: dict[str, str]) -> Interpreter | None:
    while words and re.match(r"^\w+=", words[0]):
        words = words[1:]
    program = words[0]
    if posixpath.basename(program) == "uv":
        return _chosen_by_uv(source, words, values)
    if posixpath.basename(program) == "virtualenv":
        named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-p", "--python")]
        program = named[0] if named else "python3"
    return _resolved(source, program)


def _chosen_by_uv(source: Place, words: list[str], values: dict[str, str]) -> Interpreter | None:
    """uv takes a Python of the system that fits, and downloads one of its own where none does."""
    asked = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-p", "--python")]
    asked += [word.partition("=")[2] for word in words if word.startswith("--python=")]
    chosen = asked[0] if asked else values.get("UV_PYTHON", "")
    if "/" in chosen:
        return _resolved(source, chosen)
    number = re.search(r"3\.\d+", chosen)
    wanted = number[0] if number else ""
    if ".python-version" in source.project.names and not wanted:
        return None
    own = _resolved(source, "python3")
    managed = values.get("UV_PYTHON_INSTALL_DIR", _UV_FOLDER)
    if values.get("UV_MANAGED_PYTHON") or "managed" in values.get("UV_PYTHON_PREFERENCE", ""):
        return Interpreter(managed, wanted)
    if "--managed-python" in words or re.search(r"\bpython install\b", " ".join(source.words)):
        return Interpreter(managed, wanted)
    if own is not None:
        fits = not wanted or own.version == wanted
        return own if fits else (Interpreter(managed, wanted) if own.version else None)
    has_none = source.base.family in ("debian", "ubuntu", "cuda") and not _pythons_of_apt(source)
    return Interpreter(managed, wanted) if has_none and source.are_packages_known else None


def _resolved(place: Place, program: str) -> Interpreter | None:
    """The interpreter that a name, or a path, of a stage means."""
    name = posixpath.basename(program)
    exact = re.fullmatch(r"python(3\.\d+)", name)
    if place.has_conda or any(_BUILDS_PYTHON.search(word) for word in place.words):
        return None
    version = exact[1] if exact else ""
    base = place.base
    folder = posixpath.dirname(program)
    if folder and folder not in (_LOCAL, _SYSTEM):
        return None
    uv_image = re.match(r"python(3\.\d+)", base.tag or "") if _UV_IMAGE.match(base.name) else None
    local = base.python if base.family == "python" else (uv_image[1] if uv_image else None)
    if local is not None and folder != _SYSTEM and version in ("", local):
        return Interpreter(_LOCAL, local)
    if base.family in ("debian", "ubuntu", "cuda") and folder != _LOCAL and _pythons_of_apt(place):
        system = "" if base.python is None else base.python
        if not version:
            return Interpreter(_SYSTEM, system) if system else None
        return Interpreter(_SYSTEM, version)
    return None


def _pythons_of_apt(place: Place) -> set[str]:
    """Versions that packages of apt bring; the system's own as ""."""
    brought = set()
    for package in place.system_packages:
        exact = re.match(r"^python(3\.\d+)", package)
        if exact is not None:
            brought.add(exact[1])
        elif re.match(r"^python3(?:-|$)|^python-is-python3$|^virtualenv$", package):
            brought.add("")
    return brought


def _why_broken(place: Place, step: Instruction, made_by: Interpreter) -> str:
    """Why the interpreter is not in this stage, or is another; "" where it may be there."""
    base = place.base
    if not place.are_packages_known or place.has_conda or _brings_folder(place, step, made_by.folder):
        return ""
    if any(_BUILDS_PYTHON.search(word) for word in place.words):
        return ""
    if made_by.folder == _LOCAL:
        uv_image = re.match(r"python(3\.\d+)", base.tag or "") if _UV_IMAGE.match(base.name) else None
        mine = base.python if base.family == "python" else (uv_image[1] if uv_image else None)
        if mine is not None:
            return f"this stage has {mine}" if made_by.version not in ("", mine) else ""
        is_other = base.family in ("debian", "ubuntu", "cuda", "pytorch")
        return f"{base.reference} has no Python in {_LOCAL}" if is_other else ""
    if made_by.folder == _SYSTEM:
        return _why_not_in_system(place, made_by)
    is_known = base.family in ("python", "debian", "ubuntu", "cuda", "pytorch")
    installs = any(posixpath.basename(word) == "uv" for word in place.words)
    return f"{made_by.folder} is not copied" if is_known and not installs else ""


def _why_not_in_system(place: Place, made_by: Interpreter) -> str:
    base = place.base
    if base.family == "python":
        has_none = base.is_slim and not _pythons_of_apt(place)
        return f"{base.reference} has no Python in {_SYSTEM}" if has_none else ""
    if base.family not in ("debian", "ubuntu", "cuda"):
        return ""
    brought = _pythons_of_apt(place)
    if not brought:
        brings = any(re.search(r"python", package) for package in place.system_packages)
        return "" if brings else f"no step installs a Python in {_SYSTEM}"
    versions = {version or base.python or "" for version in brought}
    is_there = not made_by.version or made_by.version in versions or "" in versions
    return "" if is_there else f"this stage has {', '.join(sorted(versions))}"


def _brings_folder(place: Place, environment: Instruction, folder: str) -> bool:
    """Another copy brings the interpreter's folder, or one above it."""
    for step in place.steps:
        if step.word not in ("COPY", "ADD") or step is environment or not step.values:
            continue
        goal = substituted(step.values[-1], place.variables).rstrip("/") or "/"
        goals = {
            goal,
            *(posixpath.join(goal, posixpath.basename(value.rstrip("/"))) for value in step.values[:-1]),
        }
        is_foreign = step.flag("from") is not None
        if is_foreign and any(f"{folder}/".startswith(f"{one.rstrip('/')}/") for one in goals):
            only_uv = all(re.search(r"/uvx?$", value) for value in step.values[:-1])
            if not only_uv:
                return True
    return False


RULES = (environment_without_python,)

"""Rules about virtual environments that are copied into a stage without the Python they were made by (29).

`bin/python` of an environment is a link to the interpreter that made it, and its packages lie below
`lib/python3.N`. A copy works only where the same path has the same minor version. An interpreter is a folder
and a version; where either cannot be determined, nothing is reported.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.bases import Base
from paceline.images.lint.dockerfile import Instruction, Stage, substituted
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.commands import OTHER_PYTHON
from paceline.images.lint.rules.paths import joined
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView, stage_views

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


def environment_without_python(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        source = _source_of(view, step)
        if source is None or len(step.values) < 2:
            continue
        for written in step.values[:-1]:
            path = substituted(written, source.variables).rstrip("/")
            made_by = _maker(source, path)
            why = "" if made_by is None else _why_broken(view, step, made_by)
            if made_by is None or not why:
                continue
            yield OTHER_PYTHON.finding(
                view,
                step,
                f"{path} was created by {_shown(made_by)}, and {why}: `No module named …`, or no Python",
                f"FROM {source.base.reference}; FROM {view.base.reference}",
                "use the same Python in both stages",
            )
            return


def _shown(interpreter: Interpreter) -> str:
    name = f"Python {interpreter.version}" if interpreter.version else "the Python"
    return f"{name} in {interpreter.folder}"


def copied_stages(view: StageView) -> list[StageView]:
    """The earlier stages that this one copies from."""
    sources = [_source_of(view, step) for step in view.stage.instructions]
    return [source for source in sources if source is not None]


def _source_of(view: StageView, step: Instruction) -> StageView | None:
    name = step.flag("from") if step.word == "COPY" else None
    stages: list[Stage] = [
        stage
        for stage in view.docker.stages[: view.stage.number]
        if name and name.lower() in (stage.name, str(stage.number))
    ]
    if not stages:
        return None
    return next(
        candidate
        for candidate in stage_views(view.project, view.target)
        if candidate.stage.number == stages[-1].number
    )


def _maker(source: StageView, path: str) -> Interpreter | None:
    """The interpreter that made the environment at a path of another stage; None where it cannot be told."""
    folder: str | None = "/"
    maker: Interpreter | None = None
    for step in source.steps:
        values = source.docker.variables(source.stage, step.first)
        if step.word == "WORKDIR" and step.values:
            folder = joined(folder, substituted(step.values[0].strip("\"'"), values))
        for command in step.commands:
            argv = [substituted(word, values) for word in command.texts]
            venv = _environment_made(argv, values)
            target = None if venv is None else joined(folder, venv)
            if target is not None and path and f"{target}/".startswith(f"{path}/"):
                maker = _interpreter_of(source, argv, values)
    return maker


def _environment_made(argv: list[str], values: dict[str, str]) -> str | None:
    """The path of the environment that a command makes."""
    while argv and re.match(r"^\w+=", argv[0]):
        argv = argv[1:]
    name = posixpath.basename(argv[0]) if argv else ""
    plain = [word for word in argv if not word.startswith("-")]
    if re.fullmatch(r"python[\d.]*", name) and argv[1:3] in (["-m", "venv"], ["-m", "virtualenv"]):
        return plain[-1] if "--copies" not in argv else None
    if name == "virtualenv" and len(plain) > 1:
        return plain[-1]
    if name == "uv" and argv[1:2] == ["venv"]:
        behind = [
            word
            for at, word in enumerate(argv[2:], 2)
            if not word.startswith("-") and argv[at - 1] not in ("--python", "-p", "--prompt")
        ]
        return behind[0] if behind else ".venv"
    if name == "uv" and argv[1:2] == ["sync"] and "VIRTUAL_ENV" not in values:
        return values.get("UV_PROJECT_ENVIRONMENT", ".venv")
    return None


def _interpreter_of(source: StageView, argv: list[str], values: dict[str, str]) -> Interpreter | None:
    while argv and re.match(r"^\w+=", argv[0]):
        argv = argv[1:]
    program = argv[0]
    if posixpath.basename(program) == "uv":
        return _chosen_by_uv(source, argv, values)
    if posixpath.basename(program) == "virtualenv":
        named = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in ("-p", "--python")]
        program = named[0] if named else "python3"
    return _resolved(source, program)


def _chosen_by_uv(source: StageView, argv: list[str], values: dict[str, str]) -> Interpreter | None:
    """uv takes a Python of the system that fits, and downloads one of its own where none does."""
    pythons = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in ("-p", "--python")]
    pythons += [word.partition("=")[2] for word in argv if word.startswith("--python=")]
    chosen = pythons[0] if pythons else values.get("UV_PYTHON", "")
    if "/" in chosen:
        return _resolved(source, chosen)
    number = re.search(r"3\.\d+", chosen)
    version = number[0] if number else ""
    if ".python-version" in source.project.names and not version:
        return None
    own = _resolved(source, "python3")
    managed = values.get("UV_PYTHON_INSTALL_DIR", _UV_FOLDER)
    if values.get("UV_MANAGED_PYTHON") or "managed" in values.get("UV_PYTHON_PREFERENCE", ""):
        return Interpreter(managed, version)
    if "--managed-python" in argv or re.search(r"\bpython install\b", " ".join(source.words)):
        return Interpreter(managed, version)
    if own is not None:
        if not version or own.version == version:
            return own
        return Interpreter(managed, version) if own.version else None
    has_none = source.base.family in ("debian", "ubuntu", "cuda") and not _pythons_of_apt(source)
    return Interpreter(managed, version) if has_none and source.are_packages_known else None


def _resolved(view: StageView, program: str) -> Interpreter | None:
    """The interpreter that a name, or a path, of a stage means."""
    name = posixpath.basename(program)
    exact = re.fullmatch(r"python(3\.\d+)", name)
    if view.has_conda or any(_BUILDS_PYTHON.search(word) for word in view.words):
        return None
    version = exact[1] if exact else ""
    base = view.base
    folder = posixpath.dirname(program)
    if folder and folder not in (_LOCAL, _SYSTEM):
        return None
    local = _python_in_local(base)
    if local is not None and folder != _SYSTEM and version in ("", local):
        return Interpreter(_LOCAL, local)
    if base.family in ("debian", "ubuntu", "cuda") and folder != _LOCAL and _pythons_of_apt(view):
        system = "" if base.python is None else base.python
        if not version:
            return Interpreter(_SYSTEM, system) if system else None
        return Interpreter(_SYSTEM, version)
    return None


def _pythons_of_apt(view: StageView) -> set[str]:
    """Versions that packages of apt bring; the system's own as ""."""
    versions = set()
    for package in view.system_packages:
        exact = re.match(r"^python(3\.\d+)", package)
        if exact is not None:
            versions.add(exact[1])
        elif re.match(r"^python3(?:-|$)|^python-is-python3$|^virtualenv$", package):
            versions.add("")
    return versions


def _python_in_local(base: Base) -> str | None:
    """The version of Python in /usr/local of an image of python or uv; None: another image, or unknown."""
    if base.family == "python":
        return base.python
    of_uv = re.match(r"python(3\.\d+)", base.tag or "") if _UV_IMAGE.match(base.name) else None
    return of_uv[1] if of_uv else None


def _why_broken(view: StageView, step: Instruction, made_by: Interpreter) -> str:
    """Why the interpreter is not in this stage, or is another; "" where it may be there."""
    base = view.base
    if not view.are_packages_known or view.has_conda or _brings_folder(view, step, made_by.folder):
        return ""
    if any(_BUILDS_PYTHON.search(word) for word in view.words):
        return ""
    if made_by.folder == _LOCAL:
        python = _python_in_local(base)
        if python is not None:
            return f"this stage has {python}" if made_by.version not in ("", python) else ""
        is_other = base.family in ("debian", "ubuntu", "cuda", "pytorch")
        return f"{base.reference} has no Python in {_LOCAL}" if is_other else ""
    if made_by.folder == _SYSTEM:
        return _why_not_in_system(view, made_by)
    is_known = base.family in ("python", "debian", "ubuntu", "cuda", "pytorch")
    installs = any(posixpath.basename(word) == "uv" for word in view.words)
    return f"{made_by.folder} is not copied" if is_known and not installs else ""


def _why_not_in_system(view: StageView, made_by: Interpreter) -> str:
    base = view.base
    if base.family == "python":
        has_none = base.is_slim and not _pythons_of_apt(view)
        return f"{base.reference} has no Python in {_SYSTEM}" if has_none else ""
    if base.family not in ("debian", "ubuntu", "cuda"):
        return ""
    installed = _pythons_of_apt(view)
    if not installed:
        brings = any(re.search(r"python", package) for package in view.system_packages)
        return "" if brings else f"no step installs a Python in {_SYSTEM}"
    versions = {version or base.python or "" for version in installed}
    is_there = not made_by.version or made_by.version in versions or "" in versions
    return "" if is_there else f"this stage has {', '.join(sorted(versions))}"


def _brings_folder(view: StageView, environment: Instruction, folder: str) -> bool:
    """Another copy brings the interpreter's folder, or one above it."""
    for step in view.steps:
        if step.word not in ("COPY", "ADD") or step is environment or not step.values:
            continue
        goal = substituted(step.values[-1], view.variables).rstrip("/") or "/"
        goals = {
            goal,
            *(posixpath.join(goal, posixpath.basename(value.rstrip("/"))) for value in step.values[:-1]),
        }
        is_foreign = step.flag("from") is not None
        if is_foreign and any(f"{folder}/".startswith(f"{goal.rstrip('/')}/") for goal in goals):
            only_uv = all(re.search(r"/uvx?$", value) for value in step.values[:-1])
            if not only_uv:
                return True
    return False


RULES = (environment_without_python,)

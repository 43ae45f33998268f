"""Advice of other tools on an image: uv's about versions, hadolint's about the Dockerfile.

Both are optional, and neither may stop a check: what they could not do is told in words.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core import environ
from paceline.core.errors import MissingPackageError
from paceline.core.redaction import redact
from paceline.images.lint.check import findings_from_log
from paceline.images.lint.project import Finding, Level, Project, Target
from paceline.images.lint.view import Installed, Place, places


def uv_command() -> list[str]:
    found = find_program("uv")
    if found is None:
        raise MissingPackageError("resolving needs uv, which is not installed", "pip install uv")
    return [found]


def find_program(name: str) -> str | None:
    """The program's path: on the search path, or beside this Python (a virtual environment not activated)."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def uv_environment() -> dict[str, str]:
    """uv downloads no Python of its own, and trusts the certificates that pip was told to trust."""
    env = environ.for_child()
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    if "PIP_INDEX_URL" in env and "UV_DEFAULT_INDEX" not in env:
        env.setdefault("UV_INDEX_URL", env["PIP_INDEX_URL"])
    return env


_RESOLVE_LIMIT_S = 60
_LINT_LIMIT_S = 20
_PYTHONS = ("3.12", "3.11", "3.10", "3.13")  # where the image does not tell its own
_NOT_REACHED = re.compile(
    r"Failed to fetch|error sending request|dns error|Could not connect|timed out|Network connectivity", re.I
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What hadolint says of one line."""

    code: str
    level: str
    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be asked


def resolve(project: Project, target: Target) -> Resolved:
    """Do the versions of each stage have a solution at all? Asked of uv and the configured index.

    Each command is asked for alone, as pip would, and with the image's own Python. Where the text does not
    tell that one, the versions are refused only if no Python in use today has a solution.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    for place in places(project, target):
        for wanted in _commands(place):
            said = _refusal(place, wanted)
            if said is None:
                continue
            if _NOT_REACHED.search(said):
                notes.append(f"the index could not be asked: {_last_line(said)}")
            else:
                findings += _refused(said, project, target, place, wanted)
    return Resolved(findings=tuple(findings), notes=tuple(notes))


def _commands(place: Place) -> list[list[Installed]]:
    """What each command of the stage asks for; not where a lock file or `--no-deps` decides."""
    found: dict[int, list[Installed]] = {}
    for one in place.own:
        is_free = one.by.is_pip and not one.by.flags & {"--no-deps"}
        if one.asked.requirement is not None and one.asked.requirement.url is None and is_free:
            found.setdefault(id(one.by), []).append(one)
    return list(found.values())


def _refusal(place: Place, wanted: list[Installed]) -> str | None:
    """What uv says against it on the image's Python, or on every one that it may be; None: a solution."""
    said: str | None = None
    for python in [place.python] if place.python is not None else _PYTHONS:
        said = _compile(place, wanted, python)
        if said is None or _NOT_REACHED.search(said):
            break
    return said


def _compile(place: Place, wanted: list[Installed], python: str) -> str | None:
    """What uv says against it on this Python; None: there is a solution."""
    is_musl = place.base.system == "alpine"
    platform = "x86_64-unknown-linux-musl" if is_musl else "x86_64-manylinux_2_28"
    command = [*uv_command(), "pip", "compile", "-", "--python-platform", platform, "--no-header"]
    command += ["--python-version", python, "--quiet"]
    for address in dict.fromkeys(
        a for one in wanted for a in place.indexes(one) if "://" in a and "$" not in a
    ):
        command += ["--extra-index-url", address, "--index-strategy", "unsafe-best-match"]
    text = "\n".join(dict.fromkeys(str(one.asked.requirement) for one in wanted))
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_RESOLVE_LIMIT_S,
            check=False,
            env=uv_environment(),
            cwd=tempfile.gettempdir(),  # the settings of a project one stands in are not the image's
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {_RESOLVE_LIMIT_S} s"
    return None if done.returncode == 0 else done.stderr


def _refused(
    said: str, project: Project, target: Target, place: Place, wanted: list[Installed]
) -> list[Finding]:
    flat = redact(" ".join(said.split()))
    known = [
        replace(one, evidence=f"uv says: {flat[-400:]}") for one in findings_from_log(flat, project, target)
    ]
    first = wanted[0].asked
    return known or [
        Finding(
            id="unresolvable",
            pattern=17,
            level=Level.PROBLEM,
            path=first.path,
            line=first.line,
            why=f"the versions that stage {place.stage.number + 1} asks for have no solution",
            evidence=f"uv says: {flat[-600:]}",
            advice="loosen one of the pins that it names",
        )
    ]


def lint(project: Project) -> tuple[list[Advice], str | None]:
    """hadolint's advice, and why there is none, if there is none."""
    program = find_program("hadolint")
    if program is None:
        return [], None
    try:
        done = subprocess.run(
            [program, "--no-fail", "--format", "json", "-"],
            input=project.text(project.dockerfile),
            capture_output=True,
            text=True,
            timeout=_LINT_LIMIT_S,
            check=False,
        )
        said = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError, OSError) as error:
        return [], f"hadolint gave no advice: {type(error).__name__}"
    rows = [row for row in said if row["code"] != "DL1000"]
    broken = [row["message"].splitlines()[0] for row in said if row["code"] == "DL1000"]
    advice = [Advice(row["code"], row["level"], int(row["line"]), row["message"]) for row in rows]
    return advice, f"hadolint cannot read the Dockerfile: {broken[0]}" if broken else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no answer"

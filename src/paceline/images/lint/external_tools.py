"""Advice of other tools on an image: uv's about versions, hadolint's about the Dockerfile.

Both are optional, and neither may stop a check: failures are reported as notes.
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
from paceline.images.lint.view import Installed, StageView, stage_views


def uv_command() -> list[str]:
    program = find_program("uv")
    if program is None:
        raise MissingPackageError("resolving needs uv, which is not installed", "pip install uv")
    return [program]


def find_program(name: str) -> str | None:
    """The program's path: on the search path, or next to this Python (inactive virtual environment)."""
    sibling = Path(sys.executable).parent / name
    return shutil.which(name) or (str(sibling) if os.access(sibling, os.X_OK) else None)


def uv_environment() -> dict[str, str]:
    """Variables for uv: no download of a Python, and trust in the certificates configured for pip."""
    env = environ.for_child()
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    if "PIP_INDEX_URL" in env and "UV_DEFAULT_INDEX" not in env:
        env.setdefault("UV_INDEX_URL", env["PIP_INDEX_URL"])
    return env


_RESOLVE_LIMIT_S = 60
_LINT_LIMIT_S = 20
_PYTHONS = ("3.12", "3.11", "3.10", "3.13")  # if the Python of the image is unknown
_NOT_REACHED = re.compile(
    r"Failed to fetch|error sending request|dns error|Could not connect|timed out|Network connectivity", re.I
)


@dataclass(frozen=True, slots=True)
class Advice:
    """Finding of hadolint for one line."""

    code: str
    level: str
    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # checks that could not run


def resolve(project: Project, target: Target) -> Resolved:
    """Whether the versions of each stage have a solution, by uv and the configured index.

    Each command is resolved alone, as by pip, and with the image's own Python. If that is unknown, the
    versions are refused only if no Python in use today has a solution.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    for view in stage_views(project, target):
        for packages in _commands(view):
            refusal = _refusal(view, packages)
            if refusal is None:
                continue
            if _NOT_REACHED.search(refusal):
                notes.append(f"the index could not be queried: {_last_line(refusal)}")
            else:
                findings += _refused(refusal, project, target, view, packages)
    return Resolved(findings=tuple(findings), notes=tuple(notes))


def _commands(view: StageView) -> list[list[Installed]]:
    """Packages of each command of the stage; without commands with a lock file or `--no-deps`."""
    by_command: dict[int, list[Installed]] = {}
    for package in view.own:
        is_free = package.by.is_pip and not package.by.flags & {"--no-deps"}
        if package.spec.requirement is not None and package.spec.requirement.url is None and is_free:
            by_command.setdefault(id(package.by), []).append(package)
    return list(by_command.values())


def _refusal(view: StageView, packages: list[Installed]) -> str | None:
    """uv's error on the image's Python, or on every possible one; None if there is a solution."""
    refusal: str | None = None
    for python in [view.python] if view.python is not None else _PYTHONS:
        refusal = _compile(view, packages, python)
        if refusal is None or _NOT_REACHED.search(refusal):
            break
    return refusal


def _compile(view: StageView, packages: list[Installed], python: str) -> str | None:
    """uv's error on this Python; None if there is a solution."""
    is_musl = view.base.system == "alpine"
    platform = "x86_64-unknown-linux-musl" if is_musl else "x86_64-manylinux_2_28"
    command = [*uv_command(), "pip", "compile", "-", "--python-platform", platform, "--no-header"]
    command += ["--python-version", python, "--quiet"]
    for address in dict.fromkeys(
        a for package in packages for a in view.indexes(package) if "://" in a and "$" not in a
    ):
        command += ["--extra-index-url", address, "--index-strategy", "unsafe-best-match"]
    text = "\n".join(dict.fromkeys(str(package.spec.requirement) for package in packages))
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_RESOLVE_LIMIT_S,
            check=False,
            env=uv_environment(),
            cwd=tempfile.gettempdir(),  # settings of a project in the current folder are not the image's
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {_RESOLVE_LIMIT_S} s"
    return None if done.returncode == 0 else done.stderr


def _refused(
    refusal: str, project: Project, target: Target, view: StageView, packages: list[Installed]
) -> list[Finding]:
    flat = redact(" ".join(refusal.split()))
    known = [
        replace(finding, evidence=f"uv: {flat[-400:]}")
        for finding in findings_from_log(flat, project, target)
    ]
    first = packages[0].spec
    return known or [
        Finding(
            id="unresolvable",
            pattern=17,
            level=Level.PROBLEM,
            path=first.path,
            line=first.line,
            why=f"the requirements of stage {view.stage.number + 1} have no solution",
            evidence=f"uv: {flat[-600:]}",
            advice="relax one of the pins that it names",
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
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError, OSError) as error:
        return [], f"hadolint gave no advice: {type(error).__name__}"
    rows = [row for row in report if row["code"] != "DL1000"]
    broken = [row["message"].splitlines()[0] for row in report if row["code"] == "DL1000"]
    advice = [Advice(row["code"], row["level"], int(row["line"]), row["message"]) for row in rows]
    return advice, f"hadolint cannot read the Dockerfile: {broken[0]}" if broken else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no response"

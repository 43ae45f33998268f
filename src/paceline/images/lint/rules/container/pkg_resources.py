"""The rule about pkg_resources, which setuptools 82 removed in February 2026 (41).

The module is there where the setuptools of the image is older: bundled with a Python before 3.12, pinned, or
held back by a constraint. It is missing where setuptools is upgraded or newly installed without a bound.
"""

import re
from collections.abc import Iterator
from datetime import date

from packaging.version import Version

from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.container.code import NO_MODULE, installed_names
from paceline.images.lint.rules.container.imports import imports_of
from paceline.images.lint.rules.container.script import Start, start_of
from paceline.images.lint.rules.container.venvs import copied_stages
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

PATTERNS: tuple[Pattern, ...] = ()
_REMOVED_ON = date(2026, 2, 8)
_WITHOUT = ("82.0.0", "82.0.1", "83.0.0", "999")
# Releases bundled with a Python, or with pip's packages of Debian and Ubuntu.
_BUNDLED = ("59.6.0", "65.5.0", "65.5.1", "66.1.1", "68.1.2", "79.0.1")
_FIRST_PYTHON_WITHOUT = Version("3.12")
# From this release on torch requires setuptools<82.
_TORCH_WITH_BOUND = Version("2.11")
# Modules whose import needs pkg_resources: the distribution, and its first and last such release.
_NEED_IT = {
    "webrtcvad": ("webrtcvad", "0", "2.0.10"),
    "face_recognition": ("face-recognition", "0", "1.3.0"),
    "pyworld": ("pyworld", "0", "0.3.4"),
    "librosa": ("librosa", "0.8", "0.9.2"),
    "resampy": ("resampy", "0", "0.2.2"),
    "apscheduler": ("apscheduler", "3.0", "3.10.4"),
    "fs": ("fs", "2.0", "2.4.16"),
    "pytorch_lightning": ("pytorch-lightning", "1.9", "2.3.3"),
    "torchtnt": ("torchtnt", "0", "0.2.4"),
    "pysindy": ("pysindy", "0", "1.7.5"),
}
_PROGRAMS = {"tensorboard": ("tensorboard", "2.0", "2.20.0")}


def pkg_resources_gone(view: StageView) -> Iterator[Finding]:
    start = start_of(view)
    if start is None or view.target.today < _REMOVED_ON:
        return
    # The stage that fills the environment: this one, or an earlier one that it is copied from.
    filled = next((stage for stage in [view, *copied_stages(view)] if stage.pip), view)
    need = next(_needs(filled, imports_of(view, start), start), "")
    why = _why_gone(filled) if need else ""
    if not why:
        return
    known = installed_names(view)
    is_certain = filled.find("setuptools") is not None or (known is not None and known[1])
    yield NO_MODULE.finding(
        view,
        start.step,
        f"{need}, and {why}: `No module named 'pkg_resources'`",
        need,
        "pin setuptools<81, or use importlib.metadata and importlib.resources",
        level=Level.PROBLEM if is_certain else Level.WARNING,
    )


def _needs(view: StageView, imports: Iterator[tuple[str, str, int]], start: Start) -> Iterator[str]:
    """Importers of pkg_resources: the code, a pinned package that it imports, or the program it starts."""
    for path, name, line in imports:
        if name == "pkg_resources":
            yield f"{path}:{line} imports pkg_resources"
        if name in _NEED_IT and (text := _pinned(view, *_NEED_IT[name])):
            yield f"{path}:{line} imports {name}, and {text} imports pkg_resources"
        clip = view.find("clip") if name == "clip" else None
        if clip is not None and re.search(r"openai/CLIP", clip.spec.text, re.I):
            yield f"{path}:{line} imports clip, which imports pkg_resources"
    for argv in start.commands:
        named = next((word for word in argv[:2] if word in _PROGRAMS), None)
        if named is not None and (text := _pinned(view, *_PROGRAMS[named])):
            yield f"the container starts {named}, and {text} imports pkg_resources"


def _pinned(view: StageView, name: str, first: str, last: str) -> str:
    package = view.find(name)
    pin = None if package is None else package.spec.pin
    is_old = pin is not None and Version(first) <= pin <= Version(last)
    return package.spec.text if package is not None and is_old else ""


def _why_gone(view: StageView) -> str:
    """Why the setuptools of the image has no pkg_resources; "" where it has, or where that is not certain."""
    if view.has_conda or view.has_conditional or any(not by.is_pip for by in view.commands_of_pip):
        return ""
    constraints = _constraints(view)
    if constraints is None or not all(_allows_new(spec) for spec in constraints):
        return ""
    package = view.find("setuptools")
    if package is None:
        return _why_without_request(view)
    if not _allows_new(package.spec):
        return ""
    is_upgraded = bool(package.by.flags & {"-U", "--upgrade", "--force-reinstall"})
    is_kept = _has_bundled(view) and any(package.spec.specifier.contains(old) for old in _BUNDLED)
    if is_kept and not is_upgraded:
        return ""
    return f"`{package.spec.text}` brings a setuptools without it (82 and later)"


def _why_without_request(view: StageView) -> str:
    if _has_bundled(view) or view.base.family != "python" or view.python is None:
        return ""
    torch = view.torch
    if torch is not None:
        is_open = torch.pin is not None and torch.pin < _TORCH_WITH_BOUND
        return f"torch {torch.pin} brings the newest setuptools, which no longer has it" if is_open else ""
    named = {package.spec.name for package in view.installed}
    return "" if named & {"torchvision", "torchaudio"} else f"{view.base.reference} has no setuptools"


def _has_bundled(view: StageView) -> bool:
    """Whether the Python bundles an older setuptools; unknown counts as yes."""
    by_uv = any(by.is_uv for by in view.pip) and any(word == "venv" for word in view.words)
    if view.base.family == "python" and view.python is not None:
        return Version(view.python) < _FIRST_PYTHON_WITHOUT and not by_uv
    return True


def _allows_new(spec: PackageSpec) -> bool:
    return any(spec.specifier.contains(new) for new in _WITHOUT) or (
        spec.pin is not None and spec.pin >= Version("82")
    )


def _constraints(view: StageView) -> list[PackageSpec] | None:
    """setuptools of the constraints files; None where one cannot be read."""
    specs: list[PackageSpec] = []
    for by in view.pip:
        if {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"} & view.environment(by).keys():
            return None
        for path in by.values("constraint"):
            file = view.file_named(view.path_in_context(by, path))
            if file is None:
                return None
            specs += [spec for spec in file.specs if spec.name == "setuptools"]
    return specs


RULES = (pkg_resources_gone,)

"""The rule about pkg_resources, which setuptools 82 removed in February 2026 (41).

The module is there where the setuptools of the image is older: bundled with a Python before 3.12, pinned, or
held back by a constraint. It is missing where setuptools is upgraded or newly installed without a bound.
"""

import re
from collections.abc import Iterator
from datetime import date

from packaging.version import Version

from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.container.code import NO_MODULE, installed_names
from paceline.images.lint.rules.container.imports import imports_of
from paceline.images.lint.rules.container.script import Start, start_of
from paceline.images.lint.rules.container.venvs import copied_stages
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

PATTERNS: tuple[Pattern, ...] = ()
_REMOVED_ON = date(2026, 2, 8)
_WITHOUT = ("82.0.0", "82.0.1", "83.0.0", "999")
# Releases that come with a Python, or with pip's packages of Debian and Ubuntu.
_BUNDLED = ("59.6.0", "65.5.0", "65.5.1", "66.1.1", "68.1.2", "79.0.1")
_FIRST_PYTHON_WITHOUT = Version("3.12")
# From here on torch asks for setuptools<82 itself.
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


def pkg_resources_gone(place: Place) -> Iterator[Finding]:
    start = start_of(place)
    if start is None or place.target.today < _REMOVED_ON:
        return
    # The stage that fills the environment: this one, or an earlier one that it is copied from.
    filled = next((one for one in [place, *copied_stages(place)] if one.pip), place)
    need = next(_needs(filled, imports_of(place, start), start), "")
    why = _why_gone(filled) if need else ""
    if not why:
        return
    known = installed_names(place)
    is_certain = filled.find("setuptools") is not None or (known is not None and known[1])
    yield NO_MODULE.found(
        place,
        start.step,
        f"{need}, and {why}: `No module named 'pkg_resources'`",
        need,
        "pin setuptools<81, or use importlib.metadata and importlib.resources",
        level=Level.PROBLEM if is_certain else Level.WARNING,
    )


def _needs(place: Place, imports: Iterator[tuple[str, str, int]], start: Start) -> Iterator[str]:
    """What imports pkg_resources: the code, a pinned package that it imports, or the program it starts."""
    for path, name, line in imports:
        if name == "pkg_resources":
            yield f"{path}:{line} imports pkg_resources"
        if name in _NEED_IT and (text := _pinned(place, *_NEED_IT[name])):
            yield f"{path}:{line} imports {name}, and {text} imports pkg_resources"
        clip = place.find("clip") if name == "clip" else None
        if clip is not None and re.search(r"openai/CLIP", clip.asked.text, re.I):
            yield f"{path}:{line} imports clip, which imports pkg_resources"
    for words in start.commands:
        named = next((word for word in words[:2] if word in _PROGRAMS), None)
        if named is not None and (text := _pinned(place, *_PROGRAMS[named])):
            yield f"the container starts {named}, and {text} imports pkg_resources"


def _pinned(place: Place, name: str, first: str, last: str) -> str:
    one = place.find(name)
    pin = None if one is None else one.asked.pin
    is_old = pin is not None and Version(first) <= pin <= Version(last)
    return one.asked.text if one is not None and is_old else ""


def _why_gone(place: Place) -> str:
    """Why the setuptools of the image has no pkg_resources; "" where it has, or where that is not certain."""
    if place.has_conda or place.has_conditional or any(not by.is_pip for by in place.commands_of_pip):
        return ""
    constraints = _constraints(place)
    if constraints is None or not all(_allows_new(asked) for asked in constraints):
        return ""
    one = place.find("setuptools")
    if one is None:
        return _why_without_request(place)
    if not _allows_new(one.asked):
        return ""
    is_upgraded = bool(one.by.flags & {"-U", "--upgrade", "--force-reinstall"})
    is_kept = _has_bundled(place) and any(one.asked.specifier.contains(old) for old in _BUNDLED)
    if is_kept and not is_upgraded:
        return ""
    return f"`{one.asked.text}` brings a setuptools without it (82 and later)"


def _why_without_request(place: Place) -> str:
    if _has_bundled(place) or place.base.family != "python" or place.python is None:
        return ""
    torch = place.torch
    if torch is not None:
        is_open = torch.pin is not None and torch.pin < _TORCH_WITH_BOUND
        return f"torch {torch.pin} brings the newest setuptools, which has it no more" if is_open else ""
    named = {one.asked.name for one in place.installed}
    return "" if named & {"torchvision", "torchaudio"} else f"{place.base.reference} has no setuptools"


def _has_bundled(place: Place) -> bool:
    """The Python has an older setuptools of its own; not known counts as yes."""
    by_uv = any(by.is_uv for by in place.pip) and any(word == "venv" for word in place.words)
    if place.base.family == "python" and place.python is not None:
        return Version(place.python) < _FIRST_PYTHON_WITHOUT and not by_uv
    return True


def _allows_new(asked: Asked) -> bool:
    return any(asked.specifier.contains(new) for new in _WITHOUT) or (
        asked.pin is not None and asked.pin >= Version("82")
    )


def _constraints(place: Place) -> list[Asked] | None:
    """setuptools of the constraints files; None where one cannot be read."""
    found: list[Asked] = []
    for by in place.pip:
        if {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"} & place.environment(by).keys():
            return None
        for path in by.values("constraint"):
            file = place.file_named(place.path_in_context(by, path))
            if file is None:
                return None
            found += [asked for asked in file.asked if asked.name == "setuptools"]
    return found


RULES = (pkg_resources_gone,)

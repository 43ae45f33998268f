"""The rule about shared libraries that a package loads when it is imported (11)."""

from collections.abc import Iterator

from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.edits import respelled, system_packages_added
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

MISSING = Pattern(
    number=11,
    id="missing-library",
    what="A package loads a system library on import that the base does not have (libGL, libgomp, …).",
    fix="the build without a screen (`opencv-python-headless`), or the system package before pip",
)
PATTERNS = (MISSING,)
# Without a screen, the same package needs no libGL.
_HEADLESS = {
    "opencv-python": "opencv-python-headless",
    "opencv-contrib-python": "opencv-contrib-python-headless",
}
# They need opencv-python, with its windows.
_BRING_OPENCV = frozenset({"ultralytics", "deepface", "mmcv", "mmcv-full", "mmengine"})
_LIBRARIES = {
    "lightgbm": ("libgomp.so.1", "libgomp1"),
    "pyzbar": ("libzbar.so.0", "libzbar0"),
    "python-magic": ("libmagic.so.1", "libmagic1"),
    "weasyprint": ("libpango-1.0.so.0", "libpango-1.0-0"),
    "sounddevice": ("libportaudio.so.2", "libportaudio2"),
    "pyenchant": ("libenchant-2.so.2", "libenchant-2-2"),
    "cairosvg": ("libcairo.so.2", "libcairo2"),
}
# Packages of the system that bring libGL with them.
_BRING_GL = (
    "libgl1",
    "libglx",
    "libopencv",
    "python3-opencv",
    "ffmpeg",
    "mesa",
    "libgl-",
    "xvfb",
    "xserver",
    "xorg",
    "libqt",
    "qt",
    "python3-pyqt",
    "libgtk",
    "freeglut",
    "libglu",
    "libglew",
    "libglfw",
    "libsdl2",
    "libavdevice",
    "gstreamer",
    "libgstreamer-plugins",
    "chromium",
    "firefox",
    "openjdk",
    "default-j",
    "blender",
    "ros-",
    "texlive",
    "libvtk",
    "octave",
    "libosmesa",
    "vlc",
    "libreoffice",
    "gnuplot",
    "graphviz",
)
_BRING_GOMP = frozenset({"gcc", "g++", "build-essential", "libgomp1"})


def missing_library(place: Place) -> Iterator[Finding]:
    base, there = place.base, place.packages_where_it_runs
    if not base.family or base.family in ("ngc", "dlc") or base.system == "alpine":
        return
    if not place.are_packages_known:
        return
    for one in place.own:
        name = one.asked.name
        if name in _HEADLESS and not any(package.startswith(_BRING_GL) for package in there):
            if place.has_conda or place.find("opencv-python-headless", "opencv-contrib-python-headless"):
                continue  # conda may bring it; of two that share a folder the last one stays
            new = headless(one.asked)
            yield MISSING.found(
                place,
                one.asked,
                f"{name} loads libGL.so.1, which {base.reference} has not: `cannot open shared object file`",
                f"{one.asked.text}; no system package brings libGL",
                f"use {_HEADLESS[name]}, or install libgl1 and libglib2.0-0 if windows are opened",
                respelled(place, one.asked, new) if new else (),
            )
        elif name in _BRING_OPENCV and not any(package.startswith(_BRING_GL) for package in there):
            if place.has_conda or place.find(*_HEADLESS, *_HEADLESS.values()):
                continue  # asked for by name: judged there
            packages = ["libgl1", "libglib2.0-0"]
            yield MISSING.found(
                place,
                one.asked,
                f"{name} brings opencv-python, which loads libGL.so.1: `cannot open shared object file`",
                f"{one.asked.text} on {base.reference}; no system package brings libGL",
                f"install {' '.join(packages)} before pip",
                system_packages_added(place, one.by.instruction, packages) if place.is_last else (),
            )
        elif name in _LIBRARIES and base.is_slim and not _has(there, _LIBRARIES[name][1]):
            library, package = _LIBRARIES[name]
            yield MISSING.found(
                place,
                one.asked,
                f"{name} loads {library}, which {base.reference} has not: `cannot open shared object file`",
                f"{one.asked.text}; system packages: {', '.join(sorted(there)) or 'none'}",
                f"install {package} before pip",
                system_packages_added(place, one.by.instruction, [package]) if place.is_last else (),
            )


def headless(asked: Asked) -> str | None:
    """The same package without a screen, in the user's words otherwise; None: there is none."""
    if asked.name not in _HEADLESS or asked.is_url:
        return None
    return asked.text.replace(_spelled(asked.text), _HEADLESS[asked.name], 1)


def _has(there: frozenset[str], package: str) -> bool:
    stem = package.rstrip("0123456789.-")  # libmagic1 comes with libmagic-dev, too
    brought = any(one.startswith(stem) for one in there)
    return brought or (package == "libgomp1" and bool(there & _BRING_GOMP))


def _spelled(text: str) -> str:
    """The name as the user writes it: OpenCV-Python, opencv_python."""
    end = next((at for at, sign in enumerate(text) if sign in "[<>=!~; @"), len(text))
    return text[:end].strip()


RULES = (missing_library,)

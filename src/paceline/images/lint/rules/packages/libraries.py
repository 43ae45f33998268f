"""The rule about shared libraries that a package loads when it is imported (11)."""

from collections.abc import Iterator

from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.edits import respelled, system_packages_added
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

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


def missing_library(view: StageView) -> Iterator[Finding]:
    base = view.base
    installed = view.packages_where_it_runs
    if not base.family or base.family in ("ngc", "dlc") or base.system == "alpine":
        return
    if not view.are_packages_known:
        return
    for other_package in view.own:
        name = other_package.spec.name
        if name in _HEADLESS and not any(package.startswith(_BRING_GL) for package in installed):
            if view.has_conda or view.find("opencv-python-headless", "opencv-contrib-python-headless"):
                continue  # conda may bring it; of two that share a folder the last one stays
            new = headless(other_package.spec)
            yield MISSING.finding(
                view,
                other_package.spec,
                f"{name} loads libGL.so.1, which {base.reference} does not have: `cannot open shared object "
                "file`",
                f"{other_package.spec.text}; no system package brings libGL",
                f"use {_HEADLESS[name]}, or install libgl1 and libglib2.0-0 if the program opens windows",
                respelled(view, other_package.spec, new) if new else (),
            )
        elif name in _BRING_OPENCV and not any(package.startswith(_BRING_GL) for package in installed):
            if view.has_conda or view.find(*_HEADLESS, *_HEADLESS.values()):
                continue  # requested by name: checked there
            packages = ["libgl1", "libglib2.0-0"]
            yield MISSING.finding(
                view,
                other_package.spec,
                f"{name} brings opencv-python, which loads libGL.so.1: `cannot open shared object file`",
                f"{other_package.spec.text} on {base.reference}; no system package brings libGL",
                f"install {' '.join(packages)} before pip",
                system_packages_added(view, other_package.by.instruction, packages) if view.is_last else (),
            )
        elif name in _LIBRARIES and base.is_slim and not _has(installed, _LIBRARIES[name][1]):
            library, package = _LIBRARIES[name]
            yield MISSING.finding(
                view,
                other_package.spec,
                f"{name} loads {library}, which {base.reference} does not have: `cannot open shared object "
                "file`",
                f"{other_package.spec.text}; system packages: {', '.join(sorted(installed)) or 'none'}",
                f"install {package} before pip",
                system_packages_added(view, other_package.by.instruction, [package]) if view.is_last else (),
            )


def headless(spec: PackageSpec) -> str | None:
    """The same package without a screen, in the user's words otherwise; None: there is none."""
    if spec.name not in _HEADLESS or spec.is_url:
        return None
    return spec.text.replace(_spelled(spec.text), _HEADLESS[spec.name], 1)


def _has(installed: frozenset[str], package: str) -> bool:
    stem = package.rstrip("0123456789.-")  # libmagic-dev installs libmagic1, too
    is_installed = any(name.startswith(stem) for name in installed)
    return is_installed or (package == "libgomp1" and bool(installed & _BRING_GOMP))


def _spelled(text: str) -> str:
    """The name as the user writes it: OpenCV-Python, opencv_python."""
    end = next((at for at, sign in enumerate(text) if sign in "[<>=!~; @"), len(text))
    return text[:end].strip()


RULES = (missing_library,)

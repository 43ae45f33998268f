"""Rules about packages without a wheel for the Python, the C library or the processor of the image (3)."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from paceline.images.lint.bases import catalog
from paceline.images.lint.edits import another_base, with_python
from paceline.images.lint.matrix import wheels
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.packages.releases import is_judged
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

NO_WHEEL = Pattern(
    number=3,
    id="python-without-wheel",
    what="A pinned package has no wheel for the Python of the image, and cannot be built there.",
    fix="the nearest Python that every pin has a wheel for; pins are kept",
)
PATTERNS = (NO_WHEEL,)
# Their archives take Fortran, LLVM, Arrow or a Python that still has distutils: on a Python later than their
# wheels' the build fails with a C compiler too.
_HARD_TO_BUILD = frozenset(
    [
        "numpy",
        "scipy",
        "pandas",
        "scikit-learn",
        "numba",
        "llvmlite",
        "pyarrow",
        "tensorflow",
        "onnx",
        "h5py",
        "tables",
        "scikit-image",
        "ray",
    ]
)
# Compiled by Rust's compiler.
_RUST = frozenset({"tokenizers", "safetensors", "tiktoken", "orjson", "pydantic-core", "polars"})
# Their build takes the newest Cython, which refuses their code: (first, last) release.
_CYTHON_3 = {"pyyaml": (Version("5.4"), Version("6.0"))}
# Built against torch: separate rules cover them.
_AGAINST_TORCH = frozenset({"xformers", "vllm", "deepspeed", "flash-attn", "mmcv", "mmcv-full"})
_LATEST_CONDA = re.compile(r"Miniconda3-latest|latest/download/Miniforge3")
_OLDEST_OF_CONDA = Version("3.12")  # the latest installers have this Python or a newer one


def wheel_for_another_image(view: StageView) -> Iterator[Finding]:
    """`….whl` by its address: its tags must fit the Python and the C library of the image."""
    for package in view.own:
        name = re.split(r"[?#]", package.spec.text)[0].rpartition("/")[2].strip()
        if not package.spec.is_url or not name.endswith(".whl"):
            continue
        why = _refused_because(view, unquote(name))
        if why:
            yield NO_WHEEL.finding(
                view,
                package.spec,
                f"{why}: `is not a supported wheel on this platform`",
                f"{name} on {view.base.reference}",
                "use the wheel with the tags of this image, or another base",
            )


def _refused_because(view: StageView, name: str) -> str:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return ""
    python = view.python
    glibc = catalog().glibc.get(view.base.system)
    minors = {tag.interpreter for tag in tags}
    is_exact = all(re.fullmatch(r"cp3\d+", minor) for minor in minors) and all(
        tag.abi != "abi3" for tag in tags
    )
    if python is not None and is_exact and f"cp{python.replace('.', '')}" not in minors:
        return f"the wheel is for {', '.join(sorted(minors))}, and the image has Python {python}"
    needs = [
        Version(f"{m[1]}.{m[2]}") for tag in tags if (m := re.match(r"manylinux_(\d+)_(\d+)_", tag.platform))
    ]
    is_all_named = len(needs) == len({(tag.interpreter, tag.abi, tag.platform) for tag in tags})
    if glibc is not None and needs and is_all_named and min(needs) > glibc:
        return f"the wheel needs glibc {min(needs)}, and {view.base.system} has {glibc}"
    return ""


def python_without_wheel(view: StageView) -> Iterator[Finding]:
    python = view.python
    libc = "musl" if view.base.system == "alpine" else ""
    if python is None or not _is_amd64(view):
        return
    for package in view.own:
        name = package.spec.name
        pin = package.spec.pin
        if pin is None or not is_judged(view, package) or not wheels().tags(name, pin):
            continue
        if wheels().has_wheel(name, pin, python, libc=libc):
            continue
        if libc and wheels().has_nothing_for_musl(name):
            continue  # no Python would help: judged with the base
        known = wheels().pythons(name, pin)
        if wheels().has_source(name, pin, python) and not _must_fail(view, name, pin, known):
            continue
        if (
            not known
            and not wheels().has_source(name, pin, python)
            and "source" not in wheels().tags(name, pin)
        ):
            continue  # a release for other systems, or for Pythons before those of the table
        yield _without_wheel(view, package, python, known)


def _is_amd64(view: StageView) -> bool:
    platform = view.docker.chain(view.stage)[0].origin.flag("platform") or view.target.platform
    return "arm" not in platform


def installer_without_wheel(view: StageView) -> Iterator[Finding]:
    """The latest Miniconda brings its own Python, which an old torch has no wheel for."""
    argv = view.words
    chosen = re.compile(r"^python\W*[=<>~]|^python3?\.?\d|^(?:create|env|pyenv|venv|uv)$|\.ya?ml$")
    if view.base.family not in ("debian", "ubuntu", "cuda") or "python3-pip" in view.system_packages:
        return
    installer = next((word for word in argv if _LATEST_CONDA.search(word)), None)
    if installer is None or any(chosen.search(word.strip("\"'")) for word in argv):
        return
    for package in view.own:
        pin = package.spec.pin
        if package.spec.name != "torch" or pin is None or not is_judged(view, package):
            continue
        known = wheels().pythons("torch", pin)
        if known and Version(known[-1]) < _OLDEST_OF_CONDA:
            yield NO_WHEEL.finding(
                view,
                package.spec,
                f"torch {pin} has wheels up to Python {known[-1]}, and the latest installer of conda "
                f"includes {_OLDEST_OF_CONDA} or newer: `No matching distribution found`",
                f"{package.spec.text}; {installer[-80:]}",
                f"install python={known[-1]} with conda before it, or pin the installer's release",
            )


def _must_fail(view: StageView, name: str, pin: Version, known: list[str]) -> bool:
    """Building the archive fails: no compiler, no Rust, or code that the tools of the day refuse."""
    if name in _AGAINST_TORCH or "no-build-isolation" in "".join(view.words):
        return False
    python = Version(view.python or "3")
    first, last = _CYTHON_3.get(name, (Version("1"), Version("0")))
    if first <= pin <= last:
        return True
    is_later = bool(known) and python > Version(known[-1])
    if (
        is_later
        and name in _HARD_TO_BUILD
        and (python >= Version("3.12") or name in ("numba", "llvmlite", "pyarrow"))
    ):
        return not view.has_conda
    has_rust = any(re.search(r"rustup|cargo|rustc", word) for word in view.words)
    if name in _RUST:
        return bool(known) and not has_rust and not view.has_conda and view.are_packages_known
    return wheels().is_compiled(name) and _has_no_compiler(view)


def _has_no_compiler(view: StageView) -> bool:
    named = any(re.search(r"\bgcc|\bclang|build-essential|build-base|\bg\+\+", word) for word in view.words)
    return view.base.is_slim and not named and not view.has_conda and view.are_packages_known


def _without_wheel(view: StageView, package: Installed, python: str, known: list[str]) -> Finding:
    pinned = [o for o in view.installed if o.spec.pin is not None and not o.spec.is_url]
    listed = [set(wheels().pythons(o.spec.name, o.spec.pin)) for o in pinned if o.spec.pin is not None]
    common = set.intersection(*listed) if listed else set()
    if view.base.system == "alpine":
        common = set()  # the table of Pythons is for glibc
    # The other Python is certain to build only if the table has every pin.
    other = _nearest(python, sorted(common, key=Version))
    new = with_python(view, other, tuple(sorted(common, key=Version))) if other else None
    shown = f"{known[0]} to {known[-1]}" if known else "no known Python"
    musl = " on musl" if view.base.system == "alpine" else ""
    return NO_WHEEL.finding(
        view,
        package.spec,
        f"{package.spec.name} {package.spec.pin} has no wheel for Python {python}{musl}, and its archive "
        "cannot be built or does not accept it",
        f"wheels for {shown} (file names on PyPI of {wheels().dated}); FROM {view.base.reference}",
        f"use {new}; {package.spec.name} keeps its pin"
        if new
        else f"use a base with Python {shown}, or a compiler for the archive",
        another_base(view, new) if new else (),
    )


def _nearest(python: str, common: list[str]) -> str | None:
    if not common:
        return None
    older = [version for version in common if Version(version) < Version(python)]
    return older[-1] if older else common[0]


RULES = (
    wheel_for_another_image,
    python_without_wheel,
    installer_without_wheel,
)

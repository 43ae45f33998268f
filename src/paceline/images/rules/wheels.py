"""Do torch, its sisters, numpy and the Python fit, and is the right build of torch found? (2 to 6)"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.bases import catalog
from paceline.images.changing import (
    another_base,
    beside,
    index_added,
    index_switched,
    respelled,
)
from paceline.images.choosing import nearest_cuda_tag
from paceline.images.matrix import TorchRow, matrix
from paceline.images.project import Edit, Finding, Kind, Level
from paceline.images.requirements import Asked
from paceline.images.rules.pattern import Pattern
from paceline.images.view import Installed, Place

TRIO = Pattern(
    number=2,
    id="torch-trio",
    what="torchvision or torchaudio is pinned to a release that was made for another torch.",
    fix="the sister's pin is changed to the one made for the torch you pinned",
)
NO_WHEEL = Pattern(
    number=3,
    id="python-without-wheel",
    what="The pinned torch has no wheel for the Python of the base image.",
    fix="the nearest Python it has wheels for; torch is not touched",
)
NUMPY = Pattern(
    number=4,
    id="numpy-abi",
    what="torch before 2.3 was compiled with NumPy 1, and NumPy 2 would be installed beside it.",
    fix="`numpy<2`",
)
NO_INDEX = Pattern(
    number=5,
    id="build-without-index",
    what="`+cu118`, `+cpu` and the like are not on PyPI, and no index that has them is named.",
    fix="`--extra-index-url` of PyTorch's index for that build",
)
KIND = Pattern(
    number=6,
    id="wrong-build",
    what="A torch without CUDA on a machine with GPUs, or one with CUDA where there is none.",
    fix="the other index; where the build is part of your pin, you are asked",
)
PATTERNS = (TRIO, NO_WHEEL, NUMPY, NO_INDEX, KIND)
_KNOWS_NUMPY_2 = Version("2.3.0")
# Packages that bring numpy without being asked.
_BRING_NUMPY = frozenset(
    [
        "torchvision",
        "pandas",
        "scipy",
        "scikit-learn",
        "transformers",
        "datasets",
        "opencv-python",
        "opencv-python-headless",
        "matplotlib",
        "accelerate",
        "timm",
        "torchmetrics",
        "lightning",
        "pytorch-lightning",
        "gymnasium",
        "librosa",
    ]
)
_CONSTRAINTS = {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"}
_BUILD = re.compile(r"^(cu\d{3}|cpu|rocm[\d.]+)$")


def trio(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.row is None or torch.pin is None:
        return
    for name in ("torchvision", "torchaudio"):
        sister, made = place.find(name), getattr(torch.row, name)
        if sister is None or sister.asked.pin is None or made is None or not _is_bound(torch.row, name):
            continue
        pin = sister.asked.pin
        if not _is_for_another(Version(pin.base_version), made, name) or sister not in place.own:
            continue
        new = sister.asked.with_range(f"=={made}" + (f"+{pin.local}" if pin.local else ""))
        yield TRIO.found(
            place,
            sister.asked,
            f"{name} {pin} was made for another torch than {torch.pin}: pip finds no solution, or the import "
            "fails",
            f"torch {torch.pin.public} goes with {name} {made} (wheel metadata of {matrix().dated})",
            f"pin {new}",
            respelled(place, sister.asked, new),
        )


def _is_bound(row: TorchRow, name: str) -> bool:
    """torchaudio no longer says which torch it needs once its numbers stop following torch's."""
    made = getattr(row, name)
    return name != "torchaudio" or made.release[:2] == row.torch.release[:2] or row.torch.major < 2


def _is_for_another(pin: Version, made: Version, name: str) -> bool:
    """Another minor, or a patch release that is known to belong to another torch; the rest is not known."""
    known = [getattr(row, name) for row in matrix().torch]
    return pin != made and (pin in known or pin.release[:2] != made.release[:2])


def python_without_wheel(place: Place) -> Iterator[Finding]:
    torch, python = place.torch, place.python
    if torch is None or torch.row is None or python is None or torch.installed not in place.own:
        return
    known = torch.row.pythons
    if python in known or not known:
        return
    too_new = Version(python) > Version(known[-1])
    other = known[-1] if too_new else known[0]
    new = _with_python(place, other, known)
    yield NO_WHEEL.found(
        place,
        torch.installed.asked,
        f"torch {torch.pin} has no wheel for Python {python}",
        f"wheels for {known[0]} to {known[-1]} (metadata of {matrix().dated}); FROM {place.base.reference}",
        f"use {new}; torch stays as you pinned it" if new else f"use a base with Python {other}",
        another_base(place, new) if new else (),
    )


def _with_python(place: Place, other: str, known: tuple[str, ...]) -> str | None:
    base = place.base
    if base.family == "python" and base.tag is not None:
        tag = re.sub(r"^3\.\d+(\.\d+)?([a-z]+\d+)?", other, base.tag)
        return f"{base.reference.rpartition(':')[0]}:{tag}"
    if base.family == "cuda" and base.cuda is not None:
        for system, version in catalog().system_pythons.items():
            near = nearest_cuda_tag(base, base.cuda.major, base.cuda, system=system)
            if version in known and near is not None and near.endswith(system):
                return f"{base.name}:{near}"
    return None


def numpy_abi(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.pin is None or torch.pin >= _KNOWS_NUMPY_2 or torch.installed not in place.own:
        return
    if place.python is not None and Version(place.python) < Version("3.9"):
        return  # NumPy 2 has no wheels for it
    numpy = place.find("numpy")
    bringer = next((one for one in place.installed if one.asked.name in _BRING_NUMPY), None)
    evidence = f"torch {torch.pin} was compiled with NumPy 1, and its metadata sets no limit"
    why = "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`"
    if numpy is not None and numpy.asked.requirement is not None:
        if _stays_below_2(numpy):
            return
        new = below_2(numpy.asked)
        edits, asks = respelled(place, numpy.asked, new), numpy.asked.pin is not None
        yield NUMPY.found(place, numpy.asked, why, evidence, f"write {new}", edits, asks=asks)
    elif bringer is not None and not _is_constrained(place) and not _has_numpy(place):
        edits = beside(place, torch.installed, "numpy<2")
        evidence = f"{evidence}; {bringer.asked.name} brings numpy"
        yield NUMPY.found(place, torch.installed.asked, why, evidence, "add numpy<2", edits)


def _has_numpy(place: Place) -> bool:
    """One that fits torch is there before pip begins, and stays: by conda, or in a framework's image."""
    return place.has_conda or place.base.family in ("pytorch", "ngc", "dlc")


def below_2(numpy: Asked) -> str:
    """The range that is asked for, as far as NumPy 1."""
    kept = [str(one) for one in numpy.specifier if one.operator in (">=", ">", "!=")]
    return numpy.with_range(",".join([*sorted(kept), "<2"]))


def _stays_below_2(numpy: Installed) -> bool:
    newest_known = ("2.0.0", "2.1.3", "2.2.6", "2.3.5", "2.4.6", "2.99.0")
    return not any(numpy.asked.specifier.contains(one) for one in newest_known)


def _is_constrained(place: Place) -> bool:
    """A constraints file may hold numpy back, whether we can read it or not."""
    files = [file for by in place.pip for file in place.files_of(by)]
    said = any(
        by.values("constraint", "constraints") or place.environment(by).keys() & _CONSTRAINTS
        for by in place.pip
    )
    return said or any(option.name == "constraint" for file in files for option in file.options)


def build_without_index(place: Place) -> Iterator[Finding]:
    seen: set[tuple[str, int]] = set()
    for one in place.own:
        pin = one.asked.pin
        build = None if pin is None else pin.local
        if build is None or not _BUILD.match(build) or _may_have(place, one, build):
            continue
        key = (one.asked.path, id(one.by.command))
        if key in seen:
            continue  # one index serves the whole file or command
        seen.add(key)
        address = f"{catalog().index}/{build}"
        yield NO_INDEX.found(
            place,
            one.asked,
            f"{one.asked.text} is not on PyPI: `No matching distribution found`",
            f"no index with /{build} is named by the command, the file or a variable",
            f"add --extra-index-url {address}",
            index_added(place, one, address),
        )


def _may_have(place: Place, one: Installed, build: str) -> bool:
    """PyTorch's index for this build, or an address that nobody but the user can judge."""
    own = [address for address in place.indexes(one) if not _is_other_build(address, build)]
    copies = any(step.word in ("COPY", "ADD") and "pip.conf" in " ".join(step.values) for step in place.steps)
    mounted = any("pip.conf" in flag or "pip-conf" in flag for flag in one.by.instruction.flags)
    return bool(own) or copies or mounted


def _is_other_build(address: str, build: str) -> bool:
    found = re.search(r"/whl/(cu\d{3}|cpu|rocm[\d.]+)/?$", address)
    return found is not None and found[1] != build


def wrong_build(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.installed not in place.own or not place.is_last:
        return
    if place.kind is Kind.GPU and torch.build == "cpu":
        yield _without_cuda(place)
    elif place.kind is Kind.CPU and torch.build is None and place.target.platform == "linux/amd64":
        address = f"{catalog().index}/cpu"
        if place.indexes(torch.installed) or place.base.family in ("pytorch", "ngc", "dlc"):
            return  # an index of the user's own may have the smaller build; a framework's torch stays
        yield KIND.found(
            place,
            torch.installed.asked,
            "PyPI's torch brings CUDA, which a machine without GPUs never uses: gigabytes in the image",
            f"target cpu; {torch.installed.asked.text} without an index for cpu",
            f"add --extra-index-url {address}: the same torch without CUDA, some 2 to 4 GB less",
            index_added(place, torch.installed, address),
            level=Level.WARNING,
        )
    elif place.kind is Kind.CPU and torch.build is not None and torch.build.startswith("cu"):
        yield KIND.found(
            place,
            torch.installed.asked,
            f"torch for {torch.build} on a machine without GPUs: gigabytes that are never used",
            f"target cpu; {torch.installed.asked.text}",
            "take the build for cpu",
            _pin_switched(place, torch.installed, torch.build, "cpu"),
            asks=True,
            level=Level.WARNING,
        )


def _without_cuda(place: Place) -> Finding:
    torch = place.torch
    assert torch is not None, "asked for by wrong_build, which has looked"
    cuda = None if torch.row is None else torch.row.cuda
    build = None if cuda is None else f"cu{cuda.major}{cuda.minor}"
    is_pinned = torch.pin is not None and torch.pin.local == "cpu"
    if build is None:
        edits: tuple[Edit, ...] = ()  # for which CUDA an unknown torch is built is not known either
    elif is_pinned:
        edits = _pin_switched(place, torch.installed, "cpu", build)
    else:
        edits = index_switched(place, torch.installed, "/whl/cpu", f"/whl/{build}")
    return KIND.found(
        place,
        torch.installed.asked,
        "this torch has no CUDA, and the image shall run on GPUs: `torch.cuda.is_available()` is False",
        f"{torch.installed.asked.text} from {', '.join(place.indexes(torch.installed)) or 'its pin'}; "
        f"target gpu ({place.base.reference})",
        f"take the build {build or 'for the CUDA of your hosts, such as cu128'}",
        edits,
        asks=is_pinned,
    )


def _pin_switched(place: Place, one: Installed, old: str, new: str) -> tuple[Edit, ...]:
    edits = respelled(place, one.asked, one.asked.text.replace(f"+{old}", f"+{new}"))
    if f"+{old}" not in one.asked.text:
        return index_switched(place, one, f"/whl/{old}", f"/whl/{new}")
    switched = index_switched(place, one, f"/whl/{old}", f"/whl/{new}")
    same = {(edit.path, edit.first) for edit in edits}
    return () if any((edit.path, edit.first) in same for edit in switched) else edits + switched


RULES = (trio, python_without_wheel, numpy_abi, build_without_index, wrong_build)

"""Compatibility tables: torch with CUDA, Pythons and sister packages, and the wheels of well-known packages.

Both come from a package index and carry a date; `paceline image matrix --refresh` reads the index again. A
version that is not in a table is unknown: nothing is concluded from that, and nothing is stopped by it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

MINORS = range(6, 16)  # the minors of Python 3 that the table of wheels covers


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRow:
    """One release of torch; CUDA, cuDNN and NCCL are those of its wheel on PyPI for Linux on x86."""

    torch: Version
    pythons: tuple[str, ...]
    cuda: Version | None = None
    cudnn: Version | None = None
    nccl: Version | None = None
    torchvision: Version | None = None
    torchaudio: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Version ranges that one release of transformers requires of other packages."""

    transformers: Version
    needs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    dated: date
    torch: tuple[TorchRow, ...]
    stacks: tuple[Stack, ...] = ()

    def row(self, torch: Version) -> TorchRow | None:
        """The row of this release; a local part (+cu118) is another build of the same release."""
        return next((row for row in self.torch if row.torch == Version(torch.public)), None)

    def stack(self, transformers: Version) -> Stack | None:
        """The newest known release of the same minor: what it needs changes with minors."""
        same = [s for s in self.stacks if s.transformers.release[:2] == transformers.release[:2]]
        return same[-1] if same else None

    @property
    def newest(self) -> TorchRow:
        return max(self.torch, key=lambda row: row.torch)


_PARTS = ("cuda", "cudnn", "nccl", "torchvision", "torchaudio")


@cache
def matrix() -> Matrix:
    return from_json(json.loads(files(__package__).joinpath("data/matrix.json").read_text("utf-8")))


def from_json(data: dict[str, Any]) -> Matrix:  # Any: JSON
    rows = [
        TorchRow(
            torch=Version(row["torch"]),
            pythons=tuple(row["pythons"]),
            **{part: Version(row[part]) for part in _PARTS if part in row},
        )
        for row in data["torch"]
    ]
    stacks = [Stack(transformers=Version(s["transformers"]), needs=s["needs"]) for s in data["stacks"]]
    return Matrix(dated=date.fromisoformat(data["dated"]), torch=tuple(rows), stacks=tuple(stacks))


def to_json(matrix: Matrix) -> dict[str, Any]:  # Any: JSON
    rows = []
    for row in matrix.torch:
        parts = {part: str(getattr(row, part)) for part in _PARTS if getattr(row, part) is not None}
        rows.append({"torch": str(row.torch), "pythons": list(row.pythons)} | parts)
    stacks = [
        {"transformers": str(stack.transformers), "needs": dict(stack.needs)} for stack in matrix.stacks
    ]
    return {"dated": matrix.dated.isoformat(), "torch": rows, "stacks": stacks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The releases of well-known packages, with the Pythons of their wheels: from the file names on PyPI.

    A release carries tags: `3.8-3.11` and `3.8+` for wheels on glibc, `musl:…` for wheels on musl, `pure:…`
    for wheels without compiled code, `source:…` for an archive to build from, `none` for other systems alone.
    A package, a release later than the newest known one, and another index are not judged.
    """

    dated: date
    packages: Mapping[str, Mapping[Version, str]]  # name: release: tags
    bound_to_torch: Mapping[str, Mapping[Version, Version]]  # name: release: the one torch that it accepts
    triton_of_torch: Mapping[Version, Version]
    older_sisters: Mapping[str, tuple[str, str]]  # minor of torch: minors of torchvision and torchaudio
    cuda_builds: Mapping[str, tuple[str, ...]]  # minor of torch: 118, 121, … on PyTorch's index
    image_cudas: Mapping[str, tuple[str, ...]]  # minor of torch: CUDA in the tags of pytorch/pytorch

    def knows(self, name: str, version: Version) -> bool:
        """Whether the list is complete up to this release."""
        known = self.packages.get(name)
        return bool(known) and not version.is_prerelease and version <= max(known or ())

    def exists(self, name: str, version: Version) -> bool:
        return Version(version.public) in self.packages[name]

    def tags(self, name: str, version: Version) -> str:
        return self.packages.get(name, {}).get(Version(version.public), "")

    def has_wheel(self, name: str, version: Version, python: str, *, libc: str = "") -> bool:
        """`libc` is "" for glibc, "musl" for Alpine."""
        return _fits(self.tags(name, version), python, (libc, "pure"))

    def has_source(self, name: str, version: Version, python: str) -> bool:
        """Whether an archive exists that accepts this Python."""
        return _fits(self.tags(name, version), python, ("source",))

    def pythons(self, name: str, version: Version) -> list[str]:
        """The Pythons with a wheel, as far as the table goes."""
        return [f"3.{minor}" for minor in MINORS if self.has_wheel(name, version, f"3.{minor}")]

    def is_compiled(self, name: str) -> bool:
        """Some release has a wheel with compiled code: then its archives need a compiler."""
        tags = {tag for text in self.packages.get(name, {}).values() for tag in text.split()}
        return any(tag[0].isdigit() for tag in tags)

    def has_nothing_for_musl(self, name: str) -> bool:
        """The newest releases have neither a wheel for musl nor an archive: pip on Alpine finds nothing."""
        newest = sorted(self.packages.get(name, {}))[-3:]
        tags = [tag for version in newest for tag in self.packages[name][version].split()]
        return bool(tags) and not any(tag.startswith(("musl", "pure", "source")) for tag in tags)


def _fits(tags: str, python: str, kinds: tuple[str, ...]) -> bool:
    version = Version(python)
    for tag in tags.split():
        kind, _, pythons = tag.rpartition(":")
        if kind not in kinds or pythons == "none":
            continue
        first, _, last = pythons.rstrip("+").partition("-")
        if version >= Version(first) and (pythons.endswith("+") or version <= Version(last or first)):
            return True
    return False


class IndexFile(NamedTuple):
    """One file of a package index: its name and the Pythons that it declares."""

    name: str
    requires_python: str


def releases_of(files: Iterable[IndexFile]) -> dict[Version, str]:
    """The tags of every final release, from the names of its files."""
    releases: dict[Version, dict[str, set[int]]] = {}
    open_ended: set[tuple[Version, str]] = set()
    for file in files:
        read = _read_wheel(file.name) if file.name.endswith(".whl") else _read_archive(file.name)
        if read is None:
            continue
        version, tags = read
        row = releases.setdefault(version, {})
        for kind, minors, is_open in tags:
            accepted = {minor for minor in minors if _accepts(file.requires_python, minor)}
            row.setdefault(kind, set()).update(accepted)
            if is_open and MINORS[-1] in accepted:
                open_ended.add((version, kind))
    return {
        version: " ".join(
            tag for kind in sorted(row) for tag in _ranges(kind, row[kind], (version, kind) in open_ended)
        )
        or "none"
        for version, row in releases.items()
        if not version.is_prerelease and version.local is None
    }


def _accepts(requires_python: str, minor: int) -> bool:
    try:
        return SpecifierSet(requires_python).contains(f"3.{minor}.99")
    except InvalidSpecifier:
        return True


def _read_wheel(name: str) -> tuple[Version, list[tuple[str, set[int], bool]]] | None:
    try:
        _, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    supported = []
    for tag in tags:
        kind = _kind(tag.platform)
        read = re.fullmatch(r"(cp|py)3(\d*)", tag.interpreter)
        if kind is None or read is None:
            continue
        minor = int(read[2] or 0)
        is_open = read[1] == "py" or tag.abi == "abi3"
        supported.append(
            (
                kind,
                {candidate for candidate in MINORS if candidate == minor or (is_open and candidate >= minor)},
                is_open,
            )
        )
    return version, supported


def _kind(platform: str) -> str | None:
    if platform == "any":
        return "pure"
    if not platform.endswith("x86_64"):
        return None
    return {"manylinux": "", "linux": "", "musllinux": "musl"}.get(
        platform.partition("_")[0].rstrip("0123456789")
    )


def _read_archive(name: str) -> tuple[Version, list[tuple[str, set[int], bool]]] | None:
    match = re.fullmatch(r".+?-v?(\d[^-]*)\.(?:tar\.gz|zip|tar\.bz2|tgz)", name)
    try:
        version = None if match is None else Version(match[1])
    except InvalidVersion:
        return None
    return None if version is None else (version, [("source", set(MINORS), True)])


def _ranges(kind: str, minors: set[int], is_open: bool) -> list[str]:
    """`3.8-3.11`, one for each run of minors without a gap."""
    runs: list[list[int]] = []
    for minor in sorted(minors):
        if runs and runs[-1][-1] == minor - 1:
            runs[-1].append(minor)
        else:
            runs.append([minor])
    ranges = []
    for run in runs:
        last = ""
        if is_open and run[-1] == MINORS[-1]:
            last = "+"
        elif len(run) > 1:
            last = f"-3.{run[-1]}"
        ranges.append(f"{kind}:3.{run[0]}{last}" if kind else f"3.{run[0]}{last}")
    return ranges


@cache
def wheels() -> Wheels:
    return wheels_from_json(json.loads(files(__package__).joinpath("data/wheels.json").read_text("utf-8")))


def wheels_from_json(data: dict[str, Any]) -> Wheels:  # Any: JSON
    packages = {
        name: {Version(version): tags for tags, listed in rows.items() for version in listed.split()}
        for name, rows in data["packages"].items()
    }
    return Wheels(
        dated=date.fromisoformat(data["dated"]),
        packages=packages,
        bound_to_torch={
            name: {Version(version): Version(torch) for version, torch in rows.items()}
            for name, rows in data["bound_to_torch"].items()
        },
        triton_of_torch={Version(a): Version(b) for a, b in data["triton_of_torch"].items()},
        older_sisters={minor: (row[0], row[1]) for minor, row in data["sisters_before_matrix"].items()},
        cuda_builds={minor: tuple(row) for minor, row in data["cuda_builds"].items()},
        image_cudas={minor: tuple(row) for minor, row in data["image_cudas"].items()},
    )


def wheels_to_json(wheels: Wheels) -> dict[str, Any]:  # Any: JSON
    packages: dict[str, dict[str, str]] = {}
    for name, releases in wheels.packages.items():
        rows: dict[str, list[str]] = {}
        for version in sorted(releases):
            rows.setdefault(releases[version], []).append(str(version))
        packages[name] = {tags: " ".join(versions) for tags, versions in rows.items()}
    return {
        "dated": wheels.dated.isoformat(),
        "packages": packages,
        "bound_to_torch": {
            name: {str(version): str(torch) for version, torch in rows.items()}
            for name, rows in wheels.bound_to_torch.items()
        },
        "triton_of_torch": {str(a): str(b) for a, b in wheels.triton_of_torch.items()},
        "sisters_before_matrix": {minor: list(row) for minor, row in wheels.older_sisters.items()},
        "cuda_builds": {minor: list(row) for minor, row in wheels.cuda_builds.items()},
        "image_cudas": {minor: list(row) for minor, row in wheels.image_cudas.items()},
    }


UNKNOWN = "unknown"
_BUILD = r"(cu\d{3}|cpu|rocm[\d.]+)"
_AT_THE_END = re.compile(rf"/{_BUILD}/?$")


def build_from_index(backends: Iterable[str], addresses: Sequence[str]) -> str | None:
    """cpu, cu118, …; None for PyPI's own; UNKNOWN if it is decided only when the image is built.

    `backends` is uv's configuration (`--torch-backend`); it has priority over addresses.
    """
    for backend in backends:
        return backend if re.fullmatch(_BUILD, backend) else UNKNOWN
    ends = [_AT_THE_END.search(address) for address in addresses]
    named = [end[1] for end in ends if end is not None]
    if named:
        return named[-1]
    return UNKNOWN if any(map(_has_no_build, addresses)) else None


def _has_no_build(address: str) -> bool:
    """PyTorch's own index, or one that a variable completes."""
    path = address.partition("://")[2].partition("/")[2] if "://" in address else address
    return "$" in path or "`" in path or "pytorch.org" in address

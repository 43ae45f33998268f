"""Which torch has which CUDA, Pythons and sister packages? From wheels' own metadata, with a date.

`paceline image matrix --refresh` asks the index again. A version that is not in it is unknown: nothing is
concluded from that, and nothing is stopped by it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.version import Version


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
    """What one release of transformers needs of its neighbours, as version ranges."""

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


def from_json(said: dict[str, Any]) -> Matrix:  # Any: JSON
    rows = [
        TorchRow(
            torch=Version(row["torch"]),
            pythons=tuple(row["pythons"]),
            **{part: Version(row[part]) for part in _PARTS if part in row},
        )
        for row in said["torch"]
    ]
    stacks = [Stack(transformers=Version(s["transformers"]), needs=s["needs"]) for s in said["stacks"]]
    return Matrix(dated=date.fromisoformat(said["dated"]), torch=tuple(rows), stacks=tuple(stacks))


def to_json(matrix: Matrix) -> dict[str, Any]:  # Any: JSON
    rows = []
    for row in matrix.torch:
        parts = {part: str(getattr(row, part)) for part in _PARTS if getattr(row, part) is not None}
        rows.append({"torch": str(row.torch), "pythons": list(row.pythons)} | parts)
    stacks = [{"transformers": str(one.transformers), "needs": dict(one.needs)} for one in matrix.stacks]
    return {"dated": matrix.dated.isoformat(), "torch": rows, "stacks": stacks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """Which releases of well-known packages exist, and for which Pythons: from the file names on PyPI.

    A package, a release later than the newest known one, and another index are not judged.
    """

    dated: date
    musl: frozenset[str]  # packages with wheels for musl
    packages: Mapping[str, Mapping[Version, str]]  # name: release: "3.8-3.11", "3.8+", "source"
    bound_to_torch: Mapping[str, Mapping[Version, Version]]  # name: release: the one torch that it accepts
    triton_of_torch: Mapping[Version, Version]
    older_sisters: Mapping[str, tuple[str, str]]  # minor of torch: minors of torchvision and torchaudio
    cuda_builds: Mapping[str, tuple[str, ...]]  # minor of torch: 118, 121, … on PyTorch's index
    image_cudas: Mapping[str, tuple[str, ...]]  # minor of torch: CUDA in the tags of pytorch/pytorch

    def knows(self, name: str, version: Version) -> bool:
        """Is the list complete up to this release?"""
        known = self.packages.get(name)
        return bool(known) and not version.is_prerelease and version <= max(known or ())

    def exists(self, name: str, version: Version) -> bool:
        return Version(version.public) in self.packages[name]

    def tags(self, name: str, version: Version) -> str:
        return self.packages.get(name, {}).get(Version(version.public), "")

    def has_wheel(self, name: str, version: Version, python: str) -> bool:
        return _fits(self.tags(name, version), python)

    def has_source(self, name: str, version: Version) -> bool:
        return "source" in self.tags(name, version)

    def pythons(self, name: str, version: Version) -> list[str]:
        """The Pythons with a wheel, as far as the table goes."""
        return [f"3.{minor}" for minor in range(6, 16) if self.has_wheel(name, version, f"3.{minor}")]


def _fits(tags: str, python: str) -> bool:
    wanted = Version(python)
    for tag in tags.split():
        if tag.endswith("+") and wanted >= Version(tag[:-1]):
            return True
        first, _, last = tag.partition("-")
        if tag[0] == "3" and not tag.endswith("+") and Version(first) <= wanted <= Version(last or first):
            return True
    return False


@cache
def wheels() -> Wheels:
    said = json.loads(files(__package__).joinpath("data/wheels.json").read_text("utf-8"))
    packages = {
        name: {Version(version): tags for tags, listed in rows.items() for version in listed.split()}
        for name, rows in said["packages"].items()
    }
    return Wheels(
        dated=date.fromisoformat(said["dated"]),
        musl=frozenset(said["musl"]),
        packages=packages,
        bound_to_torch={
            name: {Version(one): Version(torch) for one, torch in rows.items()}
            for name, rows in said["bound_to_torch"].items()
        },
        triton_of_torch={Version(a): Version(b) for a, b in said["triton_of_torch"].items()},
        older_sisters={minor: (row[0], row[1]) for minor, row in said["sisters_before_matrix"].items()},
        cuda_builds={minor: tuple(row) for minor, row in said["cuda_builds"].items()},
        image_cudas={minor: tuple(row) for minor, row in said["image_cudas"].items()},
    )

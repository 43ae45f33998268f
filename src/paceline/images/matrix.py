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

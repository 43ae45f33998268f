"""How does a participant write its snapshot, whole or not at all, and read it back verified?

The layout is described in catalog.py. Tensors are stored as safetensors:
nothing is ever unpickled.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from paceline.checkpoints.catalog import DAMAGED, verified
from paceline.checkpoints.sealed import seal
from paceline.disk import make_folder, write_durably
from paceline.errors import DamagedCheckpointError, MisfitError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one participant needs to go on: named tensors, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # Any: JSON


def does_not_fit(why: str) -> MisfitError:
    return MisfitError(
        f"the checkpoint does not fit what is trained: {why}",
        "resume with the task, the model and the optimizer that it was made with",
    )


def to_bytes(snapshot: Snapshot) -> bytes:
    """In one piece, for another process's memory."""
    facts = json.dumps(snapshot.facts).encode()
    return len(facts).to_bytes(8, "little") + facts + save(snapshot.tensors)


def from_bytes(data: bytes) -> Snapshot:
    end = 8 + int.from_bytes(data[:8], "little")
    return Snapshot(load(data[end:]), json.loads(data[8:end]))


def write_snapshot(folder: Path, who: str, snapshot: Snapshot) -> None:
    write_image(folder, who, save(snapshot.tensors), snapshot.facts)


@dataclass(frozen=True, slots=True)
class Wrote:
    nbytes: int
    sha256: str


def write_image(
    folder: Path,
    who: str,
    tensors: bytes | memoryview,
    facts: dict[str, Any],  # Any: JSON
) -> Wrote:
    """The same from a safetensors file in memory. OSError when it does not fit on the disk."""
    make_folder(folder)
    sealed, sha256 = seal(facts, tensors)
    write_durably(folder / f"{who}.safetensors", [tensors])
    write_durably(folder / f"{who}.json", [sealed])
    return Wrote(len(tensors) + len(sealed), sha256)


def read_snapshot(folder: Path, who: str) -> Snapshot:
    """The participant's snapshot, verified."""
    try:
        found = verified(folder, who)
    except DAMAGED as error:
        raise DamagedCheckpointError(
            f"the checkpoint {folder} is damaged: {error}",
            f"remove {folder} and resume from the checkpoint before it",
        ) from error
    return Snapshot(load(found.tensors), found.facts)

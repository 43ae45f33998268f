"""How does a participant write its snapshot, whole or not at all, and read it back verified?

The layout is described in catalog.py. Tensors are stored as safetensors:
nothing is ever unpickled.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from paceline.checkpoints.catalog import checksum, facts_of
from paceline.errors import PacelineError

KEPT = 3  # complete checkpoints that remain; older ones are removed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one participant needs to go on: named tensors, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # Any: JSON


def to_bytes(snapshot: Snapshot) -> bytes:
    """In one piece, for another process's memory."""
    facts = json.dumps(snapshot.facts).encode()
    return len(facts).to_bytes(8, "little") + facts + save(snapshot.tensors)


def from_bytes(data: bytes) -> Snapshot:
    end = 8 + int.from_bytes(data[:8], "little")
    return Snapshot(load(data[end:]), json.loads(data[8:end]))


def write_snapshot(folder: Path, who: str, snapshot: Snapshot) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = save(snapshot.tensors)
    _write(folder / f"{who}.safetensors", data)
    # Through JSON and back first: tuples become lists there, and the checksum is over what is read.
    facts = json.loads(json.dumps(snapshot.facts))
    said = {"sha256": checksum(data, facts), "facts": facts}
    _write(folder / f"{who}.json", json.dumps(said).encode())


def read_snapshot(folder: Path, who: str) -> Snapshot:
    """The participant's snapshot, verified."""
    try:
        facts = facts_of(folder, who)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PacelineError(
            f"the checkpoint {folder} is damaged: {error}",
            f"remove {folder} and resume from the checkpoint before it",
        ) from error
    return Snapshot(load((folder / f"{who}.safetensors").read_bytes()), facts)


def remove_old(root: Path, *, participants: int) -> None:
    """Remove what is older than enough complete checkpoints; workers may be several of them apart."""
    folders = sorted(root.glob("at-*"))
    complete = [folder for folder in folders if len(list(folder.glob("*.json"))) >= participants]
    for folder in folders:
        if len(complete) >= KEPT and folder < complete[-KEPT]:
            shutil.rmtree(folder, ignore_errors=True)  # another participant may be removing it too


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, even if the machine stops."""
    part = path.with_suffix(path.suffix + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)

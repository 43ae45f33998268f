"""Where do snapshots lie, and which of them can be trusted?

`checkpoints/at-00000200/worker-0.safetensors` holds one participant's tensors,
`worker-0.json` beside it the rest and the tensors' SHA-256. The JSON is
written last and by renaming, so a snapshot either verifies or does not exist.
A checkpoint is complete when every participant's snapshot is there.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from paceline.errors import PacelineError

KEPT = 3  # complete checkpoints that remain; older ones are removed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one participant needs to go on: named tensors, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # Any: JSON


def folder_at(root: Path, number: int) -> Path:
    return root / f"at-{number:08d}"


def write_snapshot(folder: Path, who: str, snapshot: Snapshot) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = save(snapshot.tensors)
    _write(folder / f"{who}.safetensors", data)
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "facts": snapshot.facts}
    _write(folder / f"{who}.json", json.dumps(facts).encode())


def read_snapshot(folder: Path, who: str) -> Snapshot:
    """The participant's snapshot, verified."""
    path = folder / f"{who}.safetensors"
    data = path.read_bytes()
    said = json.loads((folder / f"{who}.json").read_text())
    if hashlib.sha256(data).hexdigest() != said["sha256"]:
        raise PacelineError(
            f"{path} does not match its checksum: it was damaged after it was written",
            f"remove {folder} and resume from the checkpoint before it",
        )
    return Snapshot(load(data), said["facts"])


def newest_complete(root: Path, participants: Sequence[str]) -> Path | None:
    """The latest folder in which every participant's snapshot is there and verifies."""
    for folder in sorted(root.glob("at-*"), reverse=True):
        if all(_is_whole(folder, who) for who in participants):
            return folder
    return None


def remove_old(root: Path) -> None:
    for folder in sorted(root.glob("at-*"))[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)  # another participant may be removing it too


def _is_whole(folder: Path, who: str) -> bool:
    try:
        read_snapshot(folder, who)
    except (OSError, ValueError, KeyError, PacelineError):
        return False  # incomplete or damaged: the caller looks at the one before it
    return True


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, even if the machine stops."""
    part = path.with_suffix(path.suffix + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)

"""Which checkpoints of a run are complete, and what do they say? Without importing torch.

`checkpoints/at-00000200/worker-0.safetensors` holds one participant's tensors,
`worker-0.json` beside it the rest and the SHA-256 of both. The JSON is
written last and by renaming, so a snapshot either verifies or does not exist.
A checkpoint is complete when every participant's snapshot is there.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: where it is, and how far each worker was."""

    folder: Path
    version: int  # updates behind a server; steps without one
    clocks: tuple[int, ...]  # finished steps, by rank
    passed_over: tuple[str, ...] = ()  # newer ones that are incomplete or damaged


def folder_at(root: Path, number: int) -> Path:
    return root / f"at-{number:08d}"


def facts_of(folder: Path, who: str) -> dict[str, Any]:  # Any: JSON
    """What the snapshot says besides its tensors; OSError or ValueError when it is not whole."""
    said = json.loads((folder / f"{who}.json").read_text())
    data = (folder / f"{who}.safetensors").read_bytes()
    facts: dict[str, Any] = said["facts"]
    if checksum(data, facts) != said["sha256"]:
        raise ValueError(f"{folder}/{who} does not match its checksum")
    return facts


def checksum(tensors: bytes, facts: dict[str, Any]) -> str:  # Any: JSON
    """Over both parts of a snapshot: a clock that changed is as bad as a weight that did."""
    digest = hashlib.sha256(tensors)
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def newest_complete(root: Path, num_workers: int) -> Checkpoint | None:
    """The latest checkpoint whose snapshots are all there and all verify."""
    return _newest(root, lambda folder: _read(folder, num_workers))


def newest_shared(root: Path, num_workers: int) -> Checkpoint | None:
    """The same for an elastic run, whose workers are all equal: one of them saves for all."""
    return _newest(root, lambda folder: _read_shared(folder, num_workers))


def _newest(root: Path, read: Callable[[Path], Checkpoint]) -> Checkpoint | None:
    passed_over: list[str] = []
    for folder in sorted(root.glob("at-*"), reverse=True):
        try:
            return replace(read(folder), passed_over=tuple(passed_over))
        except (OSError, ValueError, KeyError, TypeError):
            passed_over.append(folder.name)  # incomplete or damaged: the one before it is looked at instead
    return None


def _read_shared(folder: Path, num_workers: int) -> Checkpoint:
    at = int(facts_of(folder, "worker-0")["at"])
    return Checkpoint(folder, at, (at,) * num_workers)


def _read(folder: Path, num_workers: int) -> Checkpoint:
    if (folder / "server-0.json").exists():
        facts = facts_of(folder, "server-0")
        clocks = tuple(int(facts["clocks"][str(rank)]) for rank in range(num_workers))
        return Checkpoint(folder, int(facts["version"]), clocks)
    clocks = tuple(int(facts_of(folder, f"worker-{rank}")["clock"]) for rank in range(num_workers))
    return Checkpoint(folder, max(clocks), clocks)

"""Which checkpoints of a run are complete, and what do they say? Without importing torch.

`checkpoints/at-00000200/worker-0.safetensors` holds one participant's tensors,
`worker-0.json` beside it the rest and the SHA-256 of both. The JSON is
written last and by renaming, so a snapshot either verifies or does not exist.
A checkpoint is complete when every participant's snapshot is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.checkpoints.sealed import unseal

PARTS = "parts"  # said where each worker has a part of one state: how many make it whole
DAMAGED = (OSError, ValueError, KeyError, TypeError)  # what reading a snapshot that is not whole raises


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: where it is, and how far each worker was."""

    folder: Path
    version: int  # updates behind a server; steps without one
    clocks: tuple[int, ...]  # finished steps, by rank
    passed_over: tuple[str, ...] = ()  # newer ones that are incomplete or damaged
    warnings: tuple[str, ...] = ()  # what else whoever resumes should know


@dataclass(frozen=True, slots=True)
class Verified:
    """One participant's snapshot, as bytes that were checked."""

    facts: dict[str, Any]  # Any: JSON
    tensors: bytes  # a safetensors file
    sha256: str


def folder_at(root: Path, number: int) -> Path:
    return root / f"at-{number:08d}"


def number_of(folder: Path) -> int:
    return int(folder.name.removeprefix("at-"))


def folders(root: Path) -> list[Path]:
    """Of all checkpoints, whole or not, oldest first."""
    return sorted((f for f in root.glob("at-*") if f.name[3:].isdigit()), key=number_of)


def verified(folder: Path, who: str) -> Verified:
    """The participant's snapshot; one of DAMAGED when it is not whole."""
    raw = (folder / f"{who}.json").read_bytes()
    tensors = (folder / f"{who}.safetensors").read_bytes()
    try:
        facts, sha256 = unseal(raw, tensors)
    except ValueError as error:
        raise ValueError(f"{folder}/{who}: {error}") from error
    return Verified(facts, tensors, sha256)


def facts_of(folder: Path, who: str) -> dict[str, Any]:  # Any: JSON
    """What the snapshot says besides its tensors; one of DAMAGED when it is not whole."""
    return verified(folder, who).facts


def newest_complete(root: Path, num_workers: int) -> Checkpoint | None:
    """The latest checkpoint whose snapshots are all there and all verify."""
    return _newest(root, lambda folder: read_complete(folder, num_workers))


def newest_shared(root: Path, num_workers: int) -> Checkpoint | None:
    """The same for an elastic run, whose workers are all equal: one of them saves for all."""
    return _newest(root, lambda folder: read_shared(folder, num_workers))


def _newest(root: Path, read: Callable[[Path], Checkpoint]) -> Checkpoint | None:
    passed_over: list[str] = []
    for folder in reversed(folders(root)):
        try:
            return replace(read(folder), passed_over=tuple(passed_over))
        except DAMAGED:
            passed_over.append(folder.name)  # incomplete or damaged: the one before it is looked at instead
    return None


def read_shared(folder: Path, num_workers: int) -> Checkpoint:
    at = int(facts_of(folder, "worker-0")["at"])
    return Checkpoint(folder, at, (at,) * num_workers)


def read_complete(folder: Path, num_workers: int) -> Checkpoint:
    if (folder / "server-0.json").exists():
        facts = facts_of(folder, "server-0")
        clocks = tuple(int(facts["clocks"][str(rank)]) for rank in range(num_workers))
        return Checkpoint(folder, int(facts["version"]), clocks)
    first = facts_of(folder, "worker-0")
    if PARTS in first:
        return _read_parts(folder, first, num_workers)
    others = (facts_of(folder, f"worker-{rank}") for rank in range(1, num_workers))
    clocks = tuple(int(facts["clock"]) for facts in (first, *others))
    return Checkpoint(folder, max(clocks), clocks)


def _read_parts(folder: Path, first: dict[str, Any], num_workers: int) -> Checkpoint:  # Any: JSON
    """Parts of one state fit any number of workers, but must be of one moment."""
    moment = (PARTS, "clock", "generation")
    for rank in range(1, int(first[PARTS])):
        facts = facts_of(folder, f"worker-{rank}")
        if any(facts.get(key) != first.get(key) for key in moment):
            raise ValueError(f"{folder}/worker-{rank} is a part of another state than worker-0")
    clock = int(first["clock"])
    return Checkpoint(folder, clock, (clock,) * num_workers)

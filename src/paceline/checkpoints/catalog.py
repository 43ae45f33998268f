"""Checkpoint catalog: which checkpoints of a run are complete, read without torch.

`checkpoints/at-00000200/worker-0.safetensors` holds one participant's tensors,
`worker-0.json` next to it the rest and the SHA-256 of both. The JSON is
written last and by renaming, so a snapshot either verifies or does not exist.
A checkpoint is complete when every participant's snapshot is there.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.sealed_json import unseal

PARTS = "parts"  # key of the number of parts, where each worker has a part of one state
DAMAGED = (OSError, ValueError, KeyError, TypeError)  # errors of reading an incomplete snapshot


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its path, and the progress of each worker."""

    folder: Path
    version: int  # updates behind a server; steps without one
    clocks: tuple[int, ...]  # finished steps, by rank
    passed_over: tuple[str, ...] = ()  # newer ones that are incomplete or damaged
    warnings: tuple[str, ...] = ()  # shown to a user who resumes from it


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
    """Folders of all checkpoints, complete or not, oldest first."""
    return sorted((f for f in root.glob("at-*") if f.name[3:].isdigit()), key=number_of)


def verified(folder: Path, participant: str) -> Verified:
    """The participant's snapshot; one of DAMAGED when it is not whole."""
    raw = (folder / f"{participant}.json").read_bytes()
    tensors = (folder / f"{participant}.safetensors").read_bytes()
    try:
        facts, sha256 = unseal(raw, tensors)
    except ValueError as error:
        raise ValueError(f"{folder}/{participant}: {error}") from error
    return Verified(facts, tensors, sha256)


def facts_of(folder: Path, participant: str) -> dict[str, Any]:  # Any: JSON
    """The facts of a snapshot, without its tensors; raises one of DAMAGED when it is not whole."""
    return verified(folder, participant).facts


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
            passed_over.append(folder.name)  # incomplete or damaged: the one before it is inspected instead
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
    rest = (facts_of(folder, f"worker-{rank}") for rank in range(1, num_workers))
    clocks = tuple(int(facts["clock"]) for facts in (first, *rest))
    return Checkpoint(folder, max(clocks), clocks)


def _read_parts(folder: Path, first: dict[str, Any], num_workers: int) -> Checkpoint:  # Any: JSON
    """Parts of one state fit any number of workers, but must be of one moment."""
    moment = (PARTS, "clock", "generation")
    for rank in range(1, int(first[PARTS])):
        facts = facts_of(folder, f"worker-{rank}")
        if any(facts.get(key) != first.get(key) for key in moment):
            raise ValueError(f"{folder}/worker-{rank} and worker-0 are shards of different states")
    clock = int(first["clock"])
    return Checkpoint(folder, clock, (clock,) * num_workers)


# Workers may be several checkpoints apart, so what counts is how many are
# complete. Before anything is removed, one of those that stay is read and
# checked: a disk that damages what it is given must not cost the last good one.

KEEP_CHECKPOINTS = 3  # complete checkpoints that remain, unless the plan sets another number


def is_complete(folder: Path, participants: int) -> bool:
    """Whether all snapshots exist, by names alone; they are not verified."""
    return len(list(folder.glob("*.json"))) >= participants


def remove_old(root: Path, *, participants: int, keep: int = KEEP_CHECKPOINTS) -> list[int]:
    """The numbers of those that were removed."""
    existing = folders(root)
    complete = [folder for folder in existing if is_complete(folder, participants)]
    if len(complete) < keep:
        return []
    old = [folder for folder in existing if number_of(folder) < number_of(complete[-keep])]
    if not old or not any(_verifies(folder) for folder in reversed(complete[-keep:])):
        return []
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)  # another participant may be removing it too
    return [number_of(folder) for folder in old]


def set_aside(root: Path, *, after: int) -> list[str]:
    """Take checkpoints behind number `after` out of the way; their names.

    A run that resumes from an older one writes these numbers again, and in modes whose order is up to
    chance its snapshots must not meet those of a history that never happened.
    """
    newer = [folder for folder in folders(root) if number_of(folder) > after]
    for folder in newer:
        aside = folder.with_name(f"set-aside-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return [folder.name for folder in newer]


def return_to_newest(root: Path, num_workers: int) -> int:
    """The number of the newest complete checkpoint, -1 if there is none. Newer ones are set aside."""
    newest = newest_complete(root, num_workers)
    number = -1 if newest is None else number_of(newest.folder)
    set_aside(root, after=number)
    return number


def _verifies(folder: Path) -> bool:
    try:
        for path in folder.glob("*.json"):
            facts_of(folder, path.stem)
    except DAMAGED:
        return False
    return True


# For states in parts: a reader that joins them needs the parts of all. Files are verified when they are
# read, as on any disk.

_SUFFIXES = (".json", ".safetensors")


def pack_checkpoint(folder: Path) -> bytes:
    files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    contents = [file.read_bytes() for file in files]
    names = json.dumps([[file.name, len(data)] for file, data in zip(files, contents, strict=True)]).encode()
    return b"".join([len(names).to_bytes(8, "little"), names, *contents])


@contextmanager
def unpack_checkpoint(data: bytes) -> Iterator[Path]:
    """A temporary folder with the files that only this user can access; removed afterwards."""
    at = 8 + int.from_bytes(data[:8], "little")
    with tempfile.TemporaryDirectory(prefix="paceline-parts-") as folder:
        for name, size in json.loads(data[8:at]):
            if Path(name).name != name or Path(name).suffix not in _SUFFIXES:
                raise ValueError(f"{name!r} is not a file of a checkpoint")
            (Path(folder) / name).write_bytes(memoryview(data)[at : at + size])
            at += size
        yield Path(folder)

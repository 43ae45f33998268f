"""Offline verification of a node's data: read and replay its log without changing a file.

A torn end is harmless: it was never acknowledged, and the node truncates it on start. Any
other record that does not verify is damage. The commit index is not on disk, so the last
entries may still be replaced by a leader.
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.membership import Memberships
from paceline.coordinator.raft.types import Entry, EntryKind, Membership, NodeId
from paceline.coordinator.server import storage as records
from paceline.coordinator.server.storage import RecordKind, StorageError, StoredState, read_folder
from paceline.coordinator.state.machine import CoordinatorState
from paceline.core.errors import ClusterOptionError, ExitCode, PacelineError, Problem

MAX_REREADS = 20  # times, when a running node changes its files meanwhile
_REPLACE = "do not start this node from it: delete the folder and add the node again under a new number"


class DamagedError(PacelineError):
    """A node's folder does not hold what it must."""

    exit_code = ExitCode.GATE_FAILED
    code = "E508"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    run: str
    phase: str
    generation: int
    workers: int  # that live
    checkpoints: int  # that are committed
    committed_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    node: int
    is_in_use: bool  # by a node that runs
    files: int
    records: int
    torn_bytes: int
    term: int
    vote: int | None
    snapshot_index: int
    snapshot_bytes: int
    first_index: int
    last_index: int
    commands: int
    unknown_commands: int  # of a newer version
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    runs: tuple[RunLine, ...]
    sessions: int
    actions: int


def verify(folder: Path) -> Verified:
    """What is in there; a DamagedError if it cannot be trusted."""
    found, node = _read_steadily(folder)
    entries = found.entries
    _check_terms(folder, found)
    state, commands, unknown = _replay(folder, found)
    members = Memberships(RaftLog(found.snapshot, entries)).latest
    return Verified(
        node=node,
        is_in_use=_is_in_use(folder),
        files=found.files,
        records=found.records,
        torn_bytes=found.torn_bytes,
        term=found.hard_state.term,
        vote=found.hard_state.vote,
        snapshot_index=found.snapshot.index,
        snapshot_bytes=len(found.snapshot.data),
        first_index=entries[0].index if entries else 0,
        last_index=entries[-1].index if entries else found.snapshot.index,
        commands=commands,
        unknown_commands=unknown,
        voters=tuple(sorted(members.voters)),
        learners=tuple(sorted(members.learners)),
        runs=tuple(_runs(state)),
        sessions=len(state.sessions),
        actions=len(state.actions),
    )


def _read_steadily(folder: Path) -> tuple[StoredState, NodeId]:
    """A node that runs may put a snapshot in the place of its log at any time: then look again."""
    before = _files(folder)
    if not before:
        what = f"{folder} holds no log of a coordinator node"
        raise ClusterOptionError(
            [Problem(what, "give what a node was started with as --data-dir", "DATA_DIR")]
        )
    for _ in range(MAX_REREADS):
        try:
            node = _node_of(before)
            _check_snapshots(before)
            found = read_folder(folder, node, Membership(frozenset()))
            failure: Exception | None = None
        except (OSError, ValueError, struct.error, StorageError, DamagedError) as error:
            failure = error
        after = _files(folder)
        if after == before:
            if failure is None:
                return found, node
            raise _damaged(folder, failure) from failure
        before = after
    raise StorageError(
        f"the files in {folder} change faster than they can be read", "stop the node, or verify a copy"
    )


def _files(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("wal-*.log")), *sorted(folder.glob("snapshot-*.bin"))]


def _damaged(folder: Path, failure: Exception) -> PacelineError:
    if isinstance(failure, DamagedError):
        return failure
    if isinstance(failure, StorageError):
        return DamagedError(failure.what, _REPLACE)
    if isinstance(failure, OSError):
        return StorageError(
            f"cannot read {failure.filename}: {failure.strerror}", "run this as the user that runs the node"
        )
    return DamagedError(f"{folder} holds a record that cannot be read: {failure}", _REPLACE)


def _node_of(files: Sequence[Path]) -> NodeId:
    """Whose log it is: every file begins with that."""
    for path in files:
        with path.open("rb") as file:
            first = next(records.read_records(file.read(1 << 12)), None)
        if first is not None and first[1] is RecordKind.FORMAT:
            content = json.loads(first[2])
            if isinstance(content, dict) and isinstance(content.get("node"), int):
                return NodeId(content["node"])
    raise DamagedError(f"no file in {files[0].parent} says which node it belongs to", _REPLACE)


def _check_snapshots(files: Sequence[Path]) -> None:
    for path in files:
        if path.suffix == ".bin":
            data = path.read_bytes()
            found = list(records.read_records(data))
            kinds = [kind for _, kind, _ in found]
            if kinds != [RecordKind.FORMAT, RecordKind.SNAPSHOT] or found[-1][0] != len(data):
                raise DamagedError(f"{path} is no whole snapshot: its checksum does not match", _REPLACE)


def _check_terms(folder: Path, found: StoredState) -> None:
    """Terms never go back in a log, and a node has seen every term that is in its log."""
    before = found.snapshot.term
    for entry in found.entries:
        if entry.term < before:
            what = f"{folder}: entry {entry.index} is of term {entry.term}, after one of term {before}"
            raise DamagedError(what, _REPLACE)
        before = entry.term
    if found.hard_state.term < before:
        what = (
            f"{folder}: the node has entries of term {before}, but says its term is {found.hard_state.term}"
        )
        raise DamagedError(what, _REPLACE)


def _replay(folder: Path, found: StoredState) -> tuple[CoordinatorState, int, int]:
    """(the state, how many commands led from the snapshot to it, how many of them are unknown)."""
    try:
        state = CoordinatorState.restore(found.snapshot.data)
    except DecodeError as error:
        raise DamagedError(f"the snapshot in {folder} holds no state: {error}", _REPLACE) from error
    if state.applied > found.snapshot.index:
        what = f"the snapshot in {folder} says {found.snapshot.index}, but its state is of {state.applied}"
        raise DamagedError(what, _REPLACE)
    commands = [entry for entry in found.entries if entry.kind is EntryKind.COMMAND]
    for entry in commands:
        state.apply(entry.index, entry.data)
    return state, len(commands), sum(not _is_known(entry) for entry in commands)


def _is_known(entry: Entry) -> bool:
    try:
        return pb.Command.FromString(entry.data).WhichOneof("what") is not None
    except DecodeError:
        return False


def _runs(state: CoordinatorState) -> Iterator[RunLine]:
    for name, record in (*state.runs.items(), *state.ended_runs.items()):
        yield RunLine(
            run=name,
            phase=pb.RunPhase.Name(record.run.phase).removeprefix("RUN_").lower(),
            generation=record.run.generation,
            workers=len(record.workers),
            checkpoints=len(record.committed),
            committed_step=record.run.committed_step,
        )


def _is_in_use(folder: Path) -> bool:
    """Does a node hold its lock? Asked without taking it for longer than the question."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

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

MAX_REREADS = 20  # if a running node changes its files meanwhile
_REPLACE = "do not start this node from it: delete the folder and add the node again under a new number"


class DamagedError(PacelineError):
    """A node's folder is damaged."""

    exit_code = ExitCode.GATE_FAILED
    code = "E508"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    run: str
    phase: str
    generation: int
    workers: int  # live workers
    checkpoints: int  # that are committed
    committed_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    node: int
    is_in_use: bool  # used by a running node
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
    unknown_commands: int  # commands of a newer version
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    runs: tuple[RunLine, ...]
    sessions: int
    actions: int


def verify(folder: Path) -> Verified:
    """The content of a node's folder; a DamagedError if it is damaged."""
    stored, node = _read_consistently(folder)
    entries = stored.entries
    _check_terms(folder, stored)
    state, commands, unknown = _replay(folder, stored)
    members = Memberships(RaftLog(stored.snapshot, entries)).latest
    return Verified(
        node=node,
        is_in_use=_is_in_use(folder),
        files=stored.files,
        records=stored.records,
        torn_bytes=stored.torn_bytes,
        term=stored.hard_state.term,
        vote=stored.hard_state.vote,
        snapshot_index=stored.snapshot.index,
        snapshot_bytes=len(stored.snapshot.data),
        first_index=entries[0].index if entries else 0,
        last_index=entries[-1].index if entries else stored.snapshot.index,
        commands=commands,
        unknown_commands=unknown,
        voters=tuple(sorted(members.voters)),
        learners=tuple(sorted(members.learners)),
        runs=tuple(_runs(state)),
        sessions=len(state.sessions),
        actions=len(state.actions),
    )


def _read_consistently(folder: Path) -> tuple[StoredState, NodeId]:
    """A running node may replace its log by a snapshot at any time: then read again."""
    before = _files(folder)
    if not before:
        message = f"{folder} holds no log of a coordinator node"
        raise ClusterOptionError([Problem(message, "give the --data-dir of a node", "DATA_DIR")])
    for _ in range(MAX_REREADS):
        try:
            node = _node_of(before)
            _check_snapshots(before)
            stored = read_folder(folder, node, Membership(frozenset()))
            failure: Exception | None = None
        except (OSError, ValueError, struct.error, StorageError, DamagedError) as error:
            failure = error
        after = _files(folder)
        if after == before:
            if failure is None:
                return stored, node
            raise _as_error(folder, failure) from failure
        before = after
    raise StorageError(
        f"the files in {folder} change faster than they can be read", "stop the node, or verify a copy"
    )


def _files(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("wal-*.log")), *sorted(folder.glob("snapshot-*.bin"))]


def _as_error(folder: Path, failure: Exception) -> PacelineError:
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
    """The node that owns the files: every file begins with its number."""
    for path in files:
        with path.open("rb") as file:
            first = next(records.read_records(file.read(1 << 12)), None)
        if first is not None and first[1] is RecordKind.FORMAT:
            content = json.loads(first[2])
            if isinstance(content, dict) and isinstance(content.get("node"), int):
                return NodeId(content["node"])
    raise DamagedError(f"no file in {files[0].parent} records which node it belongs to", _REPLACE)


def _check_snapshots(files: Sequence[Path]) -> None:
    for path in files:
        if path.suffix == ".bin":
            data = path.read_bytes()
            entries = list(records.read_records(data))
            kinds = [kind for _, kind, _ in entries]
            if kinds != [RecordKind.FORMAT, RecordKind.SNAPSHOT] or entries[-1][0] != len(data):
                raise DamagedError(
                    f"{path} is not a complete snapshot: its checksum does not match", _REPLACE
                )


def _check_terms(folder: Path, stored: StoredState) -> None:
    """Terms never decrease in a log, and the current term is at least that of the last entry."""
    before = stored.snapshot.term
    for entry in stored.entries:
        if entry.term < before:
            message = f"{folder}: entry {entry.index} is of term {entry.term}, after one of term {before}"
            raise DamagedError(message, _REPLACE)
        before = entry.term
    if stored.hard_state.term < before:
        message = (
            f"{folder}: the node has entries of term {before}, but its stored term is "
            f"{stored.hard_state.term}"
        )
        raise DamagedError(message, _REPLACE)


def _replay(folder: Path, stored: StoredState) -> tuple[CoordinatorState, int, int]:
    """(the state, how many commands led from the snapshot to it, how many of them are unknown)."""
    try:
        state = CoordinatorState.restore(stored.snapshot.data)
    except DecodeError as error:
        raise DamagedError(f"the snapshot in {folder} holds no state: {error}", _REPLACE) from error
    if state.applied > stored.snapshot.index:
        message = (
            f"the snapshot in {folder} is recorded as of entry {stored.snapshot.index}, but its state is "
            f"of entry {state.applied}"
        )
        raise DamagedError(message, _REPLACE)
    commands = [entry for entry in stored.entries if entry.kind is EntryKind.COMMAND]
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
    """Whether a node holds its lock; the test takes the lock only for a moment."""
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

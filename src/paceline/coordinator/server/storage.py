"""Durable storage of a node: write-ahead log and snapshots.

`wal-NNNNNNNN.log` holds records in the order in which they were written; only the file with the
largest number counts, because each file begins with everything that is needed in addition to the
snapshot of its time. `snapshot-INDEX.bin` holds a snapshot. The arguments of `save` are on disk
when it returns (one write, one fsync).

A record that was torn by a crash can only be the last one, and was never acknowledged: it is left
out. Damage anywhere else is an error: a node that has lost a promise must not vote.

Record format: all numbers are little-endian. The CRC covers length, kind and payload, so that a
wrong length cannot make wrong bytes verify.
"""

import errno
import fcntl
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.membership import decode, encode
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    NodeId,
    Snapshot,
    Term,
)
from paceline.core.disk import DurableFiles, DurableFolder
from paceline.core.errors import NotReadyError

_HEAD = struct.Struct("<IIB")  # length of the payload, CRC-32, kind
_ENTRY = struct.Struct("<QQB")
_HARD_STATE = struct.Struct("<QBQ")
_SNAPSHOT = struct.Struct("<QQI")
MAX_RECORD_BYTES = 1 << 30


class RecordKind(IntEnum):
    HARD_STATE = 1
    ENTRY = 2
    SNAPSHOT = 3  # in a snapshot file, whole
    FORMAT = 4  # the first record of every file


_KINDS = frozenset(RecordKind)
_KIND_BYTE = re.compile(b"[\x01-\x04]")  # the members of RecordKind
_KIND_OFFSET = _HEAD.size - 1
_SECTOR_BYTES = 512
FORMAT_HEADER = {"format": "paceline.raft/1"}


def record(kind: RecordKind, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<IB", len(payload), kind)))
    return _HEAD.pack(len(payload), crc, kind) + payload


def format_record(node: NodeId) -> bytes:
    return record(RecordKind.FORMAT, json.dumps({**FORMAT_HEADER, "node": node}, sort_keys=True).encode())


def hard_state_record(state: HardState) -> bytes:
    vote = 0 if state.vote is None else state.vote
    return record(RecordKind.HARD_STATE, _HARD_STATE.pack(state.term, state.vote is not None, vote))


def entry_record(entry: Entry) -> bytes:
    return record(RecordKind.ENTRY, _ENTRY.pack(entry.index, entry.term, entry.kind) + entry.data)


def snapshot_record(snapshot: Snapshot) -> bytes:
    members = encode(snapshot.membership)
    head = _SNAPSHOT.pack(snapshot.index, snapshot.term, len(members))
    return record(RecordKind.SNAPSHOT, head + members + snapshot.data)


def read_records(data: bytes) -> Iterator[tuple[int, RecordKind, bytes]]:
    """(where the record ends, its kind, its payload), up to the first one that does not verify."""
    start = 0
    while (end := _verified_end(data, start)) is not None:
        yield end, RecordKind(data[start + _KIND_OFFSET]), data[start + _HEAD.size : end]
        start = end


def is_torn_end(data: bytes, start: int) -> bool:
    """Whether the bytes from `start` on are an append that a crash interrupted, and not a damaged record.

    An interrupted append leaves a beginning of what was written. The file may have grown to its whole
    length, with zeros where blocks were not written. So a record that verifies behind `start`, at any
    distance, proves damage, and so does a record of full length without such zeros.
    """
    if _has_record_behind(data, start):
        return False
    if start + _HEAD.size > len(data):
        return True
    length, _, _ = _HEAD.unpack_from(data, start)
    end = start + _HEAD.size + length
    if end > len(data) or data[end - 1] == 0:
        return True
    boundaries = [start, *range(start - start % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(not any(data[a:b]) for a, b in pairwise(boundaries))


def _has_record_behind(data: bytes, start: int) -> bool:
    """Whether a valid record follows. A damaged length does not locate it, so every offset is tried."""
    candidates = _KIND_BYTE.finditer(data, start + 1 + _KIND_OFFSET)
    return any(_verified_end(data, match.start() - _KIND_OFFSET) is not None for match in candidates)


def _verified_end(data: bytes, start: int) -> int | None:
    """End of the record at `start`; None if no valid record is there."""
    if start + _HEAD.size > len(data):
        return None
    length, crc, kind = _HEAD.unpack_from(data, start)
    end = start + _HEAD.size + length
    if length > MAX_RECORD_BYTES or end > len(data) or kind not in _KINDS:
        return None
    payload = memoryview(data)[start + _HEAD.size : end]
    is_intact = zlib.crc32(payload, zlib.crc32(struct.pack("<IB", length, kind))) == crc
    return end if is_intact else None


def to_hard_state(payload: bytes) -> HardState:
    term, has_vote, vote = _HARD_STATE.unpack(payload)
    return HardState(Term(term), NodeId(vote) if has_vote else None)


def to_entry(payload: bytes) -> Entry:
    index, term, kind = _ENTRY.unpack_from(payload)
    return Entry(Index(index), Term(term), EntryKind(kind), payload[_ENTRY.size :])


def to_snapshot(payload: bytes) -> Snapshot:
    index, term, size = _SNAPSHOT.unpack_from(payload)
    members = payload[_SNAPSHOT.size : _SNAPSHOT.size + size]
    return Snapshot(Index(index), Term(term), decode(members), payload[_SNAPSHOT.size + size :])


NUM_SNAPSHOTS = 2
_NOT_TRUSTED = "this node can no longer be trusted: delete its folder and add it as a new node"


class StorageError(NotReadyError):
    """The disk cannot be read or written, or its data is damaged."""

    code = "E509"


@dataclass(frozen=True, slots=True)
class StoredState:
    """The data on disk, and what was left out while reading."""

    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry]
    torn_bytes: int
    files: int
    records: int
    is_unfinished: bool = False  # a crash occurred between a snapshot and its log file

    def log(self) -> RaftLog:
        return RaftLog(self.snapshot, self.entries)


class Storage:
    """One node's folder. Only one process may use it."""

    def __init__(self, folder: Path, node: NodeId, *, files: DurableFiles | None = None) -> None:
        self._folder = folder
        self._node = node
        self._lock: int | None = None
        if files is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock_file(folder / "lock")
        self._files = files or DurableFolder(folder)
        self._number = 0

    def load(self, first: Membership, *, after_failure: bool = False) -> StoredState:
        """Read everything, leave out a torn end, and get ready to append.

        `first` is the membership of a new log; later the folder holds the membership.
        `after_failure`: a write or a sync has failed, so the data counts only once it is written again.
        """
        stored = read_files(self._folder, self._files, self._node, first)
        numbers = _wal_numbers(self._files)
        self._number = numbers[-1] if numbers else 0
        if not numbers:
            # Written once: nodes that assumed different voters could each find a majority.
            self._write_snapshot(stored.snapshot)
            self._begin_file([])
        elif stored.torn_bytes or stored.is_unfinished or after_failure:
            self._begin_file(_encode_log(stored.hard_state, stored.entries))
            self._remove_old()
        return stored

    def save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Append, in one write; on disk when this returns."""
        parts = [] if hard_state is None else [hard_state_record(hard_state)]
        parts += [entry_record(entry) for entry in entries]
        if parts:
            assert self._number > 0, "load() comes first"
            with self._writing():
                self._files.append(_wal_name(self._number), b"".join(parts))

    def save_snapshot(self, snapshot: Snapshot, hard_state: HardState, entries: Sequence[Entry]) -> None:
        """Write the snapshot and a new WAL file with everything still needed, then delete the rest."""
        self._write_snapshot(snapshot)
        self._begin_file(_encode_log(hard_state, entries))
        self._remove_old()

    def close(self) -> None:
        self._files.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        whole = format_record(self._node) + snapshot_record(snapshot)
        with self._writing():
            self._files.write_whole(f"snapshot-{snapshot.index:020d}.bin", whole)

    def _begin_file(self, parts: Sequence[bytes]) -> None:
        """Create a file atomically: it exists complete under its name, or not."""
        self._number += 1
        data = b"".join([format_record(self._node), *parts])
        with self._writing():
            self._files.write_whole(_wal_name(self._number), data)

    def _remove_old(self) -> None:
        with self._writing():
            for number in _wal_numbers(self._files):
                if number < self._number:
                    self._files.remove(_wal_name(number))
            for name in _snapshot_names(self._files)[NUM_SNAPSHOTS:]:
                self._files.remove(name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The content of the disk is unknown now: the node must stop, and read it when it starts again.
            number = errno.errorcode.get(error.errno or 0, str(error.errno))
            raise StorageError(
                f"cannot write to {self._folder}: {error.strerror} ({number})",
                "free disk space or repair the disk, then start this node again; no acknowledged write is "
                "lost",
            ) from error


def read_folder(folder: Path, node: NodeId, first: Membership) -> StoredState:
    """Everything that is on disk, without changing it."""
    return read_files(folder, DurableFolder(folder), node, first)


def read_files(folder: Path, files: DurableFiles, node: NodeId, first: Membership) -> StoredState:
    """Everything that the files hold; `folder` is only used in error messages."""
    snapshot = _newest_snapshot(folder, files, node) or empty_snapshot(first)
    numbers = _wal_numbers(files)
    if not numbers:
        return StoredState(HardState(Term(0), None), snapshot, [], 0, 0, 0)
    stored = _read_wal(folder / _wal_name(numbers[-1]), files.read(_wal_name(numbers[-1])), node)
    stored = _after_snapshot(snapshot, replace(stored, files=len(numbers)))
    _check_contiguous(folder, snapshot, stored.entries)
    return stored


def _read_wal(path: Path, data: bytes, node: NodeId) -> StoredState:
    hard_state = HardState(Term(0), None)
    entries = list[Entry]()
    count = end = 0
    for end, kind, payload in read_records(data):  # noqa: B007 - the last end is needed
        count += 1
        if kind is RecordKind.FORMAT:
            _check_format(path, payload, node)
        elif kind is RecordKind.HARD_STATE:
            hard_state = to_hard_state(payload)
        else:
            entry = to_entry(payload)
            if entries and entry.index <= entries[-1].index:
                del entries[max(0, entry.index - entries[0].index) :]
            entries.append(entry)
    torn = len(data) - end
    # The first record was written together with the file's name, so that it cannot be torn.
    if count == 0 or (torn and not is_torn_end(data, end)):
        raise StorageError(f"{path} is damaged at byte {end} of {len(data)}, before its end", _NOT_TRUSTED)
    return StoredState(hard_state, empty_snapshot(Membership(frozenset())), entries, torn, 1, count)


def _after_snapshot(snapshot: Snapshot, stored: StoredState) -> StoredState:
    """The part of a log that is still needed in addition to the snapshot.

    A log that begins before the snapshot is older than it, after a crash in between. If it has another entry
    where the snapshot ends, its later entries conflict with the snapshot and are dropped.
    """
    stored = replace(stored, snapshot=snapshot)
    if stored.hard_state.term < snapshot.term:
        stored = replace(stored, hard_state=HardState(snapshot.term, None), is_unfinished=True)
    if not stored.entries or stored.entries[0].index > snapshot.index:
        return stored
    agrees = any(e.index == snapshot.index and e.term == snapshot.term for e in stored.entries)
    kept = [e for e in stored.entries if e.index > snapshot.index] if agrees else []
    return replace(stored, entries=kept, is_unfinished=True)


def _encode_log(hard_state: HardState, entries: Sequence[Entry]) -> list[bytes]:
    return [hard_state_record(hard_state), *(entry_record(entry) for entry in entries)]


def _check_contiguous(folder: Path, snapshot: Snapshot, entries: Sequence[Entry]) -> None:
    for number, entry in enumerate(entries, start=snapshot.index + 1):
        if entry.index != number:
            raise StorageError(f"{folder} has no entry {number}, though it has later ones", _NOT_TRUSTED)


def _check_format(path: Path, payload: bytes, node: NodeId) -> None:
    expected = format_record(node)
    if record(RecordKind.FORMAT, payload) != expected:
        raise StorageError(
            f"{path} belongs to another node or version: {payload.decode(errors='replace')}",
            f"give node {node} its own folder with --data-dir",
        )


def _newest_snapshot(folder: Path, files: DurableFiles, node: NodeId) -> Snapshot | None:
    """An older one cannot replace it: acknowledged entries in between would be lost."""
    for name in _snapshot_names(files)[:1]:
        records = [(kind, payload) for _, kind, payload in read_records(files.read(name))]
        if len(records) != 2 or records[1][0] is not RecordKind.SNAPSHOT:
            raise StorageError(f"{folder / name} is damaged", _NOT_TRUSTED)
        _check_format(folder / name, records[0][1], node)
        return to_snapshot(records[1][1])
    return None


def _snapshot_names(files: DurableFiles) -> list[str]:
    """The newest first."""
    return sorted(
        (n for n in files.names() if n.startswith("snapshot-") and n.endswith(".bin")), reverse=True
    )


def _wal_name(number: int) -> str:
    return f"wal-{number:08d}.log"


def _wal_numbers(files: DurableFiles) -> list[int]:
    names = (name for name in files.names() if name.startswith("wal-") and name.endswith(".log"))
    return sorted(int(name.removeprefix("wal-").removesuffix(".log")) for name in names)


def _lock_file(path: Path) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(
            f"{path.parent} is used by another process",
            "stop that process, or give this node its own folder with --data-dir",
        ) from error
    return fd

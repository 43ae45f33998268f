"""What does a node find again after it was killed? Its term, its vote, its log and its snapshot, on disk.

`wal-NNNNNNNN.log` files hold records in the order in which they were written;
`snapshot-INDEX.bin` holds the newest snapshot. What `save` was given is on disk
when it returns (one write, one fsync). A record that was torn by a crash can only
be the last of the last file, and was never promised to anybody: it is cut off.
Damage anywhere else is an error: a node that forgot what it promised must not vote.
"""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.types import Entry, HardState, Membership, NodeId, Snapshot, Term
from paceline.coordinator.shell import records
from paceline.coordinator.shell.records import RecordKind
from paceline.errors import NotReadyError

KEPT_SNAPSHOTS = 2


class StorageError(NotReadyError):
    """The disk does not hold, or does not take, what it must."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is on disk, and what was repaired on the way."""

    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry]
    torn_bytes: int
    files: int
    records: int

    def log(self) -> RaftLog:
        return RaftLog(self.snapshot, self.entries)


class Storage:
    """One node's folder. Only one process may use it."""

    def __init__(self, folder: Path, node: NodeId) -> None:
        self._folder, self._node = folder, node
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder / "lock")
        self._fd: int | None = None
        self._number = 0
        self.written_bytes = 0  # of the current file

    def load(self, first: Membership) -> Found:
        """Read everything, cut off what was torn, and be ready to write on.

        `first` is who takes part in a log that has just begun; from then on the folder says so.
        """
        found = read_folder(self._folder, self._node, first)
        numbers = _wal_numbers(self._folder)
        if found.torn_bytes:
            last = _wal(self._folder, numbers[-1])
            os.truncate(last, last.stat().st_size - found.torn_bytes)
        self._number = numbers[-1] if numbers else 0
        if numbers:
            self._fd = os.open(_wal(self._folder, self._number), os.O_WRONLY | os.O_APPEND)
            self.written_bytes = _wal(self._folder, self._number).stat().st_size
        else:
            # Nodes that believed in different voters could each find a majority: this is not asked twice.
            self._write_snapshot(found.snapshot)
            self._begin_file(records.format_record(self._node))
        return found

    def save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Append, in one write; on disk when this returns."""
        parts = [] if hard_state is None else [records.hard_state_record(hard_state)]
        parts += [records.entry_record(entry) for entry in entries]
        if parts:
            self._write(b"".join(parts))

    def save_snapshot(self, snapshot: Snapshot, hard_state: HardState, entries: Sequence[Entry]) -> None:
        """The snapshot, and in a new file all that is still needed beside it; the rest is deleted."""
        self._write_snapshot(snapshot)
        self.close_file()
        begin = [records.format_record(self._node), records.hard_state_record(hard_state)]
        begin += [records.entry_record(entry) for entry in entries]
        self._begin_file(b"".join(begin))
        self._remove_old()

    def close(self) -> None:
        self.close_file()
        os.close(self._lock)

    def close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes) -> None:
        assert self._fd is not None, "load() comes first"
        try:
            _write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError as error:
            # What is on disk now is unknown: this node must stop, and find out when it starts again.
            raise StorageError(
                f"cannot write to {self._folder}: {error.strerror}",
                "free some space or repair the disk, then start this node again; nothing promised is lost",
            ) from error
        self.written_bytes += len(data)

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        path = self._folder / f"snapshot-{snapshot.index:020d}.bin"
        _write_whole(path, records.format_record(self._node) + records.snapshot_record(snapshot))

    def _begin_file(self, data: bytes) -> None:
        """A new file appears whole, under its name, or not at all."""
        self._number += 1
        path = _wal(self._folder, self._number)
        _write_whole(path, data)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.written_bytes = len(data)

    def _remove_old(self) -> None:
        for number in _wal_numbers(self._folder):
            if number < self._number:
                _wal(self._folder, number).unlink()
        for path in sorted(self._folder.glob("snapshot-*.bin"))[:-KEPT_SNAPSHOTS]:
            path.unlink()


def read_folder(folder: Path, node: NodeId, first: Membership) -> Found:
    """Everything that is on disk, without changing it."""
    snapshot, hard_state = _newest_snapshot(folder, node), HardState(Term(0), None)
    if snapshot is None:
        snapshot = empty_snapshot(first)
    entries: list[Entry] = []
    count, torn = 0, 0
    numbers = _wal_numbers(folder)
    for number in numbers:
        path = _wal(folder, number)
        data = path.read_bytes()
        end = 0
        for end, kind, payload in records.read_records(data):  # noqa: B007 - the last end is needed
            count += 1
            if kind is RecordKind.FORMAT:
                _check_format(path, payload, node)
            elif kind is RecordKind.HARD_STATE:
                hard_state = records.to_hard_state(payload)
            else:
                entry = records.to_entry(payload)
                if entries and entry.index <= entries[-1].index:
                    del entries[max(0, entry.index - entries[0].index) :]
                entries.append(entry)
        torn = len(data) - end
        if torn and (number != numbers[-1] or _has_more(data[end + 1 :])):
            raise StorageError(
                f"{path} is damaged at byte {end} of {len(data)}, before its end",
                "this node cannot be trusted any more: delete its folder and add it as a new node",
            )
    entries = [e for e in entries if e.index > snapshot.index]
    _check_whole(folder, snapshot, entries)
    return Found(hard_state, snapshot, entries, torn, len(numbers), count)


def _check_whole(folder: Path, snapshot: Snapshot, entries: Sequence[Entry]) -> None:
    for number, entry in enumerate(entries, start=snapshot.index + 1):
        if entry.index != number:
            raise StorageError(
                f"{folder} has no entry {number}, though it has later ones",
                "this node cannot be trusted any more: delete its folder and add it as a new node",
            )


def _check_format(path: Path, payload: bytes, node: NodeId) -> None:
    expected = records.format_record(node)
    if records.record(RecordKind.FORMAT, payload) != expected:
        raise StorageError(
            f"{path} belongs to another node or version: {payload.decode(errors='replace')}",
            f"give node {node} a folder of its own with --data-dir",
        )


def _has_more(rest: bytes) -> bool:
    """Does a whole record follow the damage? Then it is no torn end."""
    return any(
        next(records.read_records(rest[start:]), None) is not None for start in range(min(len(rest), 1 << 16))
    )


def _newest_snapshot(folder: Path, node: NodeId) -> Snapshot | None:
    """A snapshot that does not verify is passed over only if an older one and the log can replace it."""
    for path in sorted(folder.glob("snapshot-*.bin"), reverse=True):
        found = [(kind, payload) for _, kind, payload in records.read_records(path.read_bytes())]
        if len(found) == 2 and found[1][0] is RecordKind.SNAPSHOT:
            _check_format(path, found[0][1], node)
            return records.to_snapshot(found[1][1])
    return None


def _wal(folder: Path, number: int) -> Path:
    return folder / f"wal-{number:08d}.log"


def _wal_numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("wal-*.log"))


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}",
            "free some space or repair the disk, then start this node again; nothing promised is lost",
        ) from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(
            f"{path.parent} is used by another process",
            "stop that one, or give this node a folder of its own with --data-dir",
        ) from error
    return fd

"""How does a record look on disk? Length, CRC-32, kind, payload; whatever does not verify is not there.

All numbers are little-endian. The CRC covers kind and payload, and the length
is part of it, so that a wrong length cannot make wrong bytes verify.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise

from paceline.coordinator.raft.membership import decode, encode
from paceline.coordinator.raft.types import Entry, EntryKind, HardState, Index, NodeId, Snapshot, Term

_HEAD = struct.Struct("<IIB")  # length of the payload, CRC-32, kind
_ENTRY = struct.Struct("<QQB")
_HARD_STATE = struct.Struct("<QBQ")
_SNAPSHOT = struct.Struct("<QQI")
MOST_BYTES = 1 << 30


class RecordKind(IntEnum):
    HARD_STATE = 1
    ENTRY = 2
    SNAPSHOT = 3  # in a snapshot file, whole
    FORMAT = 4  # the first record of every file


_KINDS = frozenset(RecordKind)
_KIND_BYTE = re.compile(b"[\x01-\x04]")  # the members of RecordKind
_KIND_OFFSET = _HEAD.size - 1
_SECTOR_BYTES = 512
FORMAT = {"format": "paceline.raft/1"}


def record(kind: RecordKind, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<IB", len(payload), kind)))
    return _HEAD.pack(len(payload), crc, kind) + payload


def format_record(node: NodeId) -> bytes:
    return record(RecordKind.FORMAT, json.dumps({**FORMAT, "node": node}, sort_keys=True).encode())


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
    """Every offset is a candidate: a damaged length says nothing about where the next record begins."""
    candidates = _KIND_BYTE.finditer(data, start + 1 + _KIND_OFFSET)
    return any(_verified_end(data, found.start() - _KIND_OFFSET) is not None for found in candidates)


def _verified_end(data: bytes, start: int) -> int | None:
    """Where the record at `start` ends; None: there is no record that verifies."""
    if start + _HEAD.size > len(data):
        return None
    length, crc, kind = _HEAD.unpack_from(data, start)
    end = start + _HEAD.size + length
    if length > MOST_BYTES or end > len(data) or kind not in _KINDS:
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

"""Index of a data set in shards: which bytes of which file hold record i, and checksums.

A data set has named parts (`train`, `test`). A part is cut into shards of equal
numbers of records, the last may have fewer; a shard is an npy file of records
that all have the same size, so record i lies at a place that can be computed.
Shards are checked as a whole, and in blocks of about a mebibyte: a reader that
wants one record fetches the block that holds it, and can still tell damage.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.sealed_json import seal, unseal
from paceline.plan.urls import is_url

INDEX = "index.json"
FORMAT = "paceline.dataset/1"
BLOCK_BYTES = 1 << 20
MAX_BLOCK_BYTES = 64 << 20  # of a foreign index: blocks are held in memory
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of its own folder: never a way out of it
_KINDS = re.compile(r"[|<][biufS][0-9]+")
Records = np.ndarray[tuple[int, ...], np.dtype[np.void]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One array of each record: a name, numpy's word for its numbers, and its shape."""

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    file: str
    records: int
    header_bytes: int  # of the npy file, before the first record
    sha256: str  # of the whole file
    blocks: tuple[str, ...]  # SHA-256 of each stretch of `Part.block_records` records
    sums: dict[str, list[int]]  # what a task wants to know of all records without reading them


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    columns: tuple[Column, ...]
    records: int
    shard_records: int
    block_records: int
    shards: tuple[Shard, ...]

    @property
    def dtype(self) -> "np.dtype[np.void]":
        return record_type(self.columns)

    @property
    def record_bytes(self) -> int:
        return self.dtype.itemsize

    @property
    def blocks_per_shard(self) -> int:
        return -(-self.shard_records // self.block_records)

    def block_at(self, number: int) -> "Block":
        """The block with this number, counted through all shards of the part."""
        shard_number, within = divmod(number, self.blocks_per_shard)
        shard = self.shards[shard_number]
        first = within * self.block_records
        count = min(self.block_records, shard.records - first)
        return Block(
            file=shard.file,
            start=shard.header_bytes + first * self.record_bytes,
            size=count * self.record_bytes,
            sha256=shard.blocks[within],
        )

    def place_of(self, record: int) -> tuple[int, int, int]:
        """(the block's number, the record's place in it, how many records of the block follow from there)."""
        shard_number, within_shard = divmod(record, self.shard_records)
        block, place = divmod(within_shard, self.block_records)
        end = min((block + 1) * self.block_records, self.shards[shard_number].records)
        return shard_number * self.blocks_per_shard + block, place, end - block * self.block_records - place


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of one file that are fetched, checked and kept together."""

    file: str
    start: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    task: str  # the task of the samples; `arrays` for those of no particular task
    facts: dict[str, Any]  # Any: JSON, of the task
    parts: dict[str, Part]

    @property
    def total_bytes(self) -> int:
        return sum(part.records * part.record_bytes for part in self.parts.values())


def record_type(columns: tuple[Column, ...]) -> "np.dtype[np.void]":
    return np.dtype([(column.name, column.kind, column.shape) for column in columns])


def block_records_of(record_bytes: int) -> int:
    """Number of records per block: about BLOCK_BYTES, and at least one."""
    return max(1, BLOCK_BYTES // record_bytes)


def encode(index: Index) -> bytes:
    parts = {name: _part_to_json(part) for name, part in index.parts.items()}
    written, _ = seal({"format": FORMAT, "task": index.task, "facts": index.facts, "parts": parts})
    return written


def decode(raw: bytes) -> Index:
    """ValueError, KeyError or TypeError if it is no index, or differs from what was written."""
    document, _ = unseal(raw)
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']!r}, not {FORMAT}")
    parts = {name: _part(name, part) for name, part in document["parts"].items()}
    return Index(task=str(document["task"]), facts=dict(document["facts"]), parts=parts)


def _part_to_json(part: Part) -> dict[str, Any]:  # Any: JSON
    return {
        "columns": [{"name": c.name, "kind": c.kind, "shape": list(c.shape)} for c in part.columns],
        "records": part.records,
        "shard_records": part.shard_records,
        "block_records": part.block_records,
        "shards": [
            {
                "file": shard.file,
                "records": shard.records,
                "header_bytes": shard.header_bytes,
                "sha256": shard.sha256,
                "blocks": list(shard.blocks),
                "sums": shard.sums,
            }
            for shard in part.shards
        ],
    }


def _part(name: str, row: dict[str, Any]) -> Part:  # Any: JSON
    columns = tuple(
        Column(name=str(c["name"]), kind=str(c["kind"]), shape=tuple(map(int, c["shape"])))
        for c in row["columns"]
    )
    if not all(_KINDS.fullmatch(column.kind) for column in columns):
        raise ValueError(f"part {name} has values that are not numbers")
    part = Part(
        name=name,
        columns=columns,
        records=int(row["records"]),
        shard_records=int(row["shard_records"]),
        block_records=int(row["block_records"]),
        shards=tuple(_shard(shard) for shard in row["shards"]),
    )
    _check(part)
    return part


def _shard(row: dict[str, Any]) -> Shard:  # Any: JSON
    shard = Shard(
        file=str(row["file"]),
        records=int(row["records"]),
        header_bytes=int(row["header_bytes"]),
        sha256=str(row["sha256"]),
        blocks=tuple(map(str, row["blocks"])),
        sums={str(name): [int(number) for number in numbers] for name, numbers in row["sums"].items()},
    )
    if not _FILE.fullmatch(shard.file):
        raise ValueError(f"a shard's file is called {shard.file!r}")
    if not all(_SHA256.fullmatch(text) for text in (shard.sha256, *shard.blocks)):
        raise ValueError(f"a checksum of {shard.file} is invalid")
    return shard


def _check(part: Part) -> None:
    """All arithmetic about places relies on this."""
    sizes = [shard.records for shard in part.shards]
    are_full = all(size == part.shard_records for size in sizes[:-1])
    fits = bool(sizes) and sum(sizes) == part.records and 0 < sizes[-1] <= part.shard_records
    if not (are_full and fits and part.block_records > 0):
        raise ValueError(f"the shards of part {part.name} do not add up to its {part.records} records")
    if part.record_bytes < 1:
        raise ValueError(f"a record of part {part.name} is empty")
    if part.block_records > max(1, MAX_BLOCK_BYTES // part.record_bytes):
        raise ValueError(f"blocks of part {part.name} are too large")
    for shard in part.shards:
        if shard.header_bytes < 0:
            raise ValueError(f"{shard.file} begins before its first byte")
        if len(shard.blocks) != -(-shard.records // part.block_records):
            raise ValueError(f"{shard.file} has {len(shard.blocks)} blocks, which do not fit its records")


def is_data_set(address: str | None) -> bool:
    """Whether this names a data set in shards, rather than a file or folder in the task's own format."""
    if address is None:
        return False
    return is_url(address) or (Path(address) / INDEX).is_file()

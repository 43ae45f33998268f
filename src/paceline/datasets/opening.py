"""Opening a data set by its address, with the machine's cache."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.core import environ
from paceline.datasets.fetching import DEFAULT_MB, BlockCache, Fetcher, read_block, read_index
from paceline.datasets.index import Block, Index, Part, Records
from paceline.storage.store import FolderStore, MissingDataError, open_store, other_bytes
from paceline.sync.samples import Indices

# A folder is read in place; anything else through the cache. Either way every
# block is proved by its SHA-256 before its first byte is used.


class _Piece(NamedTuple):
    """A stretch of one block, and where it goes."""

    to: int
    start: int
    size: int


class PartReader:
    """`source`: the folder, or who fetches what is not here."""

    def __init__(self, part: Part, source: FolderStore | Fetcher) -> None:
        self.part = part
        self._source = source
        self._dtype = part.dtype
        self._size = part.record_bytes
        self._proved: set[int] = set()  # blocks of a folder
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return self.part.records

    def take(self, starts: Indices, width: int = 1) -> Records:
        """(len(starts), width) records: for each start, it and those that follow it."""
        rows = np.empty((len(starts), width), dtype=self._dtype)
        pieces = self._pieces(starts.tolist(), width)
        view = rows.reshape(-1).view(np.uint8).data
        if isinstance(self._source, Fetcher):
            self._copy_kept(pieces, view, self._source)
        else:
            for number, wanted_pieces in pieces.items():
                self._copy_here(number, wanted_pieces, view, self._source)
        return rows

    def rows(self, rows: range) -> Records:
        """A range of consecutive records."""
        return self.take(np.array([rows.start]), len(rows)).reshape(-1)

    def expect(self, starts: Indices, width: int = 1) -> None:
        """These will be taken soon."""
        if isinstance(self._source, Fetcher):
            is_here = self._source.cache.is_proved
            blocks = map(self._block, self._pieces(starts.tolist(), width))
            self._source.announce([block for block in blocks if not is_here(block)])

    def _pieces(self, starts: Iterable[int], width: int) -> dict[int, list[_Piece]]:
        """Pieces by block number."""
        pieces: dict[int, list[_Piece]] = {}
        to = 0
        for start in starts:
            left = width
            while left:
                number, place, follow = self.part.place_of(start + width - left)
                count = min(left, follow)
                size = count * self._size
                pieces.setdefault(number, []).append(_Piece(to, place * self._size, size))
                left = left - count
                to = to + size
        return pieces

    def _copy_kept(self, pieces: dict[int, list[_Piece]], view: memoryview, fetcher: Fetcher) -> None:
        """What is not here is on its way before the rest is copied."""
        blocks = {number: self._block(number) for number in pieces}
        unknown = [number for number, block in blocks.items() if not fetcher.cache.is_proved(block)]
        coming = fetcher.bring(blocks[number] for number in unknown)
        gone = []  # meanwhile, to make room
        for number in pieces.keys() - set(unknown):
            fd = fetcher.cache.open(blocks[number])
            if fd is None:
                gone.append(number)
            else:
                _copy_from_file(fd, pieces[number], view)
        coming |= fetcher.bring(blocks[number] for number in gone)
        for number in (*unknown, *gone):
            _copy_from(coming[blocks[number].sha256].result(), pieces[number], view)

    def _copy_here(self, number: int, pieces: list[_Piece], view: memoryview, folder: FolderStore) -> None:
        block = self._block(number)
        if number not in self._proved:
            if hashlib.sha256(read_block(folder, block)).hexdigest() != block.sha256:
                raise other_bytes(folder.url, block.file)
            self._proved.add(number)
        _copy_from_file(folder.open(block.file), pieces, view, block.start)

    def _block(self, number: int) -> Block:
        if number not in self._blocks:
            self._blocks[number] = self.part.block_at(number)
        return self._blocks[number]


def _copy_from(data: bytes, pieces: list[_Piece], view: memoryview) -> None:
    for piece in pieces:
        view[piece.to : piece.to + piece.size] = data[piece.start : piece.start + piece.size]


def _copy_from_file(fd: int, pieces: list[_Piece], view: memoryview, start: int = 0) -> None:
    try:
        for piece in pieces:
            came = os.preadv(fd, [view[piece.to : piece.to + piece.size]], start + piece.start)
            assert came == piece.size, "it was proved to be whole"
    finally:
        os.close(fd)


FOLDER = "shards"  # below the folder of fetched data


class DataSet:
    def __init__(self, url: str, index: Index, source: FolderStore | Fetcher) -> None:
        self.url = url
        self.index = index
        self._source = source

    def reader(self, part: str) -> PartReader:
        if part not in self.index.parts:
            has = ", ".join(self.index.parts) or "none"
            message = f"{self.url} has no part {part}; its parts are: {has}"
            raise MissingDataError(message, f"check it: paceline data verify {self.url}")
        return PartReader(self.index.parts[part], self._source)


def open_data_set(url: str, *, cache: str | None = None, cache_mb: int | None = None) -> DataSet:
    """`cache`: the folder for what was read, and how large it may get; None: the user's own, and 10 GB."""
    store = open_store(url)
    index = read_index(store)
    if isinstance(store, FolderStore):
        return DataSet(store.url, index, store)
    folder = environ.data_folder() / FOLDER if cache is None else Path(cache)
    limit = DEFAULT_MB if cache_mb is None else cache_mb
    cached = Fetcher(store, BlockCache(folder, limit_bytes=limit * 1_000_000))
    return DataSet(store.url, index, cached)


def check_task(data_set: DataSet, task: str) -> DataSet:
    """Check that the data set was made by this task."""
    if data_set.index.task == task:
        return data_set
    message = f"{data_set.url} holds samples of {data_set.index.task}, not of {task}"
    raise MissingDataError(message, f"create them: paceline data shard {task} --out {data_set.url}-{task}")

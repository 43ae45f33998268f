"""Records are read as they were written, from a folder and through caches that are small or damaged."""

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.servers.stores import MemoryStore, numbers, source
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError
from paceline.datasets import index as index_file
from paceline.datasets.fetching import BlockCache, Fetcher
from paceline.datasets.index import Block, is_data_set
from paceline.datasets.opening import DataSet, PartReader, check_task, open_data_set
from paceline.datasets.writing import write_data_set
from paceline.storage.store import DamagedDataError, FolderStore, MissingDataError

RECORDS = numbers(1000)
ROOM = 1 << 30


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "BLOCK_BYTES", 700)  # ten records


def stored(store: MemoryStore | FolderStore) -> index_file.Index:
    return write_data_set(store, source(RECORDS), shard_records=128, on_bytes=lambda *_: None).index


def reader(store: MemoryStore, folder: Path, *, limit: int = ROOM) -> PartReader:
    fetcher = Fetcher(store, BlockCache(folder, limit_bytes=limit))
    return DataSet(store.url, stored(store), fetcher).reader("train")


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # drafts are renamed and old blocks go meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def check(read: PartReader, starts: list[int], width: int) -> None:
    result = read.take(np.array(starts, dtype=np.int64), width)
    assert result.shape == (len(starts), width)
    for row, start in zip(result, starts, strict=True):
        assert np.array_equal(row, RECORDS[start : start + width])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 959), min_size=1, max_size=40), st.integers(1, 40))
def test_any_stretch_of_records_comes_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, starts: list[int], width: int
) -> None:
    folder = tmp_path_factory.mktemp("set")
    stored(FolderStore(folder / "here"))
    check(open_data_set(str(folder / "here")).reader("train"), starts, width)
    check(reader(MemoryStore(), folder / "cache"), starts, width)


def test_only_blocks_that_hold_requested_samples_are_read_and_each_once(tmp_path: Path) -> None:
    store = MemoryStore()
    read = reader(store, tmp_path)
    store.reads.clear()
    check(read, [5, 7, 300], 1)
    assert sorted(name for name, _, _ in store.reads) == ["train-000000.npy", "train-000002.npy"]
    check(read, [6, 301], 1)
    check(reader(store, tmp_path), [8], 1)  # another process, in effect
    assert len([name for name, _, _ in store.reads if name.endswith("npy")]) == 2


def test_two_that_share_a_cache_fetch_each_block_once(tmp_path: Path) -> None:
    store = MemoryStore()
    one, other = reader(store, tmp_path), reader(store, tmp_path)
    store.reads.clear()
    for start in range(0, 1000, 200):
        for each in (one, other):
            each.expect(np.arange(start, start + 200))
    for each in (one, other):
        check(each, list(range(1000)), 1)
    blocks = sum(len(shard.blocks) for shard in one.part.shards)
    assert len(store.reads) == len(set(store.reads)) == blocks


def test_what_was_announced_is_here_when_it_is_needed(tmp_path: Path) -> None:
    store = MemoryStore()
    read = reader(store, tmp_path)
    read.expect(np.arange(1000))
    until(lambda: size_of(tmp_path) == RECORDS.nbytes, "all blocks are here")
    store.files.clear()
    check(read, list(range(0, 1000, 7)), 1)


def test_an_error_of_a_prefetch_is_raised_only_when_the_sample_is_needed(
    tmp_path: Path, wording: Wording
) -> None:
    store = MemoryStore()
    read = reader(store, tmp_path)
    whole, store.files = store.files, {}
    read.expect(np.array([500]))
    until(lambda: any(name == "train-000003.npy" for name, _, _ in store.reads), "it was asked for")
    with wording.raises(MissingDataError):
        read.take(np.array([500]))
    store.files = whole
    check(read, [500], 3)


@pytest.mark.parametrize("limit", [1, 2000, 20_000])
def test_a_cache_that_is_too_small_only_costs_time(limit: int, tmp_path: Path) -> None:
    read = reader(MemoryStore(), tmp_path, limit=limit)
    rng = np.random.default_rng(0)
    for _ in range(20):
        read.expect(rng.integers(990, size=20))
        check(read, rng.integers(990, size=20).tolist(), 5)
    # One look for each 16th of the room, and the eight threads may each have written since.
    until(lambda: size_of(tmp_path) <= limit + limit // 16 + 8 * 700, "the rest is removed")


def test_the_oldest_blocks_go_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, limit_bytes=1000)
    blocks = []
    for number in range(3):
        data = bytes([number]) * 400
        blocks.append(Block(file="a", start=0, size=400, sha256=hashlib.sha256(data).hexdigest()))
        cache.keep(blocks[-1], data)
        _make_older(tmp_path, blocks)
    cache.make_room()
    assert [cache.prove(block) for block in blocks] == [False, True, True]


WRITER = """
import sys
from pathlib import Path
from paceline.core.disk import locked_draft
draft, _fd = locked_draft(Path(sys.argv[1]))
print(draft.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("mtime_s", [1000, 1 << 33], ids=["clock ahead", "clock behind"])
def test_a_block_that_is_being_written_stays_and_one_of_a_killed_writer_goes(
    mtime_s: int, tmp_path: Path
) -> None:
    cache = BlockCache(tmp_path, limit_bytes=1)
    (tmp_path / "notes.txt").write_text("of the user")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / ("0" * 64))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        draft = tmp_path / writer.stdout.readline().strip()
        os.truncate(draft, 1000)
        os.utime(draft, (mtime_s, mtime_s))
        cache.make_room()
        assert draft.is_file()
        writer.kill()
    cache.make_room()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "notes.txt"]


def _make_older(folder: Path, blocks: list[Block]) -> None:
    for age, block in enumerate(reversed(blocks)):
        path = folder / block.sha256
        if path.exists():
            os.utime(path, (1000 - age, 1000 - age))


def test_a_kept_block_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    store = MemoryStore()
    check(reader(store, tmp_path), [0], 10)
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock")
    kept.write_bytes(b"\0" * kept.stat().st_size)
    check(reader(store, tmp_path), [0], 10)
    kept.write_bytes(b"")
    check(reader(store, tmp_path), [0], 10)


def test_a_store_with_other_bytes_is_found_out_and_nothing_of_it_is_kept(
    tmp_path: Path, wording: Wording
) -> None:
    store = MemoryStore()
    read = reader(store, tmp_path / "cache")
    data = bytearray(store.files["train-000000.npy"])
    data[-1] ^= 1
    store.files["train-000000.npy"] = bytes(data)
    with wording.raises(DamagedDataError):
        read.take(np.array([127]))
    assert size_of(tmp_path / "cache") == 0
    stored(FolderStore(tmp_path / "here"))
    (tmp_path / "here" / "train-000000.npy").write_bytes(bytes(data))
    with wording.raises(DamagedDataError):
        open_data_set(str(tmp_path / "here")).reader("train").take(np.array([127]))


def test_a_cache_folder_that_cannot_be_created_is_reported(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "file").write_text("")
    with wording.raises(NotReadyError) as caught:
        BlockCache(tmp_path / "file" / "cache", limit_bytes=1)
    assert "--data-cache" in caught.value.hint


def test_a_data_set_is_distinguished_from_other_files_and_bound_to_its_task(
    tmp_path: Path, wording: Wording
) -> None:
    stored(FolderStore(tmp_path / "set"))
    assert is_data_set(str(tmp_path / "set"))
    assert is_data_set("s3://bucket/prefix")
    assert not is_data_set(str(tmp_path))
    assert not is_data_set(None)
    data_set = open_data_set(f"file://{tmp_path}/set")
    with wording.raises(MissingDataError):
        check_task(data_set, "charlm")
    with wording.raises(MissingDataError):
        data_set.reader("test")


def test_other_stores_are_reached_by_fsspec(tmp_path: Path, wording: Wording) -> None:
    from paceline.storage.store import FsspecStore

    url = f"memory://{tmp_path.name}/set"
    write_data_set(FsspecStore(url), source(RECORDS), shard_records=300, on_bytes=lambda *_: None)
    check(open_data_set(url, cache=str(tmp_path)).reader("train"), [0, 299, 300, 900], 50)
    with wording.raises(MissingDataError):
        open_data_set(f"memory://{tmp_path.name}/nothing", cache=str(tmp_path))
    with wording.raises(NotReadyError):
        open_data_set("nosuchstore://bucket/x", cache=str(tmp_path))

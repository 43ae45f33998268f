"""Writing a data set can be interrupted at any shard, and never overwrites another one."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.servers.stores import MemoryStore, numbers, source
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, NotReadyError
from paceline.datasets.index import INDEX, encode
from paceline.datasets.writing import OtherDataError, WriteSummary, write_data_set
from paceline.storage.store import FolderStore
from paceline.tasks.sharding import shard, verify


def quiet(result: int, total: int | None) -> None: ...


def written(
    store: MemoryStore | FolderStore, count: int = 100, each: int = 30, seed: int = 0
) -> WriteSummary:
    return write_data_set(store, source(numbers(count, seed)), shard_records=each, on_bytes=quiet)


def test_shards_are_files_that_numpy_reads(tmp_path: Path) -> None:
    write_summary = written(FolderStore(tmp_path / "set"))
    assert (write_summary.shards, write_summary.written, write_summary.bytes) == (4, 4, 6800)
    read = [np.load(path, allow_pickle=False) for path in sorted((tmp_path / "set").glob("*.npy"))]
    assert np.array_equal(np.concatenate(read), numbers(100))


@pytest.mark.parametrize("survive", range(5))
def test_an_interrupted_write_resumes_and_ends_the_same(survive: int) -> None:
    whole, broken = MemoryStore(), MemoryStore(writes_left=survive)
    written(whole)
    with pytest.raises(KeyboardInterrupt):
        written(broken)
    assert INDEX not in broken.files
    broken.writes_left = None
    again = written(broken)
    assert again.written == 4 - survive
    assert broken.files == whole.files


def test_a_second_run_writes_nothing_and_a_damaged_shard_is_written_again() -> None:
    store = MemoryStore()
    written(store)
    before = dict(store.files)
    assert written(store).written == 0
    store.files["train-000002.npy"] = store.files["train-000002.npy"][:-1]
    del store.files["train-000003.npy"]
    assert written(store).written == 2
    assert store.files == before


@pytest.mark.parametrize("other", [{"seed": 1}, {"each": 25}, {"count": 90}, {"count": 120}])
def test_another_data_set_is_never_overwritten(other: dict[str, int], wording: Wording) -> None:
    store = MemoryStore()
    written(store)
    before = dict(store.files)
    with wording.raises(OtherDataError):
        written(store, **other)
    assert {name: store.files[name] for name in before} == before


def test_the_same_samples_always_become_the_same_bytes() -> None:
    assert encode(written(MemoryStore()).index) == encode(written(MemoryStore()).index)


def test_arrays_of_ones_own_become_columns_row_by_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((70, 3)), rng.integers(9, size=70)
    np.savez(tmp_path / "a.npz", x=x[:40], y=y[:40])
    np.savez(tmp_path / "b.npz", x=x[40:], y=y[40:])
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    write_summary = shard(files, out=str(tmp_path / "set"), shard_records=16, on_bytes=quiet)
    assert write_summary.index.task == "arrays"
    records = np.concatenate([np.load(path) for path in sorted((tmp_path / "set").glob("*.npy"))])
    assert np.array_equal(records["x"], x)
    assert np.array_equal(records["y"], y)
    np.save(tmp_path / "one.npy", x)
    first = shard(
        [str(tmp_path / "one.npy")], out=f"file://{tmp_path}/one", shard_records=None, on_bytes=quiet
    )
    assert first.index.parts["train"].columns[0].name == "data"
    assert verify(str(tmp_path / "one"), quiet).wrong == ()


def test_files_that_cannot_be_records_are_refused_each_for_its_reason(
    tmp_path: Path, wording: Wording
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)))
    np.savez(tmp_path / "other.npz", x=np.zeros((4, 3)))
    np.savez(tmp_path / "uneven.npz", x=np.zeros(4), y=np.zeros(5))
    np.savez(tmp_path / "words.npz", x=np.array(["a", "b"]))
    np.savez(tmp_path / "objects.npz", x=np.array([{}, []], dtype=object))
    (tmp_path / "text.npz").write_text("no zip")
    refused = [
        ["nothing.npz"],
        ["uneven.npz"],
        ["words.npz"],
        ["objects.npz"],
        ["text.npz"],
        ["a.npz", "other.npz"],
    ]
    for names in refused:
        with wording.raises(ConfigError):
            shard(
                [str(tmp_path / n) for n in names], out=str(tmp_path / "o"), shard_records=1, on_bytes=quiet
            )


def test_every_wrong_shard_is_named(tmp_path: Path, wording: Wording) -> None:
    written(FolderStore(tmp_path / "set"))
    (tmp_path / "set" / "train-000000.npy").unlink()
    second = tmp_path / "set" / "train-000001.npy"
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    third = tmp_path / "set" / "train-000002.npy"
    third.write_bytes(third.read_bytes()[:-1])
    missing, changed, short = verify(str(tmp_path / "set"), quiet).wrong
    for number, text in enumerate((missing, changed, short)):
        assert f"train-00000{number}.npy" in text
        wording(text)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "file").write_text("")
    with wording.raises(NotReadyError):
        written(FolderStore(tmp_path / "file" / "set"))

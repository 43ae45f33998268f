"""Checkpoint folders: complete or ignored, and a damaged one is skipped."""

import io
import json
import pickle
import pickletools
from pathlib import Path

import pytest
import torch
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import (
    KEEP_CHECKPOINTS,
    Checkpoint,
    folder_at,
    newest_complete,
    remove_old,
    set_aside,
)
from paceline.checkpoints.snapshot import Snapshot, read_snapshot, write_snapshot
from paceline.core.errors import PacelineError


def snapshot(clock: int) -> Snapshot:
    return Snapshot({"w": torch.full((3,), float(clock))}, {"clock": clock, "optimizer": None})


def write(root: Path, clock: int, num_workers: int = 2) -> Path:
    folder = folder_at(root, clock)
    for rank in range(num_workers):
        write_snapshot(folder, f"worker-{rank}", snapshot(clock))
    return folder


def test_a_snapshot_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = write(tmp_path, 7)
    again = read_snapshot(folder, "worker-1")
    assert torch.equal(again.tensors["w"], torch.full((3,), 7.0))
    assert again.facts == {"clock": 7, "optimizer": None}


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    for clock in (5, 10, 100):
        write(tmp_path, clock)
    assert newest_complete(tmp_path, 2) == Checkpoint(folder_at(tmp_path, 100), 100, (100, 100))


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "nowhere", 2) is None
    folder_at(tmp_path, 3).mkdir()
    assert newest_complete(tmp_path, 2) is None


@pytest.mark.parametrize("missing", ["worker-1.json", "worker-1.safetensors"])
def test_a_checkpoint_that_someone_did_not_finish_is_passed_over(tmp_path: Path, missing: str) -> None:
    write(tmp_path, 5)
    (write(tmp_path, 10) / missing).unlink()
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 5


@pytest.mark.parametrize("name", ["worker-0.safetensors", "worker-1.safetensors", "worker-1.json"])
@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "empty", "garbage"])
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    write(tmp_path, 5)
    path = write(tmp_path, 10) / name
    data = bytearray(path.read_bytes())
    match damage:
        case "a flipped bit":
            data[len(data) // 2] ^= 1
        case "cut short":
            del data[len(data) // 2 :]
        case "empty":
            data.clear()
        case "garbage":
            data[:] = b"[1, 2, 3]"
    path.write_bytes(data)
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 5
    assert checkpoint.passed_over == ("at-00000010",)


def test_reading_a_damaged_snapshot_reports_what_to_do(tmp_path: Path, wording: Wording) -> None:
    folder = write(tmp_path, 10)
    (folder / "worker-0.safetensors").write_bytes(b"damaged")
    with wording.raises(PacelineError) as caught:
        read_snapshot(folder, "worker-0")
    assert f"remove {folder}" in caught.value.hint


def test_only_the_last_few_checkpoints_are_kept(tmp_path: Path) -> None:
    for clock in range(1, 8):
        write(tmp_path, clock)
        remove_old(tmp_path, participants=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [folder_at(tmp_path, n).name for n in (5, 6, 7)]
    assert KEEP_CHECKPOINTS == 3


def test_a_worker_that_is_one_checkpoint_ahead_removes_no_whole_one_that_is_needed(tmp_path: Path) -> None:
    for clock in (1, 2, 3):
        write(tmp_path, clock)
    write_snapshot(folder_at(tmp_path, 4), "worker-0", snapshot(4))
    remove_old(tmp_path, participants=2)
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 3


def test_a_worker_that_is_far_ahead_leaves_the_folders_that_others_will_complete(tmp_path: Path) -> None:
    for clock in range(1, 9):  # neighbours that only wait for neighbours can be this far apart
        write_snapshot(folder_at(tmp_path, clock), "worker-0", snapshot(clock))
        remove_old(tmp_path, participants=2)
    for clock in range(1, 6):
        write_snapshot(folder_at(tmp_path, clock), "worker-1", snapshot(clock))
        remove_old(tmp_path, participants=2)
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 5
    assert not folder_at(tmp_path, 2).exists()


def test_as_many_are_kept_as_the_plan_sets(tmp_path: Path) -> None:
    for clock in range(1, 6):
        write(tmp_path, clock)
    assert remove_old(tmp_path, participants=2, keep=1) == [1, 2, 3, 4]
    assert remove_old(tmp_path, participants=2, keep=1) == []


def test_nothing_is_removed_while_none_of_those_that_stay_can_be_read(tmp_path: Path) -> None:
    for clock in (1, 2, 3):
        write(tmp_path, clock)
    for clock in (2, 3):
        (folder_at(tmp_path, clock) / "worker-1.safetensors").write_bytes(b"rotten")
    assert remove_old(tmp_path, participants=2, keep=2) == []
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 1


def test_numbers_are_compared_as_numbers_whatever_their_length(tmp_path: Path) -> None:
    for clock in (99_999_999, 100_000_000):
        write(tmp_path, clock)
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 100_000_000


def test_what_came_after_the_one_that_is_resumed_from_is_set_aside(tmp_path: Path) -> None:
    for clock in (1, 2, 3):
        write(tmp_path, clock)
    assert set_aside(tmp_path, after=1) == ["at-00000002", "at-00000003"]
    assert set_aside(tmp_path, after=1) == []
    checkpoint = newest_complete(tmp_path, 2)
    assert checkpoint is not None
    assert checkpoint.version == 1
    assert checkpoint.passed_over == ()
    assert (tmp_path / "set-aside-at-00000003").is_dir()


def test_nothing_is_pickled_and_a_pickle_is_never_opened(tmp_path: Path) -> None:
    folder = write(tmp_path, 10)
    for path in folder.iterdir():
        with pytest.raises(ValueError):  # noqa: PT011 - any refusal of pickletools will do
            pickletools.dis(path.read_bytes(), out=io.StringIO())
    touched = tmp_path / "touched"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (touched,))

    (folder / "worker-0.safetensors").write_bytes(pickle.dumps(Trap()))
    (folder / "worker-0.json").write_bytes(pickle.dumps(Trap()))
    assert newest_complete(tmp_path, 2) is None
    with pytest.raises(PacelineError):
        read_snapshot(folder, "worker-0")
    assert not touched.exists()


def test_a_half_written_file_never_bears_the_final_name(tmp_path: Path) -> None:
    folder = write(tmp_path, 10)
    (folder / "worker-0.safetensors.part").write_bytes(b"half")  # as if killed while writing it again
    assert newest_complete(tmp_path, 2) is not None
    assert json.loads((folder / "worker-0.json").read_text())["facts"]["clock"] == 10

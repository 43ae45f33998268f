"""CIFAR files are read from a folder or the archive, and every damage is reported with a hint."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.tasks.cifar_folder import (
    archive_of,
    cifar_archive,
    cifar_files,
    cifar_folder,
    python3_batch,
    rows_and_labels,
)
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, Problem
from paceline.tasks.cifar10.data import ARCHIVE, FOLDER, TEST, channel_statistics, find_data, read_images


def problem(do: Callable[[], object]) -> Problem:
    with pytest.raises(ConfigError) as caught:
        do()
    (only,) = caught.value.problems
    assert "data fetch cifar10" in only.hint
    return only


@pytest.mark.parametrize("python2", [False, True])
def test_a_folder_holds_its_training_images_in_order_and_its_test_images(
    python2: bool, tmp_path: Path
) -> None:
    read = read_images(cifar_folder(tmp_path, 8, python2=python2))
    rows, labels = zip(*(rows_and_labels(8, seed) for seed in range(6)), strict=True)
    assert np.array_equal(read.training[0], np.concatenate(rows[:5]).reshape(40, 3, 32, 32))
    assert read.training[1].tolist() == [label for some in labels[:5] for label in some]
    assert np.array_equal(read.test[0], rows[5].reshape(8, 3, 32, 32))
    assert read.test[1].tolist() == labels[5]
    assert read.training[0].dtype == np.uint8


def test_the_archive_is_read_as_it_is_and_holds_the_same(tmp_path: Path) -> None:
    packed, loose = read_images(cifar_archive(tmp_path)), read_images(cifar_folder(tmp_path, python2=True))
    assert np.array_equal(packed.training[0], loose.training[0])
    assert np.array_equal(packed.test[1], loose.test[1])


def test_a_subset_is_the_first_images_and_needs_no_more_files_than_hold_them(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path)
    (folder / "data_batch_2").unlink()
    read = read_images(folder, subset=5, test_subset=3)
    assert (len(read.training[0]), len(read.training[1]), len(read.test[0])) == (5, 5, 3)


def test_held_out_images_are_the_last_and_count_in_no_statistics(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path)
    whole, read = read_images(folder), read_images(folder, hold_out=10)
    assert np.array_equal(np.concatenate([read.training[0], read.held_out[0]]), whole.training[0])
    assert (len(read.training[1]), len(read.held_out[1])) == (30, 10)
    assert read.means == channel_statistics(whole.training[0][:30])[0]


def test_files_that_changed_are_read_again(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path)
    before = read_images(folder)
    assert read_images(folder) is before
    (folder / TEST).write_bytes(python3_batch(*rows_and_labels(9, 77)))
    assert len(read_images(folder).test[0]) == 9


def test_the_folder_is_found_by_its_own_name_its_parent_or_where_fetch_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cifar_folder(tmp_path)
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path))
    assert find_data(str(folder)) == find_data(str(tmp_path)) == find_data(None) == folder


def test_an_archive_is_found_too_but_a_folder_is_quicker(tmp_path: Path) -> None:
    archive = cifar_archive(tmp_path)
    assert find_data(str(archive)) == find_data(str(tmp_path)) == archive
    folder = cifar_folder(tmp_path)
    assert find_data(str(tmp_path)) == folder


def test_mean_and_deviation_are_those_of_each_colour() -> None:
    images = rows_and_labels(2500, 3)[0].reshape(-1, 3, 32, 32)
    means, deviations = channel_statistics(images)
    assert means == pytest.approx(images.mean(axis=(0, 2, 3)))
    assert deviations == pytest.approx(images.std(axis=(0, 2, 3)))


def test_a_missing_folder_is_one_problem_with_the_command_to_type(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    error = problem(lambda: find_data(str(nowhere)))
    assert error.what.endswith(str(nowhere))
    assert f"paceline data fetch cifar10 --to {nowhere}" in error.hint
    assert "--data synthetic" in error.hint
    assert f"--to {tmp_path}`" in problem(lambda: find_data(str(tmp_path / FOLDER))).hint
    description = problem(lambda: find_data(str(tmp_path))).what
    assert FOLDER in description
    assert description.endswith(str(tmp_path))


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path)
    (folder / "data_batch_3").unlink()
    error = problem(lambda: read_images(folder))
    assert error.what.startswith(str(folder))
    assert error.what.endswith(" data_batch_3")
    assert f"rm -r {folder} && paceline data fetch cifar10 --to {tmp_path}" in error.hint


def test_a_batch_that_is_cut_short_is_named(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path)
    whole = (folder / TEST).read_bytes()
    (folder / TEST).write_bytes(whole[: len(whole) // 2])
    assert str(folder / TEST) in problem(lambda: read_images(folder)).what


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.97])
def test_an_archive_that_is_cut_short_is_one_problem(part: float, tmp_path: Path) -> None:
    archive = cifar_archive(tmp_path, 40)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * part)])
    error = problem(lambda: read_images(archive))
    assert str(archive) in error.what
    assert f"rm -r {archive}" in error.hint


def test_an_archive_of_something_else_is_reported_with_what_it_lacks(tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVE
    archive.write_bytes(archive_of({"data_batch_1": b"x"}))
    assert "data_batch_2, data_batch_3" in problem(lambda: read_images(archive)).what


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (np.zeros((2, 3071), np.uint8), [0, 1]),
        (np.zeros((2, 3072), np.uint8), [0, 1, 2]),
        (np.zeros((0, 3072), np.uint8), []),
        (np.zeros((2, 3072), np.uint8), [0, 10]),
        (np.zeros((2, 3072), np.float32), [0, 1]),
    ],
)
def test_a_wrong_shape_is_reported(
    rows: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]",
    labels: list[int],
    tmp_path: Path,
    wording: Wording,
) -> None:
    folder = cifar_folder(tmp_path)
    (folder / "data_batch_2").write_bytes(python3_batch(rows, labels))
    error = problem(lambda: read_images(folder))
    assert "data_batch_2" in error.what
    wording(error.what)


def test_a_batch_without_labels_is_reported_with_its_keys(tmp_path: Path, wording: Wording) -> None:
    folder = cifar_folder(tmp_path)
    content = cifar_files()["data_batch_1"].replace(b"labels", b"labelz")
    (folder / "data_batch_1").write_bytes(content)
    wording(problem(lambda: read_images(folder)).what)

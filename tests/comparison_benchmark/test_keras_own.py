"""A user's own model and data in the Keras benchmark: what is checked, and what an error names."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_data import own_pictures, part_of_baseline, part_of_worker
from paceline.comparison.benchmark.keras_own import Arrays, OwnFunction, check_own
from paceline.comparison.benchmark.keras_runner import check_functions
from paceline.comparison.benchmark.keras_schema import KerasSettings, check_settings
from paceline.core.errors import ConfigError, OwnClassError

MODULE = """
def pairs():
    return ([[1.0], [2.0]], [0, 1]), ([[3.0]], [1])


def raising():
    return 1 / 0


NUMBER = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "benchmark_mine.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # restores the path, which loading changes
    return str(tmp_path)


def own(path: str, folder: str, noun: str = "dataset") -> OwnFunction:
    return OwnFunction(noun=noun, path=path, folder=folder)


def test_names_that_cannot_work_are_refused_together_before_anything_starts(
    folder: str, wording: Wording
) -> None:
    settings = KerasSettings(model="benchmark_nowhere:model", dataset="pairs", code=folder)
    with wording.raises(ConfigError) as caught:
        check_functions(settings)
    assert [problem.where for problem in caught.value.problems] == ["--model", "--dataset"]
    check_own([own("benchmark_mine:pairs", folder), own("paceline.cli.main:run", folder)])


def test_an_error_in_the_function_names_the_file_and_line_of_the_user(folder: str) -> None:
    with pytest.raises(OwnClassError) as caught:
        own("benchmark_mine:raising", folder, "model").call()
    assert "ZeroDivisionError" in caught.value.what
    assert "benchmark_mine.py:7 in raising" in caught.value.what


@pytest.mark.parametrize("name", ["missing", "NUMBER"])
def test_what_is_not_a_function_of_the_module_is_refused(folder: str, name: str) -> None:
    with pytest.raises(OwnClassError, match=name):
        own(f"benchmark_mine:{name}", folder).call()


@pytest.mark.parametrize(
    "value", [5, ([1], [2]), ((np.zeros((3, 2)), np.zeros(2)), (np.zeros((1, 2)), np.zeros(1)))]
)
def test_a_data_set_of_another_form_is_refused_with_the_form(value: object, wording: Wording) -> None:
    with wording.raises(OwnClassError):
        Arrays.of(value, own("mine:data", "."))


def test_own_samples_are_shared_as_images_are(folder: str) -> None:
    samples = np.arange(100, dtype=np.float32).reshape(50, 2)
    value = (samples, np.arange(50)), (samples[:10], np.arange(10))
    function = own("mine:data", folder)
    settings = KerasSettings(model="mine:model", dataset="mine:data", batch_size=8, epochs=1, subset=44)
    pictures = own_pictures(Arrays.of(value, function), settings, function)
    assert (pictures.counts.training, pictures.counts.validation, pictures.counts.test) == (40, 4, 10)
    baseline = part_of_baseline(pictures, settings)
    parts = [part_of_worker(pictures, settings, rank) for rank in range(2)]
    for step in range(baseline.steps.shape[1]):
        together = [label for part in parts for label in part.training[1][part.steps[0, step]]]
        assert list(baseline.training[1][baseline.steps[0, step]]) == together


def test_the_built_in_model_takes_images_like_those_of_cifar10(wording: Wording) -> None:
    function = own("mine:data", ".")
    settings = KerasSettings(dataset="mine:data", batch_size=4)

    def pair(count: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((count, 32, 32, 3), dtype=np.uint8), np.arange(count) % labels

    own_pictures(Arrays.of((pair(20, 10), pair(4, 4)), function), settings, function)
    for wrong in (((np.zeros((20, 3)), np.zeros(20)), pair(4, 4)), (pair(20, 11), pair(4, 4))):
        with wording.raises(OwnClassError):
            own_pictures(Arrays.of(wrong, function), settings, function)


def test_own_data_and_a_folder_of_images_exclude_each_other() -> None:
    with pytest.raises(ConfigError):
        check_settings(KerasSettings(data="synthetic", dataset="mine:data"))

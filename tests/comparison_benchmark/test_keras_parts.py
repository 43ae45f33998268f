"""Each step's samples are partitioned over the workers, and together equal those of the baseline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_data import part_of_baseline, part_of_worker, pictures_of
from paceline.comparison.benchmark.keras_schema import KerasSettings, check_settings, counts_of
from paceline.core.errors import ConfigError
from paceline.tasks.cifar10.data import Images, synthetic_images


def numbered(read: int, test: int) -> Images:
    """Each image shows its own number, in bytes, so that it is known again wherever it is seen."""

    def some(count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.arange(first, first + count)
        images = np.zeros((count, 3, 32, 32), dtype=np.uint8)
        images[:, 0, 0, 0], images[:, 1, 0, 0] = numbers % 256, numbers // 256
        return images, numbers % 10

    return Images.of(some(read, 0), some(test, read), hold_out=0)


def shown(images: np.ndarray) -> list[int]:
    """The numbers of images whose colours are last."""
    return [int(image[0, 0, 0]) + 256 * int(image[0, 0, 1]) for image in images]


@given(
    workers=st.integers(1, 5),
    each=st.integers(1, 6),
    epochs=st.integers(1, 3),
    more=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_in_every_step_the_workers_take_together_what_the_baseline_takes(
    workers: int, each: int, epochs: int, more: int, seed: int
) -> None:
    settings = KerasSettings(num_workers=workers, batch_size=workers * each, epochs=epochs, seed=seed)
    read = 2 * workers * each + 2 * workers + more
    pictures = pictures_of(numbered(read, workers + more), settings)
    baseline = part_of_baseline(pictures, settings)
    parts = [part_of_worker(pictures, settings, rank) for rank in range(workers)]
    for epoch in range(epochs):
        for step in range(baseline.steps.shape[1]):
            alone = shown(baseline.training[0][baseline.steps[epoch, step]])
            together = [n for part in parts for n in shown(part.training[0][part.steps[epoch, step]])]
            assert alone == together
            assert len(set(alone)) == settings.batch_size
            labels = [int(n) for part in parts for n in part.training[1][part.steps[epoch, step]]]
            assert labels == [n % 10 for n in alone]


def test_every_image_belongs_to_one_worker_and_to_one_purpose() -> None:
    settings = KerasSettings(num_workers=3, batch_size=6, epochs=2)
    pictures = pictures_of(numbered(100, 11), settings)
    parts = [part_of_worker(pictures, settings, rank) for rank in range(3)]
    seen = [n for part in parts for n in shown(part.training[0])]
    looked_at = [n for part in parts for n in shown(part.validation[0])]
    tested = [n for part in parts for n in shown(part.test[0])]
    assert len(seen) == len(set(seen)) == pictures.counts.training == 90
    assert sorted(looked_at) == list(range(91, 100)), "the last of those that were read"
    assert sorted(tested) == list(range(100, 109))
    assert {len(part.training[0]) for part in parts} == {30}


def test_epochs_have_other_orders_and_a_seed_has_its_own() -> None:
    def steps(seed: int) -> np.ndarray:
        settings = KerasSettings(batch_size=8, epochs=2, seed=seed)
        return part_of_baseline(pictures_of(numbered(60, 4), settings), settings).steps

    assert (steps(1) == steps(1)).all()
    assert (steps(1) != steps(2)).any()
    assert (steps(1)[0] != steps(1)[1]).any()


def test_the_scale_is_that_of_the_training_images_alone() -> None:
    read = synthetic_images(3, count=50, test_count=10)
    settings = KerasSettings(batch_size=8)
    pictures = pictures_of(read, settings)
    expected = Images.of((read.training[0][:45], read.training[1][:45]), read.test, hold_out=1)
    assert pictures.counts.training == 46
    assert pictures.means != expected.means, "46 are not 44"
    assert pictures.training[0].shape == (46, 32, 32, 3)


def test_a_batch_that_workers_cannot_share_is_refused_with_one_that_they_can(wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        check_settings(KerasSettings(num_workers=3, batch_size=64))
    assert "--batch-size 66" in caught.value.hint
    check_settings(KerasSettings(num_workers=3, batch_size=66))


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(KerasSettings(num_workers=3, batch_size=64, dropout=0.7))
    assert [problem.where for problem in caught.value.problems] == ["--batch-size", "--dropout"]


def test_storage_without_restarts_is_refused() -> None:
    with pytest.raises(ConfigError):
        check_settings(KerasSettings(storage="/shared"))
    check_settings(KerasSettings(storage="/shared", max_failures=1))


@given(workers=st.integers(1, 6), each=st.integers(1, 40))
def test_the_hint_of_too_few_images_names_a_number_that_is_enough(workers: int, each: int) -> None:
    settings = KerasSettings(num_workers=workers, batch_size=workers * each)
    with pytest.raises(ConfigError, match=str(settings.batch_size)) as caught:
        counts_of(settings.batch_size, 500, settings)
    enough = int(caught.value.hint.split("--subset ")[1].split()[0])
    counts = counts_of(enough, 500, settings)
    assert counts.training >= settings.batch_size
    assert counts.training % workers == counts.validation % workers == counts.test % workers == 0

"""Division of images among Keras processes: which images each trains on, and in which order.

Worker r of N owns every N-th image, from the r-th: these, and no others, are given to it. In each epoch it
takes its own in an order of its own, by the seed. The baseline takes in each step what all workers together
take in that step, so both sides see the same images at the same time; only how they compute differs. Pure.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.comparison.benchmark.keras_own import Array, Arrays, OwnFunction
from paceline.comparison.benchmark.keras_schema import Counts, KerasSettings, counts_of
from paceline.tasks.cifar10.data import Bytes, Images, channel_statistics

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Data of one process. CIFAR-10 images are (N, 32, 32, 3) bytes, the layout of TensorFlow."""

    training: tuple[Array, Array]
    steps: Rows  # (epochs, steps, images of a step): rows of `training`
    validation: tuple[Array, Array]
    test: tuple[Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """All images, and what is known of them."""

    counts: Counts
    training: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]
    means: tuple[float, ...]  # of each colour, over the training images; empty for a model of the user
    deviations: tuple[float, ...]


def pictures_of(read: Images, settings: KerasSettings) -> Pictures:
    """The validation images are the last of those that were read."""
    images, labels = read.training
    counts = counts_of(len(images), len(read.test[0]), settings)
    cut = len(images) - counts.validation
    means, deviations = channel_statistics(images[: counts.training])
    test_images, test_labels = read.test
    return Pictures(
        counts=counts,
        training=(_colours_last(images[: counts.training]), labels[: counts.training]),
        validation=(_colours_last(images[cut:]), labels[cut:]),
        test=(_colours_last(test_images[: counts.test]), test_labels[: counts.test]),
        means=means,
        deviations=deviations,
    )


def own_pictures(own: Arrays, settings: KerasSettings, function: OwnFunction) -> Pictures:
    """The user's samples; the validation samples are the last of those for training."""
    own = own.first(settings.subset, settings.test_subset)
    samples, labels = own.training
    counts = counts_of(len(samples), len(own.test[0]), settings)
    cut = len(samples) - counts.validation
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    if not settings.model:
        own.check_images(function)
        means, deviations = channel_statistics(_colours_first(samples[: counts.training]))
    return Pictures(
        counts=counts,
        training=(samples[: counts.training], labels[: counts.training]),
        validation=(samples[cut:], labels[cut:]),
        test=(own.test[0][: counts.test], own.test[1][: counts.test]),
        means=means,
        deviations=deviations,
    )


def part_of_worker(pictures: Pictures, settings: KerasSettings, rank: int) -> Part:
    def share(of: tuple[Array, Array]) -> tuple[Array, Array]:
        every = slice(rank, None, settings.num_workers)
        return np.ascontiguousarray(of[0][every]), of[1][every].copy()

    return Part(
        training=share(pictures.training),
        steps=worker_steps(pictures.counts.training, settings, rank),
        validation=share(pictures.validation),
        test=share(pictures.test),
    )


def part_of_baseline(pictures: Pictures, settings: KerasSettings) -> Part:
    """All of it; each step is made of what the workers would take in it."""
    workers = range(settings.num_workers)
    together = [
        worker_steps(pictures.counts.training, settings, rank) * settings.num_workers + rank
        for rank in workers
    ]
    return Part(
        training=pictures.training,
        steps=np.concatenate(together, axis=2),
        validation=pictures.validation,
        test=pictures.test,
    )


def worker_steps(training: int, settings: KerasSettings, rank: int) -> Rows:
    """Rows of the worker's own images, (epochs, steps, its batch); those left over wait for another epoch."""
    own = training // settings.num_workers
    batch = settings.batch_of_worker
    steps = own // batch
    epochs = [
        np.random.default_rng((settings.seed, rank, epoch)).permutation(own)[: steps * batch]
        for epoch in range(settings.epochs)
    ]
    return np.stack(epochs).reshape(settings.epochs, steps, batch)


def _colours_first(images: Bytes) -> Bytes:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _colours_last(images: Bytes) -> Bytes:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))

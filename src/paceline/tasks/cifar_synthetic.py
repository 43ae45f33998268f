"""What stands in for the CIFAR-10 images where there are none? Coloured patterns, one kind for each class.

Only for trying things out, and only when asked for: whatever is learnt here
says nothing about real images. Each class is a random pattern of patches, the
same seen in a mirror; an image shows it shifted, stronger or weaker, under
noise. Everything is drawn from the seed.
"""

import numpy as np

from paceline.tasks.cifar_files import CLASSES, Bytes, Images, Labels

NAME = "synthetic"
TRAINING_IMAGES = 2000
TEST_IMAGES = 500
SIDE = 32
COARSE = 4  # a pattern has so many patches each way
CONTRAST = 40.0
NOISE = 40.0
MOST_SHIFT = 3


def synthetic_images(seed: int, *, count: int | None, test_count: int | None, hold_out: int = 0) -> Images:
    dice = np.random.default_rng((seed, 0xC1FA))
    patch = np.ones((SIDE // COARSE, SIDE // COARSE))
    drawn = np.kron(dice.standard_normal((CLASSES, 3, COARSE, COARSE)), patch)
    patterns = (drawn + drawn[..., ::-1]) / 2**0.5
    read = _draw(dice, patterns, TRAINING_IMAGES if count is None else count)
    test = _draw(dice, patterns, TEST_IMAGES if test_count is None else test_count)
    return Images.of(read, test, hold_out=hold_out)


def _draw(
    dice: np.random.Generator, patterns: np.ndarray[tuple[int, ...], np.dtype[np.float64]], count: int
) -> tuple[Bytes, Labels]:
    labels = dice.integers(CLASSES, size=count)
    images = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8)
    for number, label in enumerate(labels):
        shift = dice.integers(-MOST_SHIFT, MOST_SHIFT + 1, size=2)
        shown = np.roll(patterns[label], tuple(shift), axis=(1, 2)) * CONTRAST * dice.uniform(0.5, 1.5)
        noise = dice.standard_normal((3, SIDE, SIDE)) * NOISE
        images[number] = np.clip(128 + shown + noise, 0, 255)
    return images, labels.astype(np.int64)

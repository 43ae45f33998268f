"""CIFAR-10 images: finding, reading and checking their files, and synthetic stand-ins.

Either the standard folder `cifar-10-batches-py` with its five training batches
and one test batch, or the official archive of it, which is read as it is. The
files are pickles, read by a restricted unpickler (plain_pickle.py). Images stay
bytes. Every problem names the command to type next.
"""

import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core import environ
from paceline.core.errors import ConfigError, Problem, TaskDataError
from paceline.tasks.cifar10.plain_pickle import PlainPickleError, read_plain

FOLDER = "cifar-10-batches-py"
ARCHIVE = "cifar-10-python.tar.gz"
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
NAMES = "batches.meta"  # of the classes; other tools want the file, we do not read it
PIXELS = (3, 32, 32)
CLASSES = 10
BATCH_IMAGES = 10_000
LARGEST_FILE = 64 << 20  # a batch has 31 MB
FETCH = "paceline data fetch cifar10"

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
Sums = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images are (N, 3, 32, 32) bytes; mean and deviation are those of each colour in the training part."""

    training: tuple[Bytes, Labels]
    held_out: tuple[Bytes, Labels]  # of the training images, for validation; may be none
    test: tuple[Bytes, Labels]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def of(cls, read: tuple[Bytes, Labels], test: tuple[Bytes, Labels], *, hold_out: int) -> "Images":
        """The last `hold_out` of what was read are not trained on."""
        images, labels = read
        cut = len(images) - hold_out
        if cut < 1:
            raise problem(
                f"{hold_out} of {len(images)} images are held out, so none is left to train on",
                "write for example --task-option valid=500, and a larger subset",
            )
        means, deviations = channel_statistics(images[:cut])
        return cls(
            training=(images[:cut], labels[:cut]),
            held_out=(images[cut:], labels[cut:]),
            test=test,
            means=means,
            deviations=deviations,
        )


def find_data(folder: str | None) -> Path:
    """The standard folder or the archive: named, or inside the named folder, or where `fetch` puts it."""
    place = environ.data_folder() if folder is None else Path(folder)
    inside = (place / FOLDER, place / ARCHIVE)
    candidates = inside if folder is None else (place, *inside)
    for candidate in candidates:
        if candidate.is_file() or (candidate / TRAINING[0]).is_file() or (candidate / TEST).is_file():
            return candidate
    reason = f"there is no {FOLDER} in {place}" if place.is_dir() else f"there is no folder {place}"
    target = place.parent if place.name == FOLDER else place
    where = "" if folder is None else f" --to {target}"
    raise problem(
        f"cifar10 has no data: {reason}",
        f"run `{FETCH}{where}`, name its folder with --data FOLDER, or train on synthetic patterns with "
        "--data synthetic",
    )


def read_images(
    place: Path, *, subset: int | None = None, test_subset: int | None = None, hold_out: int = 0
) -> Images:
    """The first `subset` training images and `test_subset` test images; None: all of them.

    Read once in a process and in those that it forks: they share the memory.
    """
    batches = TRAINING if subset is None else TRAINING[: -(-subset // BATCH_IMAGES)]
    files = [place] if place.is_file() else [place / name for name in (*batches, TEST)]
    stamp = tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file())
    return _read_images(place, batches, (subset, test_subset, hold_out), stamp)


@lru_cache(maxsize=1)
def _read_images(
    place: Path,
    training_names: tuple[str, ...],
    counts: tuple[int | None, int | None, int],
    stamp: tuple[tuple[int, int], ...],  # of the files: when they change, they are read again
) -> Images:
    del stamp
    subset, test_subset, hold_out = counts
    names = (*training_names, TEST)
    contents = members(place, names) if place.is_file() else _files(place, names)
    batches = {name: _batch(f"{place / name}", place, content) for name, content in contents.items()}
    training = [batches[name] for name in training_names]
    test_images, test_labels = batches[TEST]
    return Images.of(
        (
            np.concatenate([images for images, _ in training])[:subset],
            np.concatenate([labels for _, labels in training])[:subset],
        ),
        # A copy: what was read cannot be written, and torch minds.
        (test_images[:test_subset].copy(), test_labels[:test_subset]),
        hold_out=hold_out,
    )


def members(archive: Path, names: Iterable[str], *, also: Iterable[str] = ()) -> dict[str, bytes]:
    """These files of the archive, and these if it has them, read in one pass; nothing is unpacked."""
    needed = tuple(names)
    wanted_members = {f"{FOLDER}/{name}": name for name in (*needed, *also)}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.name in wanted_members and member.isreg() and member.size <= LARGEST_FILE:
                    file = tar.extractfile(member)
                    assert file is not None, "a regular file has a content"
                    contents[wanted_members[member.name]] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        why = str(error).splitlines()[0].rstrip(":") if str(error) else "it ends too early"
        raise damaged(archive, f"{archive} cannot be read as an archive: {why}") from error
    missing = [name for name in needed if name not in contents]
    if missing:
        raise damaged(archive, f"{archive} is truncated or is not CIFAR-10: it has no {', '.join(missing)}")
    return contents


def check_batches(place: Path, contents: Mapping[str, bytes]) -> None:
    """Raises what is wrong with the first of them that is no batch of images."""
    for name in (*TRAINING, TEST):
        _batch(f"{place / name}", place, contents[name])


def _files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise damaged(folder, f"{folder} is incomplete: it has no {', '.join(missing)}")
    try:
        return {name: _content(folder, folder / name) for name in names}
    except OSError as error:
        raise problem(
            f"{error.filename} cannot be read: {error.strerror}", f"make it readable: chmod -R u+rX {folder}"
        ) from error


def _content(folder: Path, path: Path) -> bytes:
    if path.stat().st_size > LARGEST_FILE:
        raise damaged(folder, f"{path} is not a batch of CIFAR-10: it has {path.stat().st_size} bytes")
    return path.read_bytes()


def _batch(name: str, place: Path, content: bytes) -> tuple[Bytes, Labels]:
    try:
        held = read_plain(content)
    except PlainPickleError as error:
        raise damaged(place, f"{name} is damaged, or is not a batch of CIFAR-10: {error}") from error
    rows = held.get("data")
    labels = held.get("labels")
    if not isinstance(rows, np.ndarray) or not isinstance(labels, list):
        has = ", ".join(sorted(held)) or "nothing"
        raise damaged(place, f"{name} is not a batch of CIFAR-10: it needs data and labels, and has {has}")
    width = PIXELS[0] * PIXELS[1] * PIXELS[2]
    if rows.ndim != 2 or rows.shape[1] != width or len(rows) != len(labels) or not len(rows):
        shape = "x".join(map(str, rows.shape))
        reason = f"its data is {shape} with {len(labels)} labels, not Nx{width} with N labels"
        raise damaged(place, f"{name} is not a batch of CIFAR-10: {reason}")
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise damaged(place, f"{name} is not a batch of CIFAR-10: a label is not from 0 to {CLASSES - 1}")
    return rows.reshape(-1, *PIXELS), np.array(labels, dtype=np.int64)


def channel_statistics(images: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each colour, exactly, for any number of images."""
    return statistics_of(*colour_sums(images), count=len(images))


def colour_sums(images: Bytes) -> tuple[Sums, Sums]:
    """Sums of the bytes of each colour, and of their squares."""
    sums = np.zeros(3, dtype=np.uint64)
    squares = np.zeros(3, dtype=np.uint64)
    for start in range(0, len(images), 2000):  # a few megabytes at a time
        block = images[start : start + 2000].astype(np.uint32)
        sums += block.sum(axis=(0, 2, 3), dtype=np.uint64)
        squares += np.square(block, out=block).sum(axis=(0, 2, 3), dtype=np.uint64)
    return sums, squares


def statistics_of(sums: Sums, squares: Sums, *, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The same from the sums over `count` images."""
    pixels = float(count * PIXELS[1] * PIXELS[2])
    means = sums / pixels
    deviations = np.sqrt(np.maximum(squares / pixels - means**2, 1.0))  # one colour all over has none
    return tuple(means.tolist()), tuple(deviations.tolist())


def damaged(place: Path, message: str) -> ConfigError:
    """The remedy is the same for every defect: fetch it again."""
    where = "" if place.parent == environ.data_folder() else f" --to {place.parent}"
    return problem(message, f"download it again: rm -r {place} && {FETCH}{where}")


def problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])


# Only for trying things out, and only when asked for: whatever is learnt here
# says nothing about real images. Each class is a random pattern of patches, the
# same seen in a mirror; an image shows it shifted, stronger or weaker, under
# noise. Everything is drawn from the seed.

SYNTHETIC = "synthetic"
TRAINING_IMAGES = 2000
TEST_IMAGES = 500
SIDE = 32
COARSE = 4  # patches of a pattern in each direction
CONTRAST = 40.0
NOISE = 40.0
SYNTHETIC_SHIFT = 3


def synthetic_images(seed: int, *, count: int | None, test_count: int | None, hold_out: int = 0) -> Images:
    rng = np.random.default_rng((seed, 0xC1FA))
    patch = np.ones((SIDE // COARSE, SIDE // COARSE))
    drawn = np.kron(rng.standard_normal((CLASSES, 3, COARSE, COARSE)), patch)
    patterns = (drawn + drawn[..., ::-1]) / 2**0.5
    read = _draw(rng, patterns, TRAINING_IMAGES if count is None else count)
    test = _draw(rng, patterns, TEST_IMAGES if test_count is None else test_count)
    return Images.of(read, test, hold_out=hold_out)


def _draw(
    rng: np.random.Generator, patterns: np.ndarray[tuple[int, ...], np.dtype[np.float64]], count: int
) -> tuple[Bytes, Labels]:
    labels = rng.integers(CLASSES, size=count)
    images = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8)
    for number, label in enumerate(labels):
        shift = rng.integers(-SYNTHETIC_SHIFT, SYNTHETIC_SHIFT + 1, size=2)
        shown = np.roll(patterns[label], tuple(shift), axis=(1, 2)) * CONTRAST * rng.uniform(0.5, 1.5)
        noise = rng.standard_normal((3, SIDE, SIDE)) * NOISE
        images[number] = np.clip(128 + shown + noise, 0, 255)
    return images, labels.astype(np.int64)

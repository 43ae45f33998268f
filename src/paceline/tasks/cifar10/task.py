"""Task cifar10: a small convolutional network on the 60,000 images of CIFAR-10.

Three blocks of two convolutions (64, 128, 256 filters) with batch
normalisation, then a dense layer of 512: 3.2 million parameters. Images stay
bytes in memory; each batch is normalised, and if wanted flipped and shifted,
where the model is. The random numbers are those of torch's own generator, which the worker
seeds for every share of the work, so a replay shows the same pictures.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.errors import ConfigError, Problem, TaskDataError
from paceline.datasets.index import is_data_set
from paceline.datasets.opening import PartReader, check_task, open_data_set
from paceline.tasks.cifar10.data import (
    CLASSES,
    Bytes,
    Images,
    Labels,
    colour_sums,
    find_data,
    problem,
    read_images,
    statistics_of,
    synthetic_images,
)
from paceline.tasks.cifar10.data import SYNTHETIC as SYNTHETIC
from paceline.tasks.optim import Adam
from paceline.tasks.port import device_of
from paceline.tasks.stored_samples import StoredSamples
from paceline.tasks.tensor_samples import TensorSamples

TRAINING = "train"
TEST = "test"
IMAGE = "image"


RowSamples = TensorSamples | StoredSamples


class ImageSamples(NamedTuple):
    """Like Images of tasks/cifar10/data.py, from any source."""

    training: RowSamples
    held_out: RowSamples
    test: RowSamples
    means: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSizes:
    """How many images; None: all."""

    subset: int | None
    test_subset: int | None
    hold_out: int


def open_images(url: str, sizes: SubsetSizes, cache: str | None, cache_mb: int | None) -> ImageSamples:
    data_set = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "cifar10")
    training = data_set.reader(TRAINING)
    test = data_set.reader(TEST)
    count = len(training) if sizes.subset is None else min(sizes.subset, len(training))
    cut = count - sizes.hold_out
    if cut < 1:
        raise problem(
            f"{sizes.hold_out} of {count} images are held out, so none is left to train on",
            "write for example --task-option valid=500, and a larger subset",
        )
    means, deviations = _statistics(training, cut)
    tested = len(test) if sizes.test_subset is None else min(sizes.test_subset, len(test))
    return ImageSamples(
        training=StoredSamples(training, count=cut),
        held_out=StoredSamples(training, first=cut, count=sizes.hold_out),
        test=StoredSamples(test, count=tested),
        means=means,
        deviations=deviations,
    )


def _statistics(reader: PartReader, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Statistics of the first `count` images: whole shards by the sums in the index, the rest by reading."""
    sums = np.zeros(3, dtype=np.uint64)
    squares = np.zeros(3, dtype=np.uint64)
    whole = [s for number, s in enumerate(reader.part.shards) if _end(reader, number) <= count]
    for shard in whole:
        sums += np.array(shard.sums["sums"], dtype=np.uint64)
        squares += np.array(shard.sums["squares"], dtype=np.uint64)
    for start in range(sum(shard.records for shard in whole), count, 2000):
        block = colour_sums(reader.rows(range(start, min(start + 2000, count)))[IMAGE])
        sums = sums + block[0]
        squares = squares + block[1]
    return statistics_of(sums, squares, count=count)


def _end(reader: PartReader, number: int) -> int:
    """The first record that is not in the shard of this number any more."""
    return min((number + 1) * reader.part.shard_records, len(reader))


EVAL_BATCH = 500  # test images in one forward pass
MAX_SHIFT = 4  # pixels, in each direction
NUM_OFFSETS = 2 * MAX_SHIFT + 1
PRECISIONS = ("full", "bf16")


class Cifar10Task:
    """`data`: a folder, the archive, or `synthetic`; None: where `paceline data fetch cifar10` puts it."""

    reads_files: ClassVar[bool] = True

    def __init__(
        self,
        *,
        seed: int,
        data: str | None = None,
        subset: int | None = None,
        test_subset: int | None = None,
        valid: int = 0,
        width: int = 64,
        hidden: int = 512,
        dropout: float = 0.25,
        augment: bool = True,
        amp: str = "full",
        lr: float = 1e-3,
        data_cache: str | None = None,
        data_cache_mb: int | None = None,
    ) -> None:
        _check(subset=subset, test_subset=test_subset, width=width, hidden=hidden)
        _check_rest(valid, dropout, augment, amp)
        self._width = width
        self._hidden = hidden
        self._dropout = float(dropout)
        self._augment = augment
        self._has_amp = amp == "bf16"
        self._lr = lr
        sizes = SubsetSizes(subset=subset, test_subset=test_subset, hold_out=valid)
        if data is not None and is_data_set(str(data)):
            read = open_images(str(data), sizes, data_cache, data_cache_mb)
        else:
            read = _in_memory(_read(seed, data, subset, test_subset, valid))
        self._train = read.training
        self._test = read.test
        # Without a validation set, evaluations during training use the test images, and the name says so.
        self._valid, self._seen = (read.held_out, "valid") if valid else (self._test, "test")
        self._means = read.means
        self._deviations = read.deviations
        self._scales: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def model(self) -> nn.Module:
        width = self._width
        return nn.Sequential(
            *_block(3, width, self._dropout),
            *_block(width, 2 * width, self._dropout),
            *_block(2 * width, 4 * width, self._dropout),
            nn.Flatten(),
            nn.Linear(4 * width * 4 * 4, self._hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(2 * self._dropout),
            nn.Linear(self._hidden, CLASSES),
        )

    def samples(self) -> RowSamples:
        return self._train

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = batch
        inputs = self._normalised(pictures)
        if self._augment and model.training:
            inputs = flipped_and_shifted(inputs)
        return functional.cross_entropy(self._scores(model, inputs), labels)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        count = len(self._test)
        total = 0.0
        right = 0
        with torch.no_grad():
            for start in range(0, count, EVAL_BATCH):
                loss, hits = self._sums(model, self._test, range(start, min(start + EVAL_BATCH, count)))
                total = total + loss
                right = right + hits
        return {"test_loss": total / count, "test_accuracy": right / count}

    def validation_size(self) -> int:
        return len(self._valid)

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        loss, hits = self._sums(model, self._valid, rows)
        return {f"{self._seen}_loss": loss, f"{self._seen}_accuracy": float(hits)}

    def _sums(self, model: nn.Module, samples: RowSamples, rows: range) -> tuple[float, int]:
        """Summed over these rows: the loss, and how often the right answer scored highest."""
        pictures, labels = (column.to(device_of(model)) for column in samples.rows(rows))
        scores = self._scores(model, self._normalised(pictures))
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        return float(loss), int((scores.argmax(dim=1) == labels).sum())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Adam:
        return Adam(parameters, lr=self._lr)

    def _normalised(self, pictures: Tensor) -> Tensor:
        """Each colour with the mean 0 and the deviation 1 that it has over the training images."""
        dtype = torch.get_default_dtype()
        where = pictures.device, dtype
        if where not in self._scales:
            means = torch.tensor(self._means, dtype=dtype, device=pictures.device)
            deviations = torch.tensor(self._deviations, dtype=dtype, device=pictures.device)
            self._scales[where] = means.view(3, 1, 1), (1 / deviations).view(3, 1, 1)
        means, inverse = self._scales[where]
        return (pictures.to(dtype) - means) * inverse

    def _scores(self, model: nn.Module, inputs: Tensor) -> Tensor:
        # Colours innermost, as a GPU's tensor cores want it; a sixth faster on a CPU. By hand: vmap knows no
        # memory formats.
        inputs = inputs.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        with self._precision(inputs.device):
            scores: Tensor = model(inputs)
        return scores.to(inputs.dtype)

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.bfloat16) if self._has_amp else nullcontext()


def flipped_and_shifted(inputs: Tensor) -> Tensor:
    """Half of them mirrored, each moved by up to 4 pixels either way; what moves in is the mean colour."""
    count = len(inputs)
    size = inputs.shape[-1]
    # One draw for each picture, on the CPU, whose generator is the worker's; one small copy to the device.
    rng = torch.randint(2 * NUM_OFFSETS * NUM_OFFSETS, (count,)).to(inputs.device, non_blocking=True)
    mirrored = torch.where((rng < NUM_OFFSETS * NUM_OFFSETS).view(-1, 1, 1, 1), inputs.flip(-1), inputs)
    padded = functional.pad(mirrored, (MAX_SHIFT,) * 4)
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)  # a view: all places where a picture may be cut
    every = torch.arange(count, device=inputs.device)
    return windows[every, :, rng // NUM_OFFSETS % NUM_OFFSETS, rng % NUM_OFFSETS]


def _block(before: int, filters: int, dropout: float) -> list[nn.Module]:
    parts: list[nn.Module] = []
    for channels in (before, filters):
        # Without a bias: the normalisation has its own.
        parts += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
        parts.append(nn.ReLU(inplace=True))
    return [*parts, nn.MaxPool2d(2), nn.Dropout(dropout)]


def _read(seed: int, data: str | None, subset: int | None, test_subset: int | None, valid: int) -> Images:
    if data == SYNTHETIC:
        return synthetic_images(seed, count=subset, test_count=test_subset, hold_out=valid)
    place = find_data(None if data is None else str(data))
    return read_images(place, subset=subset, test_subset=test_subset, hold_out=valid)


def _in_memory(read: Images) -> ImageSamples:
    training, held_out, test = (_columns(*part) for part in (read.training, read.held_out, read.test))
    return ImageSamples(training, held_out, test, read.means, read.deviations)


def _columns(images: Bytes, labels: Labels) -> TensorSamples:
    return TensorSamples(torch.from_numpy(images), torch.from_numpy(labels))


def _check(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise _problem(
                f"cifar10's {name} is {value!r}, but it must be an integer, 1 or more",
                f"write for example --task-option {name}=512",
            )


def _check_rest(valid: int, dropout: float, augment: bool, amp: str) -> None:
    if isinstance(valid, bool) or not isinstance(valid, int) or valid < 0:
        message = f"cifar10's valid is {valid!r}, but it must be an integer, 0 or more"
        raise _problem(message, "write for example --task-option valid=5000")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 0.5:
        message = f"cifar10's dropout is {dropout!r}, but it must be a number from 0 to below 0.5"
        raise _problem(message, "write for example --task-option dropout=0.25")
    if not isinstance(augment, bool):
        message = f"cifar10's augment is {augment!r}, but it must be true or false"
        raise _problem(message, "write for example --task-option augment=false")
    if amp not in PRECISIONS:
        message = f"cifar10's amp is {amp!r}, but it must be one of {', '.join(PRECISIONS)}"
        raise _problem(message, "write for example --task-option amp=bf16")


def _problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])

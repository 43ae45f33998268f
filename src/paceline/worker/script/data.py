"""Data of a script: the samples of its DataLoader, by their positions in the stream of the run.

A share of work is a range of positions (sync/samples.py), and a position is one sample of one epoch. Here
`batch` is given positions, not indices, so random numbers drawn while a sample is loaded can be seeded by its
position: augmentation is the same with any number of workers and of loader processes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from paceline.core.errors import PacelineError, script_error
from paceline.plan.plan import Plan
from paceline.sync.assignment import WorkUnit
from paceline.sync.rng import draw_u64
from paceline.sync.samples import Indices, SampleStream
from paceline.tasks.port import Batch, Samples
from paceline.tasks.tensor_samples import TensorSamples
from paceline.tasks.torch_adapters import DatasetSamples
from paceline.worker.batches import Feed, seed_generators, undisturbed_generators
from paceline.worker.gradient import Times
from paceline.worker.replica import Replica
from paceline.worker.script.stream import ENDLESS, StreamSamples, check_stream

if TYPE_CHECKING:
    from paceline.worker.script.session import ScriptSession

_SAMPLE = 0x5A3F  # so that a sample's augmentation and the forward pass draw different numbers


class Positions(SampleStream):
    """A stream whose samples are named by their positions."""

    def __init__(self) -> None:
        super().__init__(num_samples=1, seed=0)

    def take(self, start: int, count: int) -> Indices:
        return np.arange(start, start + count)


class EpochOrder(SampleStream):
    """The samples of a loader in the order of the run; `used` of them in each epoch (drop_last)."""

    def __init__(
        self, *, num_samples: int, used: int, seed: int, is_shuffled: bool, sampler: Iterable[int] | None
    ) -> None:
        super().__init__(num_samples=used, seed=seed, in_order=not is_shuffled)
        self._every = SampleStream(num_samples=num_samples, seed=seed, in_order=not is_shuffled)
        self._used = used
        self._epoch_length = num_samples
        self._sampler = sampler
        self._sampler_seed = seed

    def _order(self, epoch: int) -> Indices:
        if self._sampler is None:
            return self._every.take(epoch * self._epoch_length, self._epoch_length)[: self._used]
        with undisturbed_generators():
            seed_generators(draw_u64(self._sampler_seed, epoch, _SAMPLE))
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            drawn = list(self._sampler)
        return np.asarray(drawn[: self._used], dtype=np.int64)


class PositionSamples(DatasetSamples):
    """Samples of a map-style dataset by position, each loaded under random numbers of its own."""

    def __init__(self, loader: "DataLoader[Any]", order: EpochOrder, seed: int) -> None:  # Any: batches
        super().__init__(
            loader.dataset,
            collate=loader.collate_fn,
            num_workers=loader.num_workers,
            loader=loader,
        )
        self._order = order
        self._seed = seed

    def batch(self, indices: Indices) -> Batch:
        positions = indices.tolist()
        places = self._order.take(positions[0], len(positions)).tolist()
        if hasattr(self._dataset, "__getitems__"):
            seed_generators(draw_u64(self._seed, positions[0], _SAMPLE))
            return self._collate(self._dataset.__getitems__(places))
        rows = []
        for position, place in zip(positions, places, strict=True):
            seed_generators(draw_u64(self._seed, position, _SAMPLE))
            rows.append(self._dataset[place])
        return self._collate(rows)


class PositionTensors:
    """The same of tensors in memory, which draw no random numbers."""

    def __init__(self, columns: Sequence[torch.Tensor], order: EpochOrder) -> None:
        self._rows = TensorSamples(*columns)
        self._order = order

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Indices) -> Batch:
        return list(self._rows.batch(self._order.take(int(indices[0]), len(indices))))


class NoSamples:
    """Of a script that prepares no loader, and draws its samples itself."""

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Indices) -> Batch:
        raise AssertionError("a script without a loader takes no batches")


def samples_of_loader(loader: "DataLoader[Any]", used: int, seed: int) -> Samples:  # Any: batches
    """The samples by position; `used` of them make an epoch."""
    if is_stream(loader):
        return StreamSamples(loader, seed)
    sampler = _sampler_of(loader)
    own: Iterable[int] | None = None
    is_shuffled = isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False) is True
    if not isinstance(sampler, RandomSampler | SequentialSampler | DistributedSampler):
        own = sampler
    order = EpochOrder(
        num_samples=num_samples_of(loader), used=used, seed=seed, is_shuffled=is_shuffled, sampler=own
    )
    if type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate:
        return PositionTensors(loader.dataset.tensors, order)
    return PositionSamples(loader, order, seed)


class _Flat:
    """The samples of a batch sampler of the user's, whose batches are all equal."""

    def __init__(self, batches: Iterable[list[int]], batch_size: int, num_samples: int) -> None:
        self._batches = batches
        self._batch_size = batch_size
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._batches, "set_epoch"):
            self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        drawn = 0
        for batch in self._batches:
            if drawn % self._batch_size or len(batch) > self._batch_size:
                raise refuse_batch_sampler(self._batches, len(batch), self._batch_size)
            drawn += len(batch)
            yield from batch
        if drawn != self._num_samples:
            raise refuse_batch_sampler(self._batches, drawn, self._num_samples)


def refuse_batch_sampler(batches: object, found: int, expected: int) -> PacelineError:
    return script_error(
        "E131",
        f"{type(batches).__name__} makes batches, or epochs, of different sizes: {found} samples after "
        f"{expected}",
        "let all batches but the last, and all epochs, have the same number of samples",
    )


def _sampler_of(loader: "DataLoader[Any]") -> Any:  # Any: batches; a sampler of indices
    """What decides the order of the samples: the sampler, or the batches of a batch sampler."""
    batches = loader.batch_sampler
    if loader.batch_size is not None or batches is None:
        return loader.sampler
    if type(batches) is BatchSampler:
        return batches.sampler
    with undisturbed_generators():
        sizes = [len(batch) for batch in batches]
    return _Flat(batches, sizes[0] if sizes else 1, sum(sizes))


def batch_size_of(loader: "DataLoader[Any]") -> int:  # Any: batches
    batches = loader.batch_sampler
    if loader.batch_size is not None:
        return int(loader.batch_size)
    if type(batches) is BatchSampler:
        return int(batches.batch_size)
    with undisturbed_generators():
        return len(next(iter(batches or [[0]])))


def num_samples_of(loader: "DataLoader[Any]") -> int:  # Any: batches
    """Samples that an epoch of the unchanged loader draws."""
    sampler = _sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        return len(loader.dataset)  # type: ignore[arg-type]  # map-style, as `check_loader` requires
    return len(sampler)


def used_samples(loader: "DataLoader[Any]") -> int:  # Any: batches
    """Samples of an epoch, without those that drop_last leaves out."""
    if is_stream(loader):
        return ENDLESS
    samples = num_samples_of(loader)
    drops_last = loader.drop_last or getattr(loader.batch_sampler, "drop_last", False) is True
    return samples - samples % batch_size_of(loader) if drops_last else samples


def is_stream(loader: "DataLoader[Any]") -> bool:  # Any: batches
    """Whether the samples can only be read one after another."""
    return isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__getitem__")


def check_loader(loader: "DataLoader[Any]") -> None:  # Any: batches
    """Refuse a loader whose samples cannot be assigned to workers."""
    name = type(loader).__name__
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise script_error(
            "E131",
            f"{name}(DataLoader) makes its batches itself",
            "give run.prepare a plain DataLoader of the same dataset",
        )
    if is_stream(loader):
        check_stream(loader)
        return
    if loader.batch_sampler is None:
        raise script_error(
            "E131",
            "the DataLoader makes no batches (batch_size=None)",
            "give it a batch_size, or a batch_sampler",
        )
    sampler = _sampler_of(loader)
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        raise script_error(
            "E131",
            "the RandomSampler draws with replacement, so an epoch has no fixed samples",
            "leave replacement out, or write a Sampler that yields the indices of an epoch",
        )


class ScriptSource:
    def __init__(self, plan: Plan, samples: Samples, device: torch.device) -> None:
        self._plan = plan
        self._samples = samples
        self._feed = Feed(plan, samples, Positions(), ahead=True, pins=device.type == "cuda")
        self.times_ns = Times(0, 0, 0, 0)

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def batches(self, share: WorkUnit) -> Iterator[Batch]:
        """The micro-batches of a share, in order."""
        if isinstance(self._samples, StreamSamples):
            yield from self._samples.batches(self._plan, share)
            return
        for batch, _ in self._feed.batches(share):
            yield batch

    def seed_step(self, share: WorkUnit) -> None:
        """Seed the generators of the forward pass: a share draws the same numbers in any worker."""
        seed_generators(draw_u64(self._plan.seed, share.rank, share.step))

    def compute(
        self, replica: Replica, share: WorkUnit, check: Callable[[], None] = lambda: None
    ) -> NoReturn:
        raise AssertionError("the script computes its gradients itself")


class PreparedLoader:
    """Each iteration is one epoch of the run: this worker's part of its batches.

    Other attributes, such as `dataset`, are those of the original loader.
    """

    def __init__(self, session: "ScriptSession", loader: "DataLoader[Any]") -> None:  # Any: batches
        self._session = session
        self._loader = loader
        self._finished_epoch: int | None = None  # of run.epochs

    def __len__(self) -> int:
        """Batches of an epoch, whatever the number of workers."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        session = self._session
        if session.loop_epoch is not None and session.loop_epoch == self._finished_epoch:
            raise script_error(
                "E135",
                f"the prepared loader was iterated a second time in epoch {session.loop_epoch}",
                "it has the training batches of the epoch, once; to evaluate, make a DataLoader that is not "
                "prepared:  DataLoader(loader.dataset, loader.batch_size)",
            )
        yield from self._batches()
        self._finished_epoch = session.loop_epoch

    def _batches(self) -> Iterator[Batch]:
        session = self._session
        if not session.begin():
            return
        epoch = session.epoch
        while session.is_stepping or (not session.is_known_to_end(epoch) and session.begin()):
            if session.epoch_of(session.present_share) > epoch:
                return  # the step that was begun is the first of the next epoch
            yield session.take_batch()

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the user's loader
        return getattr(self._loader, name)

"""PyTorch datasets and loaders as samples: what `samples()` of a task may return beside our own.

A map-style Dataset (anything with `__len__` and `__getitem__`) is fetched by
index and collated as a DataLoader does it. Of a DataLoader its dataset,
`collate_fn` and the settings of its loader processes are used; which samples a
step takes, in which order, and how many, is decided by the plan, so that every
sample is used exactly once however many workers there are. A sampler that
would decide otherwise is refused before the run starts.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from paceline.errors import OwnClassError, Problem
from paceline.sync.samples import Indices
from paceline.tasks.port import Batch, Samples, Task
from paceline.tasks.tensor_samples import TensorSamples

GUIDE = "docs/guides/your-own-task.md shows what samples() may return"


class DatasetSamples:
    """The samples of a map-style dataset, collated, and how many processes load them ahead."""

    def __init__(
        self,
        dataset: Any,  # Any: a Dataset, a list, or whatever else has a length and items
        *,
        collate: Callable[[list[Any]], Batch] = default_collate,
        num_workers: int = 1,
        loader: "DataLoader[Any] | None" = None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self.num_workers = num_workers
        self.keeps_order = bool(getattr(dataset, "keeps_order", False))
        # As the user's loader has it: prefetch_factor, multiprocessing_context, worker_init_fn, timeout.
        self.loader = loader

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Indices) -> Batch:
        places = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            rows = self._dataset.__getitems__(places)
        else:
            rows = [self._dataset[place] for place in places]
        return self._collate(rows)


def samples_of(task: Task) -> Samples:
    """What `task.samples()` returns, as samples; else an OwnClassError with the user's file and line."""
    found: Any = task.samples()  # Any: whatever the user returns
    if isinstance(found, DataLoader):
        return _of_loader(found, task)
    if isinstance(found, Dataset) or (
        hasattr(found, "__getitems__") and not isinstance(found, DatasetSamples)
    ):
        return _of_dataset(found, task)
    if callable(getattr(found, "batch", None)) and hasattr(found, "__len__"):
        samples: Samples = found
        return samples
    if isinstance(found, Mapping | tuple) or (
        isinstance(found, list) and any(isinstance(f, Tensor) for f in found)
    ):
        what = f"samples() returns a {type(found).__name__} of columns, which has no samples"
        raise _refused(task, what, "return TensorSamples(*columns) from paceline.tasks.tensor_samples")
    if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        return _of_dataset(found, task)
    what = f"samples() returns {_named(found)}, which has no length or no items"
    raise _refused(task, what, f"return a map-style Dataset, a DataLoader of one, or TensorSamples; {GUIDE}")


def _of_dataset(dataset: Any, task: Task) -> Samples:  # Any: see DatasetSamples
    _require_map_style(dataset, task)
    if (
        type(dataset) is TensorDataset
    ):  # already in memory: rows are taken without a process, with the same bits
        return TensorSamples(*dataset.tensors)
    return DatasetSamples(dataset)


def _of_loader(loader: "DataLoader[Any]", task: Task) -> Samples:
    _require_map_style(loader.dataset, task)
    if loader.batch_size is None:
        what = "samples() returns a DataLoader that makes no batches of its own, or has a batch_sampler"
        hint = "give it a batch_size and no batch_sampler; how many samples a step takes is --batch-size"
        raise _refused(task, what, hint)
    sampler = loader.sampler
    is_random = isinstance(sampler, RandomSampler) and not sampler.replacement
    if not (is_random or isinstance(sampler, SequentialSampler | DistributedSampler)):
        what = (
            f"samples() returns a DataLoader with {_named(sampler)}, which would choose the samples of a step"
        )
        hint = "leave the sampler out: every epoch takes each sample once, shuffled from --seed"
        raise _refused(task, what, hint)
    collate = loader.collate_fn
    if type(loader.dataset) is TensorDataset and collate is default_collate:
        return TensorSamples(*loader.dataset.tensors)
    return DatasetSamples(loader.dataset, collate=collate, num_workers=loader.num_workers, loader=loader)


def _require_map_style(dataset: Any, task: Task) -> None:  # Any: see DatasetSamples
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        what = f"samples() returns {_named(dataset)}, which can only be read from its beginning"
        hint = "use a map-style Dataset: each worker takes other samples, by index; big data: `paceline data`"
        raise _refused(task, what, hint)
    if not hasattr(dataset, "__len__"):
        raise _refused(task, f"samples() returns {_named(dataset)}, which has no __len__", "give it one")


def _refused(task: Task, what: str, hint: str) -> OwnClassError:
    return OwnClassError([Problem(f"{what} ({place_of(task, 'samples')})", hint)])


def place_of(task: Task, method: str) -> str:
    """`/home/me/my_task.py:33 in samples`: where a method of the user's class begins."""
    function = getattr(type(task), method)
    try:
        _, line = inspect.getsourcelines(function)
        return f"{inspect.getsourcefile(function)}:{line} in {method}"
    except (OSError, TypeError):  # typed in, or built by something that keeps no source
        return f"{type(task).__qualname__}.{method}"


def _named(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"

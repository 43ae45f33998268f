"""PyTorch datasets and loaders as samples: further return types of a task's `samples()`.

A map-style Dataset (anything with `__len__` and `__getitem__`) is fetched by
index and collated as a DataLoader does it. Of a DataLoader its dataset,
`collate_fn` and the settings of its loader processes are used; which samples a
step takes, in which order, and how many, is decided by the plan, so that every
sample is used exactly once however many workers there are. A sampler that
would decide otherwise is refused before the run starts.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
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

from paceline.core.errors import OwnClassError, Problem
from paceline.sync.samples import Indices
from paceline.tasks.port import Batch, Optimizer, Samples, Task
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
        message = f"samples() returns {_named(found)} of columns, which has no samples"
        raise _refused(task, message, "return TensorSamples(*columns) from paceline.tasks.tensor_samples")
    if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        return _of_dataset(found, task)
    message = f"samples() returns {_named(found)}, which has no length or no items"
    raise _refused(
        task, message, f"return a map-style Dataset, a DataLoader of one, or TensorSamples; {GUIDE}"
    )


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
        message = "samples() returns a DataLoader that makes no batches of its own, or has a batch_sampler"
        hint = "give it a batch_size and no batch_sampler; the samples per step are set by --batch-size"
        raise _refused(task, message, hint)
    sampler = loader.sampler
    is_random = isinstance(sampler, RandomSampler) and not sampler.replacement
    if not (is_random or isinstance(sampler, SequentialSampler | DistributedSampler)):
        message = (
            f"samples() returns a DataLoader with {_named(sampler)}, which would choose the samples of a step"
        )
        hint = "leave the sampler out: every epoch uses each sample once, shuffled with --seed"
        raise _refused(task, message, hint)
    collate = loader.collate_fn
    if type(loader.dataset) is TensorDataset and collate is default_collate:
        return TensorSamples(*loader.dataset.tensors)
    return DatasetSamples(loader.dataset, collate=collate, num_workers=loader.num_workers, loader=loader)


def _require_map_style(dataset: Any, task: Task) -> None:  # Any: see DatasetSamples
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        message = f"samples() returns {_named(dataset)}, which can only be read from its beginning"
        hint = (
            "use a map-style Dataset: each worker reads its samples by index; for large data see "
            "`paceline data`"
        )
        raise _refused(task, message, hint)
    if not hasattr(dataset, "__len__"):
        raise _refused(task, f"samples() returns {_named(dataset)}, which has no __len__", "give it one")


def _refused(task: Task, message: str, hint: str) -> OwnClassError:
    return OwnClassError([Problem(f"{message} ({source_location(task, 'samples')})", hint)])


def source_location(task: Task, method: str) -> str:
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


# The scheduler is moved to the step of the run before each update, not once per
# update: behind a parameter server every gradient is an update of its own, and the
# rate at step 100 must be the same in every mode. Its state is part of the
# optimizer's, so checkpoints, joining workers and replays have it.


@runtime_checkable
class Scheduler(Protocol):
    """The part of torch's LRScheduler that is used."""

    def step(self) -> object: ...

    def state_dict(self) -> dict[str, Any]: ...  # Any: as torch declares it

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...  # Any: as torch declares it


class Scheduled:
    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Scheduler) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._step = 0  # of the run, for which the rate is set

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # Any: as torch declares it
        return self._optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # Any: as torch declares it
        self._optimizer.param_groups = groups

    def begin(self, step: int) -> None:
        """Set the rate of this step of the run; a late gradient of an earlier step does not set it back."""
        with warnings.catch_warnings():
            # Steps that a checkpoint, or another worker, has made count, too.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._step < step:
                self._scheduler.step()
                self._step += 1

    def step(self) -> None:
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:  # Any: as torch declares it
        schedule = {"step": self._step, "scheduler": self._scheduler.state_dict()}
        return {**self._optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        schedule = state_dict["schedule"]
        own = {name: value for name, value in state_dict.items() if name != "schedule"}
        self._optimizer.load_state_dict(own)
        self._scheduler.load_state_dict(schedule["scheduler"])
        self._step = int(schedule["step"])


def optimizer_of(task: Task, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """What `task.optimizer(…)` returns, as one; else an OwnClassError with the user's file and line."""
    found: Any = task.optimizer(parameters)  # Any: whatever the user returns
    if isinstance(found, tuple | list) and len(found) == 2:
        return _with_scheduler(task, *found)
    if all(hasattr(found, name) for name in ("param_groups", "step", "state_dict", "load_state_dict")):
        optimizer: Optimizer = found
        return optimizer
    raise _optimizer_refused(
        task,
        f"optimizer() returns {_named(found)}",
        "return an optimizer, or (optimizer, scheduler); a scheduler is stepped once per step of the run",
    )


def _with_scheduler(task: Task, optimizer: object, scheduler: object) -> Scheduled:
    if not isinstance(optimizer, torch.optim.Optimizer):
        message = f"optimizer() returns a scheduler with {_named(optimizer)}"
        raise _optimizer_refused(
            task, message, "return (optimizer, scheduler) with one optimizer of torch.optim"
        )
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, Scheduler):
        message = f"optimizer() returns {_named(scheduler)}, which is not stepped by steps alone"
        raise _optimizer_refused(
            task, message, "use a scheduler whose step() takes no value, such as OneCycleLR or LambdaLR"
        )
    if (held := not_plain(scheduler.state_dict())) is not None:
        message = f"the state of {type(scheduler).__name__} holds {held}, which a checkpoint cannot hold"
        raise _optimizer_refused(task, message, "use functions instead of stateful objects")
    return Scheduled(optimizer, scheduler)


def not_plain(value: object) -> str | None:
    """The part that a checkpoint cannot hold; None if there is none."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((held for part in value if (held := not_plain(part)) is not None), None)
    is_plain = value is None or isinstance(value, bool | int | float | str | torch.Tensor)
    return None if is_plain else f"a {type(value).__name__}"


def _optimizer_refused(task: Task, message: str, hint: str) -> OwnClassError:
    return OwnClassError([Problem(f"{message} ({source_location(task, 'optimizer')})", hint)])

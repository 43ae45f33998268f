"""Task port: the five methods of a task, and the optional ones.

A task knows nothing of workers, strategies or launchers. It is built once in
every process that needs it, as `MyTask(seed=…, **options)`, and must build the
same thing each time: all randomness comes from the seed. The samples are built
on the CPU; the worker moves each batch to its device. See
docs/guides/your-own-task.md.

A class with `reads_files = True` is also built in the process that workers are
forked from, before the fork: problems with its files are reported once, and what
its module caches of them (functools.cache) is in memory once. Until the fork it
may not compute with torch, which would start threads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from paceline.sync.samples import Indices

Batch: TypeAlias = "Tensor | Sequence[Batch] | Mapping[str, Batch]"


class Samples(Protocol):
    """The training samples, by index. Paceline assigns them to workers.

    Every epoch shuffles them again, unless they have an attribute `keeps_order` that is true.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> Batch:
        """The samples with these indices, stacked. Called with a worker's share of a step."""
        ...


@runtime_checkable
class Foresighted(Protocol):
    """Samples that are fetched from elsewhere, and can be prefetched."""

    def expect(self, indices: Indices) -> None:
        """Prefetch the samples with these indices, which will most likely be used soon. Must not block."""
        ...


class Optimizer(Protocol):
    """The part of torch.optim.Optimizer that Paceline uses; any torch optimizer fits."""

    param_groups: list[dict[str, Any]]  # Any: as torch declares it

    # torch's own signature takes an optional closure and returns its value.
    def step(self) -> object: ...

    def state_dict(self) -> dict[str, Any]: ...  # Any: as torch declares it

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...  # Any: as torch declares it


class Task(Protocol):
    """A training task. One instance belongs to one process.

    An exception of a method ends the worker, and the run reports it with the place where it was raised.
    """

    def model(self) -> nn.Module:
        """A fresh model. Called with torch's generator seeded from the run's seed."""
        ...

    def samples(self) -> Any:  # Any: Samples, a map-style Dataset or a DataLoader of one
        """Samples, or what `paceline.tasks.torch_adapters.samples_of` makes samples of."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # Any: whatever Samples.batch returns
        """The mean loss over the batch (a mean, not a sum: gradients are averaged over workers)."""
        ...

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Metrics of the model by name, on data it was not trained on. Called once, at the end.

        The model is on the worker's device (`device_of(model)`); move the test data there.
        """
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Any:  # Any: see below
        """An Optimizer, or a pair: an optimizer of torch's, and a scheduler of its learning rate."""
        ...


@runtime_checkable
class Validating(Protocol):
    """A task whose validation data many workers may share; `--evaluate-every` uses it.

    A task without it is evaluated by `metrics`, whole, by every worker.
    """

    def validation_size(self) -> int:
        """The number of rows of validation data."""
        ...

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        """Each number **summed** over these rows: {"valid_loss": …, "valid_accuracy": number of right ones}.

        Paceline adds the sums up and divides them by the number of all rows, so that parts of any
        size count as they should. The model is in eval mode, and no gradients are recorded.
        """
        ...


@runtime_checkable
class Scoring(Protocol):
    """A task whose metrics are not means over the rows, such as an F1 score."""

    def scores(self, sums: dict[str, float], num_rows: int) -> dict[str, float]:
        """The metrics by name, from the sums that `validate` returned, over all `num_rows` rows."""
        ...


@runtime_checkable
class LeavingFiles(Protocol):
    """A task that writes files into the run folder."""

    def files(self, metrics: Mapping[str, float]) -> Mapping[str, bytes]:
        """Files for the run folder, by name. Called once, at the end, with what `metrics` returned."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A task whose samples consist of tokens: its throughput is also reported in tokens."""

    def tokens_per_sample(self) -> int:
        """The number of tokens in a sample."""
        ...


@runtime_checkable
class CountsWork(Protocol):
    """A task that knows the cost of a sample: the utilisation of a GPU (MFU) is reported."""

    def flops_per_sample(self) -> float:
        """Floating-point operations of one forward and backward pass, without recomputation."""
        ...


def keeps_order(samples: Samples) -> bool:
    """Whether the samples are used in their own order in every epoch, as a time series may be."""
    return bool(getattr(samples, "keeps_order", False))


@runtime_checkable
class HasBlocks(Protocol):
    """What a task also has that says how its model is split (mode fsdp)."""

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The parts whose parameters are gathered at once, in the order of computing: layers, usually."""
        ...


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def to_device(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        named: Batch = type(batch)(*(to_device(part, device) for part in batch))
        return named
    if isinstance(batch, list | tuple):
        return tuple(to_device(part, device) for part in batch)
    return batch  # a name, a number: whatever else a collate function leaves as it is

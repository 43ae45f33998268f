"""Values of all workers of a script: `run.mean`, `run.gather`, `run.split` and `run.evaluate`.

They use the collective of the run's strategy between its own calls, so they work wherever the strategy does.
All workers must make the same calls in the same order. That holds in modes in which every worker runs the
body of the loop once for every step (`meets`). Elsewhere `run.evaluate` has every worker evaluate all
batches itself.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from paceline.checkpoints.snapshot import Snapshot, from_bytes, join_tensors, split_tensors, to_bytes
from paceline.core.errors import PacelineError, script_error
from paceline.plan.catalog import MODES
from paceline.plan.plan import Plan
from paceline.transport.ports import Collective
from paceline.worker.batches import undisturbed_generators
from paceline.worker.script.suited import is_meeting_mode

Number: TypeAlias = "float | Tensor"
CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 8  # the length of a worker's message


def meets(plan: Plan) -> bool:
    """Whether every worker runs the body of the loop once for every step of the run."""
    mode = MODES.get(plan.mode)
    return plan.elastic is None and mode is not None and is_meeting_mode(mode)


@dataclass(slots=True)
class Meeting:
    """The workers of a run, as far as a script asks them for values."""

    plan: Plan | None  # None: the run has not begun
    rank: int
    collective: Collective | None  # None: this worker is alone, or the mode has none
    _vector: Tensor | None = None

    @property
    def parties(self) -> int:
        return self.plan.num_workers if self.plan is not None and meets(self.plan) else 1

    def require(self, name: str) -> None:
        """Refuse a call in which all workers must take part, where they never do."""
        if self.plan is not None and not meets(self.plan):
            raise refuse_meeting(name, self.plan)

    def exchange(self, value: Any) -> list[Any]:  # Any: tensors and plain values
        """The values of all workers, in the order of ranks."""
        skeleton, tensors = split_tensors(value, "value")
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        if self.parties == 1:
            return [join_tensors(skeleton, tensors)]
        received = [
            from_bytes(data) for data in self._gather(to_bytes(Snapshot(tensors, {"value": skeleton})))
        ]
        return [join_tensors(each.facts["value"], each.tensors) for each in received]

    def _gather(self, data: bytes) -> list[bytes]:
        collective = self.collective
        assert collective is not None, "workers that meet have a collective"
        if self._vector is None:
            self._vector = collective.allocate(CHUNK_BYTES, torch.uint8)
        room = CHUNK_BYTES - _HEAD_BYTES
        parts = [b""] * self.parties
        start = 0
        while True:
            piece = len(data).to_bytes(_HEAD_BYTES, "little") + data[start : start + room]
            self._vector[: len(piece)] = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
            vectors, _ = collective.gather(self._vector)
            rows = [vector.cpu().numpy().tobytes() for vector in vectors]
            lengths = [int.from_bytes(row[:_HEAD_BYTES], "little") for row in rows]
            parts = [part + row[_HEAD_BYTES:] for part, row in zip(parts, rows, strict=True)]
            start += room
            if start >= max(lengths):
                return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def mean(self, value: Any) -> Any:  # Any: a number, a tensor, or a dict of these
        return _mean_of(self.exchange(value))

    def gather(self, tensor: Tensor) -> Tensor:
        rows = [row if row.dim() else row.reshape(1) for row in self.exchange(tensor)]
        return torch.cat(rows).to(tensor.device)

    def agreed(self, value: Any) -> float:  # Any: a number, as the script has it
        """A number that is the same in all workers; else an error."""
        numbers = [float(each) for each in self.exchange(float(value))]
        if any(number != numbers[0] and not math.isnan(number) for number in numbers):
            raise script_error(
                "E126",
                f"the workers gave ReduceLROnPlateau different numbers: {numbers}",
                "give it one on which they agree:  scheduler.step(run.mean(loss))",
            )
        return numbers[0]

    def split(self, loader: Iterable[Any]) -> Iterator[Any]:  # Any: batches
        for number, batch in enumerate(loader):
            if number % self.parties == self.rank % self.parties:
                yield batch

    def evaluate(
        self, fn: Callable[[Any], Any], loader: Iterable[Any], modules: Iterable[nn.Module]
    ) -> Any:  # Any: a batch; a number or a dict of numbers
        """The mean of `fn` over the samples, each evaluated by one worker; added in the order of the
        batches."""
        rows = []
        with _evaluating(list(modules)), torch.no_grad(), undisturbed_generators():
            for number, batch in enumerate(loader):
                if number % self.parties == self.rank % self.parties:
                    rows.append([number, num_samples(batch), _numbers(fn(batch))])
        every = sorted((row for part in self.exchange(rows) for row in part), key=lambda row: int(row[0]))
        if not every:
            raise script_error(
                "E120", "run.evaluate got a loader without batches", "give it a validation set"
            )
        names = every[0][2]
        total = sum(samples for _, samples, _ in every)
        means = {
            name: math.fsum(samples * values[name] for _, samples, values in every) / total for name in names
        }
        return means[""] if set(means) == {""} else means


class _evaluating:  # noqa: N801  # a context manager, used like a function
    """Modules in evaluation mode, and as they were before afterwards."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = [layer for module in modules for layer in module.modules()]

    def __enter__(self) -> None:
        self._was = [layer.training for layer in self._modules]
        for layer in self._modules:
            layer.training = False

    def __exit__(self, *_: object) -> None:
        for layer, was in zip(self._modules, self._was, strict=True):
            layer.training = was


def num_samples(batch: Any) -> int:  # Any: a tensor, or a list or dict that has one
    """The length of the first tensor of a batch; 1 for a batch without one."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(parts, list | tuple):
        return next((num_samples(part) for part in parts if _has_tensor(part)), 1)
    return 1


def _has_tensor(value: Any) -> bool:  # Any: a part of a batch
    parts = list(value.values()) if isinstance(value, dict) else value
    return isinstance(value, Tensor) or (isinstance(parts, list | tuple) and any(map(_has_tensor, parts)))


def _numbers(value: Any) -> dict[str, float]:  # Any: what the script's function returns
    """By name; a single number has the empty name."""
    named = value if isinstance(value, dict) else {"": value}
    return {str(name): float(number) for name, number in named.items()}


def _mean_of(values: list[Any]) -> Any:  # Any: numbers, tensors, or dicts of these
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean_of([value[name] for value in values]) for name in first}
    if isinstance(first, Tensor):
        total = first.clone() if first.is_floating_point() else first.double()
        for value in values[1:]:
            total += value
        return total / len(values)
    return math.fsum(values) / len(values)


def refuse_meeting(name: str, plan: Plan) -> PacelineError:
    why = f"workers of {plan.mode} make their steps independently of each other"
    if plan.elastic is not None:
        why = "the workers of an elastic run do not all run the body of every step"
    return script_error(
        "E126",
        f"{name} needs all workers at the same step, and {why}",
        "use run.evaluate, which every worker may call at any time; or --mode ssgd without --elastic",
    )

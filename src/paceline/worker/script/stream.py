"""Streams: iterable datasets of a script, read by logical parts that do not depend on the number of workers.

A stream is read in as many parts as a step has shares. Share v of step t takes the records of part v that
follow those of step t - 1, in any worker. A worker that did not read them itself restores the newest state
of the part that it knows, its own or that of a checkpoint or of another worker, and reads on from there. So
no record is left out and none is used twice, also when workers are lost, replaced or fewer than before. A
part that ends begins again.
"""

import copy
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from paceline.core.errors import PacelineError, script_error
from paceline.plan.plan import Plan
from paceline.sync.assignment import WorkUnit
from paceline.sync.rng import draw_u64
from paceline.sync.samples import Indices
from paceline.tasks.port import Batch
from paceline.worker.batches import seed_generators, undisturbed_generators
from paceline.worker.script.facts import split

ENDLESS = 1 << 48  # samples of an epoch: a stream has none
_RECORDS = 0x57E4  # so that records and the forward pass draw different numbers


def check_stream(loader: "DataLoader[Any]") -> None:  # Any: batches
    """Refuse a stream that could not be continued where it was left."""
    dataset = loader.dataset
    name = type(dataset).__name__
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        raise script_error(
            "E125",
            f"{name} has no state_dict: after a loss nothing says which of its records were used",
            "add state_dict and load_state_dict, which name the next record; or use a map-style dataset",
        )
    if loader.num_workers:
        raise script_error(
            "E125",
            f"the DataLoader reads {name} in {loader.num_workers} processes, which share its records "
            "among them",
            "use num_workers=0: each worker of the run reads its own part of the stream",
        )
    if loader.batch_size is None:
        message = "the DataLoader of the stream makes no batches (batch_size=None)"
        raise script_error("E131", message, "give it a batch_size")


class _Part:
    """One of the logical parts of a stream, from its beginning or from a state on."""

    def __init__(self, dataset: Any, number: int, parts: int) -> None:  # Any: an iterable dataset
        hugging_face = sys.modules.get("datasets")
        self._skips = 1  # of how many records this part has one
        self._number = number
        if hugging_face is not None and isinstance(dataset, hugging_face.IterableDataset):
            from datasets.distributed import split_dataset_by_node

            self._dataset = split_dataset_by_node(dataset, rank=number, world_size=parts)
        elif hasattr(dataset, "shard"):
            self._dataset = dataset.shard(num_shards=parts, index=number)
        else:
            self._dataset = copy.deepcopy(dataset)
            self._skips = parts
        self._first = copy.deepcopy(self._dataset.state_dict())
        self._passes = 0
        self._records: Iterator[Any] | None = None  # Any: records

    def state_dict(self) -> dict[str, Any]:  # Any: as the dataset has it
        return {"passes": self._passes, "dataset": copy.deepcopy(self._dataset.state_dict())}

    def load_state_dict(self, saved: dict[str, Any]) -> None:  # Any: as `state_dict` returned it
        self._passes = int(saved["passes"])
        self._begin_pass(saved["dataset"])

    def first_state(self) -> dict[str, Any]:  # Any: as `state_dict`
        return {"passes": 0, "dataset": self._first}

    def read(self, count: int) -> list[Any]:  # Any: records
        read: list[Any] = []
        is_fresh = False
        while len(read) < count:
            if self._records is None:
                self._begin_pass(self._first)
            assert self._records is not None, "a pass has begun"
            before = len(read)
            read += self._next(count - len(read))
            if len(read) < count:
                if is_fresh and len(read) == before:
                    raise refuse_empty(self._dataset, self._number)
                is_fresh = True
                self._passes += 1
                self._begin_pass(self._first)
        return read

    def _next(self, count: int) -> list[Any]:
        """Records of the present pass; fewer at its end."""
        assert self._records is not None, "a pass has begun"
        read: list[Any] = []
        for _ in range(count):
            group = list(islice(self._records, self._skips))
            if len(group) <= self._number % self._skips:
                break
            read.append(group[self._number % self._skips])
        return read

    def _begin_pass(self, state: Any) -> None:  # Any: the dataset's
        self._dataset.load_state_dict(copy.deepcopy(state))
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._passes)
        self._records = iter(self._dataset)


class StreamSamples:
    """The records of a stream by shares, and how far each part was read."""

    def __init__(self, loader: "DataLoader[Any]", seed: int) -> None:  # Any: batches
        self._dataset = loader.dataset
        self._collate = loader.collate_fn
        self._seed = seed
        self._parts: dict[int, _Part] = {}
        self._at: dict[int, int] = {}  # the step whose records a part yields next
        self._states: dict[int, dict[int, dict[str, Any]]] = {}  # by part and step; Any: the datasets'

    def __len__(self) -> int:
        return ENDLESS

    def batch(self, indices: Indices) -> Batch:
        raise AssertionError("a stream has no positions")

    def batches(self, plan: Plan, share: WorkUnit) -> Iterator[Batch]:
        """The micro-batches of a share."""
        assert share.cut is None, "the plan's check leaves out modes that cut shares"
        records = self._records(plan, share.rank, share.step)
        start = 0
        for size in split(len(records), plan.grad_accumulation):
            yield self._collate(records[start : start + size])
            start += size

    def _records(self, plan: Plan, number: int, step: int) -> list[Any]:  # Any: records
        count = plan.batch_sizes[number]
        part = self._parts.get(number)
        if part is None:
            part = self._parts[number] = _Part(self._dataset, number, plan.num_workers)
        with undisturbed_generators():
            if self._at.get(number) != step:
                self._seek(part, number, step, count)
            read = self._read(part, number, step, count)
        self._at[number] = step + 1
        self._states.setdefault(number, {})[step + 1] = part.state_dict()
        return read

    def _seek(self, part: _Part, number: int, step: int, count: int) -> None:
        """Be before the records of this step, from the newest state before it."""
        known = {0: part.first_state(), **self._states.get(number, {})}
        newest = max(at for at in known if at <= step)
        part.load_state_dict(known[newest])
        for at in range(newest, step):
            self._read(part, number, at, count)

    def _read(self, part: _Part, number: int, step: int, count: int) -> list[Any]:  # Any: records
        seed_generators(draw_u64(self._seed, number, step, _RECORDS))
        return part.read(count)

    def commit(self, steps: int) -> None:
        """No loss can undo this many steps of the run: older states are no longer needed."""
        for states in self._states.values():
            newest = max((at for at in states if at <= steps), default=0)
            for at in [at for at in states if at < newest]:
                del states[at]

    def state_dict(self) -> dict[str, Any]:  # Any: tensors and plain values
        return {
            str(number): {str(at): state for at, state in states.items()}
            for number, states in self._states.items()
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:  # Any: as `state_dict` returned it
        self._at.clear()
        for number, states in saved.items():
            own = self._states.setdefault(int(number), {})
            own.update({int(at): state for at, state in states.items()})


def refuse_empty(dataset: object, number: int) -> PacelineError:
    return script_error(
        "E125",
        f"part {number} of {type(dataset).__name__} has no records after its state was set to the beginning",
        "let load_state_dict restore the position, and give the stream more shards than the run has shares",
    )

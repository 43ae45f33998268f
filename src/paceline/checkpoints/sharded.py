"""Sharded checkpoints: state split over all ranks, saved and restored on any number of ranks.

Every rank writes its part as one snapshot (writer.py). torch's distributed checkpoint
(DCP) decides which part of which tensor that is, and the JSON next to it records it. DCP
also plans which rank reads what from which part, so that a checkpoint of two ranks fits
one, or three. Only the storage is Paceline's: DCP's own pickles its metadata, and nothing here
is ever unpickled.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future

from paceline.checkpoints.catalog import DAMAGED, PARTS
from paceline.checkpoints.snapshot import DTYPES, Snapshot, misfit_error, read_snapshot
from paceline.core.errors import DamagedCheckpointError, PacelineError

SHARDS = "shards"  # by tensor: its whole size, and where the part in this file begins and ends
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_Facts = dict[str, Any]  # Any: JSON


def part_of(state: Mapping[str, Tensor], *, rank: int, parts: int) -> Snapshot:
    """Part that this rank writes, without copies; rank 0 writes tensors that all ranks have whole."""
    tensors: dict[str, Tensor] = {}
    places: dict[str, object] = {}
    for item in create_default_local_save_plan(dict(state), is_coordinator=rank == 0).items:
        name = item.index.fqn
        data = item.tensor_data
        assert data is not None, f"{name} is a tensor"
        tensor = state[name]
        if not isinstance(tensor, DTensor) and rank != 0:
            continue
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.numel() == 0 and rank != 0:
            continue  # fewer rows than ranks: nothing of it is here
        tensors[name] = local
        places[name] = {
            "dtype": str(local.dtype).removeprefix("torch."),
            "size": list(data.size),
            "offsets": list(data.chunk.offsets),
            "sizes": list(data.chunk.sizes),
            "split": isinstance(tensor, DTensor),
        }
    return Snapshot(tensors, {PARTS: parts, SHARDS: places})


class PartsReader(StorageReader):
    """A Paceline checkpoint for `torch.distributed.checkpoint.load`; a part is verified when it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = read_snapshot(folder, "worker-0").facts
        self._places: dict[str, _Facts] = {}  # by tensor, of any part: its whole size and type
        self._chunks: dict[MetadataIndex, str] = {}  # where each part of it is
        self._metadata = Metadata(state_dict_metadata={})
        try:
            for rank in range(int(self.facts[PARTS])):
                self._add(f"worker-{rank}", _describe(folder, rank))
            self._check_whole()
        except DAMAGED as error:
            raise DamagedCheckpointError(
                f"the checkpoint {folder} is damaged: {error}",
                f"remove {folder} and resume from the checkpoint before it",
            ) from error

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def is_split(self, name: str) -> bool:
        return bool(self._places[name]["split"])

    def size(self, name: str) -> torch.Size:
        return torch.Size(self._places[name]["size"])

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._places[name]["dtype"]]

    def _add(self, participant: str, shards: Mapping[str, _Facts]) -> None:
        known = self._metadata.state_dict_metadata
        for name, shard in shards.items():
            self._places.setdefault(name, shard)
            chunk = ChunkStorageMetadata(torch.Size(shard["offsets"]), torch.Size(shard["sizes"]))
            whole = known.setdefault(
                name, TensorStorageMetadata(TensorProperties(dtype=self.dtype(name)), self.size(name), [])
            )
            assert isinstance(whole, TensorStorageMetadata), "only tensors are put in here"
            whole.chunks.append(chunk)
            self._chunks[MetadataIndex(name, chunk.offsets)] = participant

    def _check_whole(self) -> None:
        """Every row of every tensor is recorded in one part; reading a part verifies it."""
        for name, whole in self._metadata.state_dict_metadata.items():
            assert isinstance(whole, TensorStorageMetadata), "only tensors are put in here"
            row = 0
            for chunk in sorted(whole.chunks, key=lambda chunk: tuple(chunk.offsets)):
                begins = (row, *[0] * (len(whole.size) - 1))[: len(whole.size)]
                if tuple(chunk.offsets) != begins or chunk.sizes[1:] != whole.size[1:]:
                    raise ValueError(f"its parts of {name} do not fit together")
                row += chunk.sizes[0] if whole.size else 1
            if row != (whole.size[0] if whole.size else 1):
                raise ValueError(f"a part of {name} is missing")

    # Methods called by torch.

    def reset(self, checkpoint_id: object = None) -> None: ...

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:  # Any: torch's own signature
        return self._metadata

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,
        *_args: Any,
        **_kwargs: Any,  # Any: torch's own signature
    ) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        items_by_part: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            items_by_part.setdefault(self._chunks[item.storage_index], []).append(item)
        for participant, items in items_by_part.items():  # one after the other: only one part is in memory
            saved = read_snapshot(self._folder, participant)
            for item in items:
                piece = narrow_tensor_by_index(
                    saved.tensors[item.storage_index.fqn], item.storage_offsets, item.lengths
                )
                target = planner.resolve_tensor(item).detach()
                target.copy_(piece)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return isinstance(checkpoint_id, str | Path) and Path(checkpoint_id).is_dir()


def load_parts(state: dict[str, Tensor], reader: PartsReader) -> None:
    """Fill these tensors, split or whole, from the checkpoint. Each rank reads the parts that it needs."""
    try:
        with warnings.catch_warnings():  # it warns that there is no process group, which is intended
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(dict(state), storage_reader=reader, planner=DefaultLoadPlanner(), no_dist=True)
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        if isinstance(first, PacelineError):
            raise first from error
        raise misfit_error(str(first)) from error


def read_whole(folder: Path) -> Snapshot:
    """All parts put together, in this process alone."""
    reader = PartsReader(folder)
    tensors = {name: torch.empty(reader.size(name), dtype=reader.dtype(name)) for name in reader.names}
    load_parts(tensors, reader)
    return Snapshot(tensors, reader.facts)


def _describe(folder: Path, rank: int) -> Mapping[str, _Facts]:
    """Which parts of what are in this file; not yet compared with its hash, which takes its tensors too."""
    shards: Mapping[str, _Facts] = json.loads((folder / f"worker-{rank}.json").read_bytes())["facts"][SHARDS]
    return shards

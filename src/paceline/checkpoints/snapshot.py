"""Snapshots of one participant: written whole or not at all, verified when read.

The layout is described in catalog.py. Tensors are stored as safetensors:
nothing is ever unpickled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from paceline.checkpoints.catalog import DAMAGED, verified
from paceline.core.disk import make_folder, write_durably
from paceline.core.errors import DamagedCheckpointError, MisfitError
from paceline.core.sealed_json import seal


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State that one participant resumes from: named tensors, and facts as JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # Any: JSON


def misfit_error(why: str) -> MisfitError:
    return MisfitError(
        f"the checkpoint does not match the model: {why}",
        "resume with the same task, model and optimizer",
    )


def to_bytes(snapshot: Snapshot) -> bytes:
    """The snapshot as one buffer, for another process's memory."""
    facts = json.dumps(snapshot.facts).encode()
    return len(facts).to_bytes(8, "little") + facts + save(snapshot.tensors)


def from_bytes(data: bytes) -> Snapshot:
    end = 8 + int.from_bytes(data[:8], "little")
    return Snapshot(load(data[end:]), json.loads(data[8:end]))


def write_snapshot(folder: Path, participant: str, snapshot: Snapshot) -> None:
    write_image(folder, participant, save(snapshot.tensors), snapshot.facts)


@dataclass(frozen=True, slots=True)
class WriteResult:
    nbytes: int
    sha256: str


def write_image(
    folder: Path,
    participant: str,
    tensors: bytes | memoryview,
    facts: dict[str, Any],  # Any: JSON
) -> WriteResult:
    """The same from a safetensors file in memory. OSError when it does not fit on the disk."""
    make_folder(folder)
    sealed, sha256 = seal(facts, tensors)
    write_durably(folder / f"{participant}.safetensors", [tensors])
    write_durably(folder / f"{participant}.json", [sealed])
    return WriteResult(len(tensors) + len(sealed), sha256)


def read_snapshot(folder: Path, participant: str) -> Snapshot:
    """The participant's snapshot, verified."""
    try:
        files = verified(folder, participant)
    except DAMAGED as error:
        raise DamagedCheckpointError(
            f"the checkpoint {folder} is damaged: {error}",
            f"remove {folder} and resume from the checkpoint before it",
        ) from error
    return Snapshot(load(files.tensors), files.facts)


# An image is a whole safetensors file in one piece of memory. As long as the
# tensors keep their names, types and shapes, a new snapshot only copies their
# numbers to where they were the last time: no allocation, no page faults, no
# second copy. Hashing and writing it then hold no lock of the interpreter.

# Of the safetensors format.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH = 8  # bytes before the header, which hold its length
_ALIGN = 64  # alignment of the data; a copy to an unaligned address is slower

_Shape = tuple[tuple[str, torch.dtype, torch.Size], ...]


class SnapshotImage:
    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._whole = torch.empty(0, dtype=torch.uint8)
        self._views: list[Tensor] = []

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors from any device, replacing the previous content."""
        shape = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        if shape != self._shape:
            self._lay_out(shape, is_on_gpu=any(tensor.is_cuda for tensor in tensors.values()))
        if self._views:
            torch._foreach_copy_(self._views, [tensor.detach() for tensor in tensors.values()])

    @property
    def data(self) -> memoryview:
        """The file; it changes with the next `fill`."""
        return self._whole.numpy().data

    def _lay_out(self, shape: _Shape, *, is_on_gpu: bool) -> None:
        # Wide numbers first, as the format's own library does: then every tensor begins where it may.
        order = sorted(shape, key=lambda row: (-row[1].itemsize, row[0]))
        header: dict[str, object] = {}
        places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, dtype, size in order:
            begin = end
            end = end + size.numel() * dtype.itemsize
            header[name] = {"dtype": _name(name, dtype), "shape": list(size), "data_offsets": [begin, end]}
            places[name] = (begin, end)
        text = json.dumps(header, separators=(",", ":")).encode()
        start = -(-(_LENGTH + len(text)) // _ALIGN) * _ALIGN
        self._whole = torch.empty(start + end, dtype=torch.uint8, pin_memory=is_on_gpu)
        head = (start - _LENGTH).to_bytes(_LENGTH, "little") + text.ljust(start - _LENGTH)
        self._whole[:start] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._views = []
        for name, dtype, size in shape:
            begin, end = places[name]
            self._views.append(self._whole[start + begin : start + end].view(dtype).view(size))
        self._shape = shape


def _name(tensor: str, dtype: torch.dtype) -> str:
    assert dtype in DTYPES, f"{tensor} is {dtype}, which a checkpoint cannot hold"
    return DTYPES[dtype]


# Every tensor is replaced by a marker with its name; the skeleton that remains
# holds only JSON values. Anything else is refused when saving.

TENSOR_KEY = "__tensor__"


def split_tensors(
    value: Any, prefix: str = "state", *, copy: bool = True
) -> tuple[Any, dict[str, Tensor]]:  # Any: nested state
    """(skeleton, tensors by name); without `copy` the tensors are the live ones."""
    tensors: dict[str, Tensor] = {}
    skeleton = _strip(value, prefix, tensors)
    return skeleton, {name: _copied(tensor) for name, tensor in tensors.items()} if copy else tensors


def tensor_names(skeleton: Any) -> set[str]:  # Any: nested state
    """The names of all tensors that belong into it."""
    if not isinstance(skeleton, dict):
        return set()
    if TENSOR_KEY in skeleton:
        return {skeleton[TENSOR_KEY]}
    parts = skeleton["list"] if "list" in skeleton else [part for _, part in skeleton["dict"]]
    return set[str]().union(*map(tensor_names, parts))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone().contiguous()


def _strip(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # Any: nested state
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return {TENSOR_KEY: name}
    if isinstance(value, dict):
        # JSON has only string keys; torch numbers its parameters.
        return {"dict": [[k, _strip(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_strip(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]}
    assert value is None or isinstance(value, bool | int | float | str), (
        f"{name} is of type {type(value).__name__}, which a checkpoint cannot hold"
    )
    return value


def join_tensors(skeleton: Any, tensors: dict[str, Tensor]) -> Any:  # Any: nested state
    if not isinstance(skeleton, dict):
        return skeleton
    if TENSOR_KEY in skeleton:
        return tensors[skeleton[TENSOR_KEY]]
    if "list" in skeleton:
        return [join_tensors(part, tensors) for part in skeleton["list"]]
    return {key: join_tensors(part, tensors) for key, part in skeleton["dict"]}

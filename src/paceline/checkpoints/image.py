"""How is a snapshot's copy made without asking for memory in every one? Into the bytes of its file, kept.

An image is a whole safetensors file in one piece of memory. As long as the
tensors keep their names, types and shapes, a new snapshot only copies their
numbers to where they were the last time: no allocation, no page faults, no
second copy. Hashing and writing it then hold no lock of the interpreter.
"""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

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
_LENGTH = 8  # bytes before the header, which say how long it is
_ALIGN = 64  # where the numbers begin; a copy to an odd place is slower

_Shape = tuple[tuple[str, torch.dtype, torch.Size], ...]


class Image:
    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._whole = torch.empty(0, dtype=torch.uint8)
        self._views: list[Tensor] = []

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors, wherever they are; what was in here is gone."""
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
            begin, end = end, end + size.numel() * dtype.itemsize
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

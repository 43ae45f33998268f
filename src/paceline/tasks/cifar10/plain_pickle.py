"""Restricted unpickler for the batches of CIFAR-10: data only, no imports, no foreign calls.

A pickle is a program for a stack machine, and unpickling runs it. Everything that such a program can
call comes from `find_class`, which here answers the few names that numpy writes for an array with
constructors of this module, and refuses every other name. Protocols 2 to 5, from Python 2 or 3 and
any numpy. See docs/decisions/0059-restricted-unpickler.md.
"""

import io
import pickle
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LARGEST_SIDE = 1 << 40  # of an array: what is larger is damage, not data


class PlainPickleError(Exception):
    """The bytes are no pickle, are cut short, or hold more than data."""


def read_plain(data: bytes) -> dict[str, object]:
    """The dictionary that the pickle holds: its keys as text, arrays of bytes as arrays."""
    try:
        held = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except PlainPickleError:
        raise
    except Exception as error:  # broken bytes raise any of a dozen types
        reason = str(error) or type(error).__name__
        raise PlainPickleError(reason.splitlines()[0]) from error
    if not isinstance(held, dict):
        raise PlainPickleError(f"it holds a {type(held).__name__}, and no dictionary")
    return {_as_text(key): _whole(value) for key, value in held.items()}


def _as_text(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if not isinstance(key, str):
        raise PlainPickleError(f"its dictionary has a key that is a {type(key).__name__}, and no text")
    return key


def _whole(value: object) -> object:
    if isinstance(value, _Array):
        if value.values is None:
            raise PlainPickleError("it holds an array without its numbers")
        return value.values
    return value


# The one in Python: the one in C allocates as many memo entries as a damaged index says, gigabytes of them.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> "_Constructor":
        if (module, name) not in _CONSTRUCTORS:
            raise PlainPickleError(f"it asks for {module}.{name}, which is code and no data")
        return _CONSTRUCTORS[module, name]


class _ByteType:
    """Numpy's description of unsigned bytes."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1", "|u1"):
            raise PlainPickleError(f"its numbers are of type {name!r}, and not unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """The order of bytes within a number says nothing about single bytes."""


class _Array:
    """An array that is named first and filled later."""

    values: NDArray[np.uint8] | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        match state:
            case (_, tuple() as shape, _ByteType(), is_fortran, bytes() as numbers):
                self.fill(shape, numbers, is_fortran=bool(is_fortran))
            case _:
                raise PlainPickleError("it describes an array in a way that no array is described")

    def fill(self, shape: tuple[object, ...], numbers: bytes, *, is_fortran: bool) -> None:
        sides = [side for side in shape if isinstance(side, int) and 0 <= side <= LARGEST_SIDE]
        if len(sides) != len(shape):
            raise PlainPickleError("it describes an array in a way that no array is described")
        self.values = np.frombuffer(numbers, dtype=np.uint8).reshape(sides, order="F" if is_fortran else "C")


def _from_buffer(*arguments: object) -> _Array:
    match arguments:
        case (bytes() | bytearray() as numbers, _ByteType(), tuple() as shape, str() as order, *_):
            array = _Array()
            array.fill(shape, bytes(numbers), is_fortran=order == "F")
            return array
    raise PlainPickleError("it describes an array in a way that no array is described")


def _encode(*arguments: object) -> bytes:
    """How Python 3 writes bytes under protocol 2."""
    match arguments:
        case (str() as text, "latin1" | "latin-1"):
            return text.encode("latin-1")
    raise PlainPickleError("it makes something of parts that do not belong together")


def _no_call(*_: object) -> object:
    raise PlainPickleError("it makes something of parts that do not belong together")


class _Constructor:
    """What a name stands for: it can be called, and a pickle cannot change it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise PlainPickleError("it gives a state to what has none")


_CONSTRUCTORS = {
    ("numpy.core.multiarray", "_reconstruct"): _Constructor(_Array),
    ("numpy._core.multiarray", "_reconstruct"): _Constructor(_Array),
    ("numpy.core.numeric", "_frombuffer"): _Constructor(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Constructor(_from_buffer),
    ("numpy", "ndarray"): _Constructor(_no_call),  # only ever an argument
    ("numpy", "dtype"): _Constructor(_ByteType),
    ("_codecs", "encode"): _Constructor(_encode),
}

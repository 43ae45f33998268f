"""Safe pickle reader: the data of a pickle, without looking up, importing or calling any name in it.

A pickle is a program for a stack machine, and unpickling runs it, whatever its origin.
Here `pickletools` only disassembles it, and a machine that supports numbers,
text, bytes, lists, tuples, dictionaries and arrays of bytes evaluates it.
The few names that numpy writes for an array stand for themselves; any
other name is refused. Protocols 2 to 5, from Python 2 or 3 and any numpy.
"""

import pickletools
from collections.abc import Callable
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

LARGEST_SIDE = 1 << 40  # of an array: what is larger is damage, not data


class PlainPickleError(Exception):
    """The bytes are no pickle, are cut short, or hold more than data."""


class _Name(Enum):
    """What numpy's pickles name; a value here, and never a function."""

    RECONSTRUCT = auto()
    FROMBUFFER = auto()
    NDARRAY = auto()
    DTYPE = auto()
    ENCODE = auto()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _Name.FROMBUFFER,
    ("numpy._core.numeric", "_frombuffer"): _Name.FROMBUFFER,
    ("numpy", "ndarray"): _Name.NDARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("_codecs", "encode"): _Name.ENCODE,  # how Python 3 writes bytes under protocol 2
}
_MARK = object()
_BYTE_TYPE = object()  # numpy's description of unsigned bytes


class _Array:
    """An array that is named first and filled later."""

    values: NDArray[np.uint8] | None = None


def read_plain(data: bytes) -> dict[str, object]:
    """The dictionary that the pickle holds: its keys as text, arrays of bytes as arrays."""
    try:
        value = _Machine().run(data)
    except (ValueError, OverflowError) as error:  # what pickletools says of broken bytes
        raise PlainPickleError(str(error).splitlines()[0]) from error
    if not isinstance(value, dict):
        raise PlainPickleError(f"it holds a value of type {type(value).__name__}, not a dictionary")
    return {_as_text(key): _whole(value) for key, value in value.items()}


def _as_text(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if not isinstance(key, str):
        raise PlainPickleError(f"its dictionary has a key of type {type(key).__name__}, not text")
    return key


def _whole(value: object) -> object:
    if isinstance(value, _Array):
        if value.values is None:
            raise PlainPickleError("it has an array without data")
        return value.values
    return value


class _Machine:
    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self, data: bytes) -> object:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in _LITERALS:
                self._stack.append(argument)
            elif name == "STOP":
                return self._pop()
            elif name in _STEPS:
                _STEPS[name](self, argument)
            else:
                raise PlainPickleError(f"it holds more than data ({name})")
        raise PlainPickleError("it has no end")

    def push(self, value: object) -> None:
        self._stack.append(value)

    def _pop(self) -> object:
        if not self._stack or self._stack[-1] is _MARK:
            raise PlainPickleError("it pops from an empty stack")
        return self._stack.pop()

    def _top(self) -> object:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_to_mark(self) -> list[object]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                taken = self._stack[place + 1 :]
                del self._stack[place:]
                return taken
        raise PlainPickleError("it refers to a missing mark")

    def remember(self, argument: object) -> None:
        number = len(self._memo) if argument is None else argument
        assert isinstance(number, int), "pickletools reads it as a number"
        self._memo[number] = self._top()

    def recall(self, argument: object) -> None:
        assert isinstance(argument, int), "pickletools reads it as a number"
        if argument not in self._memo:
            raise PlainPickleError("it refers to a missing memo")
        self._stack.append(self._memo[argument])

    def tuple_of(self, count: int) -> None:
        parts = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(parts)))

    def tuple_to_mark(self) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def append(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise PlainPickleError("it appends to a value that is not a list")
        target.extend(values)

    def append_one(self) -> None:
        self.append([self._pop()])

    def append_to_mark(self) -> None:
        self.append(self._pop_to_mark())

    def put(self, pairs: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(pairs) % 2:
            raise PlainPickleError("it sets items of a value that is not a dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[_as_text(key)] = value

    def put_one(self) -> None:
        value = self._pop()
        key = self._pop()
        self.put([key, value])

    def put_to_mark(self) -> None:
        self.put(self._pop_to_mark())

    def name(self, argument: object) -> None:
        """`argument` is None where module and name are on the stack."""
        if argument is None:
            name = self._pop()
            module = self._pop()
        else:
            module, _, name = str(argument).partition(" ")
        if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in _NAMES:
            raise PlainPickleError(f"it refers to {module}.{name}, which is code, not data")
        self._stack.append(_NAMES[module, name])

    def reduce(self) -> None:
        arguments = self._pop()
        name = self._pop()
        match name, arguments:
            case _Name.RECONSTRUCT, (_Name.NDARRAY, _, _):
                self._stack.append(_Array())
            case _Name.DTYPE, ("u1" | b"u1" | "|u1", *_):
                self._stack.append(_BYTE_TYPE)
            case _Name.DTYPE, (other, *_):
                raise PlainPickleError(f"its numbers are of type {other!r}, not unsigned bytes")
            case _Name.FROMBUFFER, (bytes() as numbers, kind, tuple() as shape, str() as order, *_):
                array = _Array()
                _fill(array, kind, shape, numbers, is_fortran=order == "F")
                self._stack.append(array)
            case _Name.ENCODE, (str() as text, "latin1" | "latin-1"):
                self._stack.append(text.encode("latin-1"))
            case _:
                raise PlainPickleError("it builds an object from invalid parts")

    def build(self) -> None:
        state = self._pop()
        target = self._top()
        if target is _BYTE_TYPE:
            return  # the order of bytes within a number says nothing about single bytes
        match target, state:
            case _Array(), (_, tuple() as shape, kind, is_fortran, bytes() as numbers):
                _fill(target, kind, shape, numbers, is_fortran=bool(is_fortran))
            case _:
                raise PlainPickleError("it sets the state of an object that has none")


def _fill(
    array: _Array, kind: object, shape: tuple[object, ...], numbers: bytes, *, is_fortran: bool
) -> None:
    sides = [side for side in shape if isinstance(side, int) and 0 <= side <= LARGEST_SIDE]
    if kind is not _BYTE_TYPE or len(sides) != len(shape):
        raise PlainPickleError("it describes an invalid array")
    array.values = np.frombuffer(numbers, dtype=np.uint8).reshape(sides, order="F" if is_fortran else "C")


_LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    }
)
_STEPS: dict[str, Callable[[_Machine, object], None]] = {
    "PROTO": lambda *_: None,
    "FRAME": lambda *_: None,
    "MARK": lambda machine, _: machine.push(_MARK),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    # Python 2 had no bytes: its text is bytes, which pickletools shows as latin-1.
    "SHORT_BINSTRING": lambda machine, text: machine.push(str(text).encode("latin-1")),
    "BINSTRING": lambda machine, text: machine.push(str(text).encode("latin-1")),
    "BYTEARRAY8": lambda machine, array: machine.push(bytes(array) if isinstance(array, bytearray) else b""),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": lambda machine, _: machine.tuple_to_mark(),
    "APPEND": lambda machine, _: machine.append_one(),
    "APPENDS": lambda machine, _: machine.append_to_mark(),
    "SETITEM": lambda machine, _: machine.put_one(),
    "SETITEMS": lambda machine, _: machine.put_to_mark(),
    "BINPUT": lambda machine, number: machine.remember(number),
    "LONG_BINPUT": lambda machine, number: machine.remember(number),
    "MEMOIZE": lambda machine, _: machine.remember(None),
    "BINGET": lambda machine, number: machine.recall(number),
    "LONG_BINGET": lambda machine, number: machine.recall(number),
    "GLOBAL": lambda machine, name: machine.name(name),
    "STACK_GLOBAL": lambda machine, _: machine.name(None),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}

"""Parsers of single values: text from anywhere, or a typed TOML value, to a config value.

Only the shape is read here ("is this an integer?"); ranges and choices are
checked by `plan.resolve`, so that a TrainConfig built in Python gets the same
checks. Raises only Unreadable, for any input.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from paceline.config.key import Key, Kind
from paceline.config.train_config import Option
from paceline.core.errors import Problem

Raw: TypeAlias = "str | int | float | bool | list[Raw] | dict[str, Raw]"

_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(us|ms|s|m|min|h)?", re.IGNORECASE)
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


class Quoted(str):
    """Text that a file put in quotes: `"64"` is never meant as a number."""

    __slots__ = ()


class Unreadable(Exception):  # noqa: N818 - names the value; always caught internally
    """`why` completes the sentence "<key> is <value>, but …"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def show_value(raw: object) -> str:
    """The value as shown in a message, always short."""
    text = raw if isinstance(raw, str) else reprlib.repr(raw)
    return reprlib.repr(str(text)) if len(text) > 60 or not text.isprintable() or not text else text


def read_text(raw: Raw) -> str:
    if isinstance(raw, list | dict):
        raise Unreadable("it must be a single value")
    text = str(raw).strip()
    if not text:
        raise Unreadable("it must not be empty")
    if not text.isprintable():
        raise Unreadable("it must be printable text on one line")
    return text


def read_integer(raw: Raw) -> int:
    if isinstance(raw, bool | float):
        raise Unreadable("it must be an integer")
    try:
        return int(read_text(raw))
    except ValueError as error:
        raise Unreadable("it must be an integer") from error


def read_number(raw: Raw) -> float:
    if isinstance(raw, bool):
        raise Unreadable("it must be a number")
    try:
        number = float(read_text(raw))
    except ValueError as error:
        raise Unreadable("it must be a number") from error
    if not math.isfinite(number):
        raise Unreadable("it must be a finite number")
    return number


def read_bool(raw: Raw) -> bool:
    word = read_text(raw).lower()
    if word not in _YES | _NO:
        raise Unreadable("it must be yes or no")
    return word in _YES


def read_duration(raw: Raw) -> float:
    """`10ms`, `0.5s`, `2m`, `1h`; a bare number is seconds. A sign is kept, to be refused by range."""
    if isinstance(raw, bool):
        raise Unreadable("it must be a duration such as 10ms or 2s")
    text = read_text(raw)
    sign = -1.0 if text.startswith("-") else 1.0
    match = _DURATION.fullmatch(text.removeprefix("-"))
    if match is None:
        raise Unreadable("it must be a duration such as 10ms or 2s")
    seconds = sign * float(match[1]) * _UNIT_S[(match[2] or "s").lower()]
    if not math.isfinite(seconds):
        raise Unreadable("it must be a finite duration")
    return seconds


def read_batch_size(raw: Raw) -> int | tuple[int, ...]:
    if isinstance(raw, list):
        return tuple(read_integer(item) for item in raw)
    if isinstance(raw, str) and "," in raw:
        return tuple(read_integer(item) for item in raw.split(","))
    return read_integer(raw)


def read_staleness(raw: Raw) -> int | Literal["inf"]:
    if isinstance(raw, float) and math.isinf(raw) and raw > 0:  # TOML writes inf without quotes
        return "inf"
    if isinstance(raw, str) and raw.strip().lower() in {"inf", ".inf", "infinity"}:
        return "inf"
    try:
        return read_integer(raw)
    except Unreadable as error:
        raise Unreadable("it must be an integer or inf") from error


def read_steps_or_epoch(raw: Raw) -> int | Literal["epoch"]:
    if isinstance(raw, str) and raw.strip().lower() in {"epoch", "epochs"}:
        return "epoch"
    try:
        return read_integer(raw)
    except Unreadable as error:
        raise Unreadable("it must be a number of steps, or the word epoch") from error


def read_option(raw: Raw) -> Option:
    """A task's option keeps the simplest type that its text has."""
    if isinstance(raw, list | dict):
        raise Unreadable("it must be a single value")
    if not isinstance(raw, str):
        return raw
    if isinstance(raw, Quoted):
        return str(raw)
    if raw.lower() in {"true", "false"}:
        return raw.lower() == "true"
    for number in (int, float):
        try:
            value: int | float = number(raw)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return raw


def options_in(raw: Raw) -> Mapping[str, Raw]:
    """A mapping from a file, or `hidden=64,depth=2` from anywhere else."""
    if isinstance(raw, dict):
        return raw
    options: dict[str, Raw] = {}
    for part in read_text(raw).split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise Unreadable("it must be name=value")
        options[name.strip()] = value.strip()
    return options


def read(key: Key, raw: Raw) -> object:
    """The value of a key that is written once; lists of rules and options have their own readers."""
    return _READERS[key.kind](raw)


_READERS: dict[Kind, Callable[[Raw], object]] = {
    Kind.TEXT: read_text,
    Kind.CHOICE: lambda raw: read_text(raw).lower(),
    Kind.INTEGER: read_integer,
    Kind.NUMBER: read_number,
    Kind.YES_NO: read_bool,
    Kind.DURATION: read_duration,
    Kind.BATCH_SIZE: read_batch_size,
    Kind.STALENESS: read_staleness,
    Kind.STEPS_OR_EPOCH: read_steps_or_epoch,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSetting:
    """One setting as one source wrote it. `parts` has the locations of the items of a list or mapping."""

    key: str
    raw: Raw
    where: str
    parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    entries: tuple[RawSetting, ...] = ()
    problems: tuple[Problem, ...] = ()

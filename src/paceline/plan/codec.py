"""How a plan becomes JSON and comes back, and the hash that names it.

Generic over frozen dataclasses, enums, tuples and optionals, so that a new
field needs no code here. Unknown or missing keys are refused: a plan written
by another version must not be half understood.
"""

import dataclasses
import hashlib
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from paceline.errors import DamagedRecordError, NoSuchRunError
from paceline.plan.plan import PLAN_SCHEMA, Plan

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def to_json(value: object) -> Json:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise AssertionError(f"a plan cannot hold a {type(value).__name__}")


def from_json(kind: object, value: Json) -> typing.Any:  # Any: the type is only known at run time
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _from_union(args, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _from_object(kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is tuple and isinstance(value, list):
        return tuple(from_json(args[0], v) for v in value)
    if origin is dict and isinstance(value, dict):
        return {k: from_json(args[1], v) for k, v in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise ValueError(f"{value!r} is not a {kind}")


def _from_union(kinds: tuple[object, ...], value: Json) -> typing.Any:  # Any: as above
    for kind in kinds:
        if kind is type(value):
            return value
    for kind in kinds:
        try:
            return from_json(kind, value)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{value!r} fits none of {kinds}")


def _from_object(kind: type, value: Json) -> typing.Any:  # Any: as above
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    if names != set(value):
        odd = sorted(names.symmetric_difference(value))
        raise ValueError(f"keys differ from {kind.__name__}: {', '.join(odd)}")
    return kind(**{name: from_json(hints[name], value[name]) for name in names})


def dumps(plan: Plan) -> str:
    return json.dumps(to_json(plan), indent=2, sort_keys=True) + "\n"


def loads(text: str, *, where: str = "plan.json") -> Plan:
    try:
        plan = decode(Plan, text, schema=PLAN_SCHEMA)
    except ValueError as error:
        raise DamagedRecordError(
            f"{where} is not a plan this version can read: {error}",
            "make the run again with this version of paceline, or install the one that wrote it",
        ) from error
    assert isinstance(plan, Plan), "decode(Plan, …) builds a Plan"
    return plan


def decode(kind: type, text: str, *, schema: str) -> object:
    """The object that this JSON is; ValueError if it was not written under this schema."""
    raw = json.loads(text)
    if isinstance(raw, dict) and raw.get("schema") != schema:
        raise ValueError(f"its schema is {raw.get('schema')!r}, this version reads {schema!r}")
    return from_json(kind, raw)


def read(path: Path) -> Plan:
    try:
        text = path.read_text()
    except OSError as error:
        raise NoSuchRunError(
            f"cannot read {path}: {error.strerror}",
            "name the folder of a run, such as runs/xor-ssgd",
        ) from error
    return loads(text, where=str(path))


def plan_hash(plan: Plan) -> str:
    canonical = json.dumps(to_json(plan), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]

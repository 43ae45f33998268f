"""A plan as JSON and back, and the hash that names it.

A plan file carries the hash of its own values under `hash`: a file in which one bit flipped
is refused, although it would still be a plan. A copy in the same folder covers that case.

Generic over frozen dataclasses, enums, tuples and optionals, so that a new
field needs no code here. Unknown or missing keys are refused: a plan written
by another version must not be read partially.
"""

import dataclasses
import hashlib
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from paceline.core.errors import DamagedRecordError, NoSuchRunError
from paceline.plan.plan import PLAN_SCHEMA, Plan, StrategyOptions

# Fields that files of earlier versions do not have; their defaults are what those versions did.
_ADDED_LATER: dict[type, frozenset[str]] = {StrategyOptions: frozenset({"sync_batchnorm"})}

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
    raise AssertionError(f"a plan cannot hold a value of type {type(value).__name__}")


def from_json(kind: object, value: Json) -> typing.Any:  # Any: the type is only known at run time
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
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
    fields = dataclasses.fields(kind)
    required = {f.name for f in fields if f.name not in _ADDED_LATER.get(kind, ())}
    odd = sorted((required - set(value)) | (set(value) - {f.name for f in fields}))
    if odd:
        raise ValueError(f"keys differ from {kind.__name__}: {', '.join(odd)}")
    return kind(**{name: from_json(hints[name], part) for name, part in value.items()})


COPY = "plan.copy.json"  # next to plan.json
_HASH = "hash"
_REMAKE = "train again with this version of paceline, or install the version that wrote it"


def dumps(plan: Plan) -> str:
    values = to_json(plan)
    assert isinstance(values, dict), "a dataclass becomes an object"
    return json.dumps({**values, _HASH: _hash(values)}, indent=2, sort_keys=True) + "\n"


def loads(text: str | bytes, *, where: str = "plan.json", hint: str = _REMAKE) -> Plan:
    try:
        raw = json.loads(text)
        recorded = raw.pop(_HASH, None) if isinstance(raw, dict) else None
        plan = _decoded(Plan, raw, schema=PLAN_SCHEMA)
        if recorded is not None and recorded != _hash(raw):
            raise ValueError(f"its values have the hash {_hash(raw)}, but it names {recorded}")
    except (ValueError, TypeError, AssertionError, RecursionError) as error:
        raise DamagedRecordError(f"{where} is not a plan this version can read: {error}", hint) from error
    assert isinstance(plan, Plan), "_decoded(Plan, …) builds a Plan"
    return plan


def decode(kind: type, text: str, *, schema: str) -> object:
    """The object that this JSON is; ValueError if it was not written under this schema."""
    return _decoded(kind, json.loads(text), schema=schema)


def _decoded(kind: type, raw: Json, *, schema: str) -> object:
    if isinstance(raw, dict) and raw.get("schema") != schema:
        raise ValueError(f"its schema is {raw.get('schema')!r}, this version reads {schema!r}")
    return from_json(kind, raw)


def read(path: Path) -> Plan:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise NoSuchRunError(
            f"cannot read {path}: {error.strerror}",
            "name the folder of a run, such as runs/xor-ssgd",
        ) from error
    return loads(text, where=str(path), hint=_way_back(path))


def _way_back(path: Path) -> str:
    copy = path.with_name(COPY)
    try:
        loads(copy.read_bytes())
    except (OSError, DamagedRecordError):
        return _REMAKE
    return f"restore its copy:  cp {copy} {path}"


def recorded_hash(path: Path) -> str:
    """Hash in a plan file, which identifies the plan in an event log."""
    raw = json.loads(path.read_bytes())
    raw.pop(_HASH, None)
    return _hash(raw)


def plan_hash(plan: Plan) -> str:
    return _hash(to_json(plan))


def _hash(values: Json) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]

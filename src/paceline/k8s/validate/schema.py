"""Closed schemas of objects, and the walk that checks an object against one.

A field that the schema does not name is a problem if it is almost the name of one that it has (the
nearest name is the hint), and advice otherwise: a newer version of the kind may have it. Each finding
carries the path of its field, such as `spec.workerGroupSpecs[0].replicas`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from re import Pattern
from typing import TypeAlias

from paceline.core.humanize import did_you_mean
from paceline.k8s.objects import read_quantity

Path: TypeAlias = tuple[str | int, ...]


_MISSPELT = 0.75  # similarity from which an unknown field is taken for a misspelt one


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    what: str
    hint: str
    is_advice: bool = False  # a cluster takes it as it is


def advice(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same findings, about what a cluster accepts."""
    for finding in findings:
        yield replace(finding, is_advice=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class String:
    choices: tuple[str, ...] = ()
    pattern: Pattern[str] | None = None
    longest: int | None = None
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    least: int = 0
    most: int = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Boolean:
    pass


@dataclass(frozen=True, slots=True)
class Quantity:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortOrName:
    pass


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Rarely used parts, which are not checked."""


@dataclass(frozen=True, slots=True)
class ListOf:
    item: "Schema"
    least: int = 0


@dataclass(frozen=True, slots=True)
class MapOf:
    value: "Schema"
    key: Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ObjectOf:
    of: Mapping[str, "Schema"] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()  # one of these at least


Schema: TypeAlias = (
    String | Integer | Number | Boolean | Quantity | PortOrName | AnyValue | ListOf | MapOf | ObjectOf
)


def check(schema: Schema, value: object, path: Path = ()) -> Iterator[Finding]:
    match schema:
        case ObjectOf():
            yield from _check_fields(schema, value, path)
        case MapOf():
            yield from _check_map(schema, value, path)
        case ListOf():
            yield from _check_list(schema, value, path)
        case String():
            yield from _check_text(schema, value, path)
        case AnyValue():
            return
        case _:
            if expected := _expected_type(schema, value):
                yield Finding(
                    path, f"it is {show_value(value)}, but it must be {expected}", f"write {expected}"
                )


def _check_fields(schema: ObjectOf, value: object, path: Path) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield _mistyped(value, path, "a mapping of fields")
        return
    for name in schema.required:
        if value.get(name) is None:
            yield Finding(path, f"{name} is missing", f"add {name}")
    if schema.any_of and all(value.get(name) is None for name in schema.any_of):
        yield Finding(path, f"{schema.any_of[0]} is missing", f"add {schema.any_of[0]}")
    for name, inner in value.items():
        if name in schema.of and inner is None:
            continue  # `metadata:` without a value sets nothing
        if name in schema.of:
            yield from check(schema.of[name], inner, (*path, name))
        else:
            yield _unknown_field(str(name), schema, (*path, name))


def _unknown_field(name: str, schema: ObjectOf, path: Path) -> Finding:
    """A misspelt field is a problem; any other may belong to a newer version of the kind."""
    if get_close_matches(name, schema.of, cutoff=_MISSPELT):
        hint = did_you_mean(name, schema.of, otherwise="a cluster ignores or rejects unknown fields")
        return Finding(path, f"there is no field {name}", hint)
    hint = "check that the cluster's version of this kind has the field; older versions reject or drop it"
    return Finding(path, f"the field {name} is not in the bundled schema", hint, is_advice=True)


def _check_map(schema: MapOf, value: object, path: Path) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield _mistyped(value, path, "a mapping")
        return
    for name, inner in value.items():
        if schema.key is not None and not schema.key.fullmatch(str(name)):
            yield Finding((*path, name), f"{name!r} is not a valid name", "use letters, digits, - and .")
        yield from check(schema.value, inner, (*path, name))


def _check_list(schema: ListOf, value: object, path: Path) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield _mistyped(value, path, "a list")
        return
    if len(value) < schema.least:
        yield Finding(path, "the list is empty", f"give it at least {schema.least}")
    for number, item in enumerate(value):
        yield from check(schema.item, item, (*path, number))


def _check_text(schema: String, value: object, path: Path) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield Finding(path, f"it is {show_value(value)}, but it must be text", f'put it in quotes: "{value}"')
    elif schema.choices and value not in schema.choices:
        hint = did_you_mean(value, schema.choices, otherwise=f"write one of {', '.join(schema.choices)}")
        yield Finding(
            path, f"it is {show_value(value)}, but it must be one of {', '.join(schema.choices)}", hint
        )
    elif not value and not schema.may_be_empty:
        yield Finding(path, "it is empty", "write a value, or leave the field out")
    elif schema.longest is not None and len(value) > schema.longest:
        message = f"it has {len(value)} characters, but the maximum is {schema.longest}"
        yield Finding(path, message, "choose a shorter one")
    elif schema.pattern is not None and value and not schema.pattern.fullmatch(value):
        yield Finding(
            path,
            f"it is {show_value(value)}, which is not allowed here",
            f"it must match {schema.pattern.pattern}",
        )


def _expected_type(schema: Integer | Number | Boolean | Quantity | PortOrName, value: object) -> str:
    """Describes the expected value; empty if it is one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match schema:
        case Boolean():
            return "" if isinstance(value, bool) else "true or false"
        case Quantity():
            return "" if read_quantity(value) is not None else "an amount such as 2, 500m or 4Gi"
        case PortOrName():
            is_name = isinstance(value, str) and value != ""
            is_port = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536
            return "" if is_name or is_port else "a port, or the name of one"
        case Number(least=minimum):
            return "" if is_number and float(value) >= minimum else f"a number, {minimum:g} or more"  # type: ignore[arg-type]  # is_number says so
        case Integer(least=minimum, most=most):
            fits = is_number and isinstance(value, int) and minimum <= value <= most
            return "" if fits else f"a whole number from {minimum} to {most}"


def _mistyped(value: object, path: Path, expected: str) -> Finding:
    return Finding(path, f"it is {show_value(value)}, but it must be {expected}", f"write {expected}")


def show_value(value: object) -> str:
    """Short, and never what is inside a mapping: it may hold a secret."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""The flags of `job render` and `job submit`, made from the fields of `JobOptions`."""

from collections.abc import Callable, Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

import click

from paceline.cli.options import config_options_without
from paceline.k8s.spec.job import JobOptions, NodeRange, Target
from paceline.k8s.spec.options import Flag, flag_name

Body: TypeAlias = Callable[..., object]
Option: TypeAlias = Field[Any]  # Any: options have many types
Options = TypeVar("Options")


class _Nodes(click.ParamType[int | NodeRange]):
    """A number, or MIN:MAX."""

    name = "nodes"

    def __init__(self, between: tuple[int, int | None]) -> None:
        self._number = click.IntRange(*between)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | NodeRange:
        numbers = [self._count(text, param, ctx) for text in str(value).split(":")]
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) > 2 or numbers[0] > numbers[1]:
            self.fail(f"{value!r} is not a number or MIN:MAX.", param, ctx)
        return NodeRange(*numbers)

    def _count(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = self._number.convert(text, param, ctx)  # type: ignore[arg-type]  # click reads a text
        return int(number)


class _NumberOrNone(click.ParamType[int | None]):
    """A number, or the word none."""

    name = "number or none"

    def __init__(self, between: tuple[int, int | None]) -> None:
        self._number = click.IntRange(*between)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "none":
            return None
        return int(self._number.convert(value, param, ctx))  # type: ignore[arg-type]  # click reads a text


def render_options(*, required: bool) -> Callable[[Body], Body]:
    """`required`: there is no other way to say what shall run. `body` gets `target`, `flags` and the rest,
    which `read_job_options` reads."""
    target = click.option(
        "--target", type=click.Choice(list(map(str, Target))), required=required, help="Kind of object."
    )

    def with_options(body: Body) -> Body:
        body = config_options_without("launcher", "address")(body)
        for name, option, of in reversed(list(_flags(JobOptions))):
            is_required = required and name == "image"
            body = _click_option(name, option, of, is_required=is_required)(body)
        return target(body)

    return with_options


def read_job_options(said: dict[str, Any]) -> JobOptions:  # Any: from click
    return _read(JobOptions, said)


def _read(kind: type[Options], said: dict[str, Any], prefix: str = "") -> Options:
    values: dict[str, Any] = {}  # Any: as many types as options have
    for option in _fields(kind):
        inner = _inner(option)
        if inner is not None:
            values[option.name] = _read(inner, said, _prefix(option))
        elif "flag" in option.metadata:
            value = said[prefix + flag_name(option)]
            if value is not None or not option.metadata["flag"].may_be_unsaid:
                values[option.name] = value
        elif option.name in said:
            values[option.name] = said[option.name]
    return kind(**values)


def _flags(kind: type, prefix: str = "", of: str = "") -> Iterator[tuple[str, Option, str]]:
    """The name of each flag, in the order of --help, its field, and the pod that it is about."""
    for option in _fields(kind):
        inner = _inner(option)
        if inner is not None:
            yield from _flags(inner, _prefix(option), option.metadata.get("of", ""))
        elif "flag" in option.metadata:
            yield prefix + flag_name(option), option, of


def _fields(kind: type) -> tuple[Option, ...]:
    assert is_dataclass(kind), f"{kind} holds no options"
    return fields(kind)


def _inner(option: Option) -> type | None:
    """The class of options that the field holds, if it holds several."""
    made_by = option.default_factory
    return made_by if isinstance(made_by, type) else None


def _prefix(option: Option) -> str:
    return f"{option.name}_" if "of" in option.metadata else ""


def _click_option(name: str, option: Option, of: str, *, is_required: bool) -> Callable[[Body], Body]:
    flag: Flag = option.metadata["flag"]
    known: dict[str, Any] = {"help": flag.help.format(of)}  # Any: each argument of click's has its own type
    if flag.metavar is not None:
        known["metavar"] = flag.metavar
    if flag.choices:
        known["type"] = click.Choice(list(map(str, flag.choices)))
    elif flag.is_range and flag.between is not None:
        known["type"] = _Nodes(flag.between)
    elif flag.may_be_none and flag.between is not None:
        known["type"] = _NumberOrNone(flag.between)
    elif flag.between is not None:
        known["type"] = click.IntRange(*flag.between)
    if isinstance(option.default, bool):
        known["is_flag"] = True
    elif option.default == ():
        known["multiple"] = True
    elif isinstance(option.default, int | str) and not flag.may_be_unsaid:
        known["default"] = option.default if isinstance(option.default, int) else str(option.default)
    names = [f"--{text.replace('_', '-')}" for text in (name, *flag.also)]
    return click.option(*names, name, required=is_required, show_default=flag.shows_default or None, **known)

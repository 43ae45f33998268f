"""Reference page of the Python API, and the type stub of the package.

Both are made from the code: signatures and docstrings from the functions, the
settings from the table of keys.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import paceline
from docs.tables import code, table
from paceline.config.key import Key, Kind
from paceline.config.keys import KEYS

STUB = Path(paceline.__file__).with_name("__init__.pyi")
# Those that have an argument of their own.
_ARGUMENTS = ("task", "mode", "num_workers")
_RULES = "str | Sequence[str]"  # one or several, as on the command line
_TYPES = {
    Kind.TEXT: "str",
    Kind.INTEGER: "int",
    Kind.NUMBER: "float",
    Kind.YES_NO: "bool",
    Kind.DURATION: "str | float",
    Kind.BATCH_SIZE: "int | Sequence[int]",
    Kind.STALENESS: 'int | Literal["inf"]',
    Kind.STEPS_OR_EPOCH: 'int | Literal["epoch"]',
    Kind.STRAGGLERS: _RULES,
    Kind.BYZANTINE: _RULES,
    Kind.EXPORTS: _RULES,
    Kind.OPTIONS: "Mapping[str, bool | int | float | str]",
}

_STUB = '''"""The public names, with their types. Written by `make docs` from the code. Do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack

{imports}

__version__: str
__all__ = {all}

class _Settings(TypedDict, total=False):
{settings}

{functions}
'''


def python_page() -> list[str]:
    lines = [
        "# Python",
        "",
        "`import paceline` is fast: each name is loaded on first use, and only `join` imports torch.",
        "How to use them: [the guide](../guides/python-api.md).",
    ]
    for name in _names():
        thing = getattr(paceline, name)
        if inspect.isfunction(thing):
            lines += _function(name, thing)
        elif isinstance(thing, type) and dataclasses.is_dataclass(thing):
            lines += _dataclass(name, thing)
        elif isinstance(thing, type) and not issubclass(thing, BaseException):
            lines += _class(name, thing)
    errors = [n for n in _names() if inspect.isclass(getattr(paceline, n)) and n.endswith("Error")]
    rows = [(code(f"paceline.{n}"), inspect.cleandoc(getattr(paceline, n).__doc__ or "")) for n in errors]
    return [*lines, "", "## Errors", "", *table(("error", "meaning"), rows)]


def stub() -> str:
    """The text of src/paceline/__init__.pyi."""
    functions = [n for n in _names() if inspect.isfunction(getattr(paceline, n))]
    others = [n for n in _names() if n not in functions]
    homes = sorted({getattr(paceline, n).__module__ for n in others})
    imports = [
        f"from {home} import "
        + ", ".join(f"{n} as {n}" for n in sorted(others) if getattr(paceline, n).__module__ == home)
        for home in homes
    ]
    return _STUB.format(
        imports="\n".join(imports),
        all="[" + ", ".join(f'"{n}"' for n in paceline.__all__) + "]",
        settings="\n".join(f"    {k.name}: {_type(k)}" for k in KEYS.values() if k.name not in _ARGUMENTS),
        functions="\n".join(_stub_of(n) for n in functions),
    )


def _names() -> list[str]:
    return [name for name in paceline.__all__ if not name.startswith("_")]


def _type(key: Key) -> str:
    if key.choices:
        return f"Literal[{', '.join(repr(choice) for choice in key.choices)}]".replace("'", '"')
    return _TYPES[key.kind]


def _stub_of(name: str) -> str:
    text = _signature(getattr(paceline, name)).replace("**settings: object", "**settings: Unpack[_Settings]")
    return f"def {name}{text}: ..."


def _signature(function: Callable[..., object]) -> str:
    """With plain names for what modules define."""
    return re.sub(
        r"\b(?:pathlib|collections\.abc|paceline[\w.]*)\.(?=[A-Z])", "", str(inspect.signature(function))
    )


def _function(name: str, function: Callable[..., object]) -> list[str]:
    about = inspect.cleandoc(function.__doc__ or "")
    about = re.sub(r"\bdocs/(reference|guides)/([\w-]+)\.md", lambda m: _link(m[1], m[2]), about)
    call = f"paceline.{name}{_signature(function)}"
    return ["", f"## paceline.{name}", "", "```python", call, "```", "", about]


def _link(room: str, page: str) -> str:
    return f"[{page}]({page}.md)" if room == "reference" else f"[{page}](../{room}/{page}.md)"


def _dataclass(name: str, kind: type) -> list[str]:
    lines = ["", f"## paceline.{name}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
    lines += table(("field", "type", "meaning"), _fields(kind))
    methods = [
        (code(f"{m}()"), inspect.cleandoc(f.__doc__ or ""))
        for m, f in vars(kind).items()
        if inspect.isfunction(f) and not m.startswith("_") and f.__doc__
    ]
    return [*lines, "", *table(("method", "returns"), methods)] if methods else lines


def _class(name: str, kind: type) -> list[str]:
    """A class whose objects Paceline makes: its methods and properties."""
    lines = ["", f"## paceline.{name}", "", inspect.cleandoc(kind.__doc__ or "")]
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        is_property = isinstance(value, property)
        call = f"run.{member}" if is_property else f"run.{member}{_method_signature(value)}"
        lines += ["", "```python", call, "```", "", inspect.cleandoc(value.__doc__ or "")]
    return lines


def _method_signature(method: Callable[..., object]) -> str:
    return re.sub(r"\(self(, )?", "(", re.sub(r"\btorch(\.\w+)*\.(?=[A-Z])", "", _signature(method)))


def _fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """A field's meaning is the comment behind it."""
    assert dataclasses.is_dataclass(kind), f"{kind.__name__} has fields"
    names = {field.name for field in dataclasses.fields(kind)}
    for line in map(str.strip, inspect.getsource(kind).splitlines()):
        field = re.fullmatch(r"(\w+): ([^=#]+?)(?: = [^#]+?)?(?:  # (.*))?", line)
        if field is not None and field[1] in names:
            names.remove(field[1])
            yield code(field[1]), code(field[2].strip('"')), field[3] or ""

"""A training function as the text of a script: functions of notebooks travel as source, never pickled.

Free names of the function become lines of the script: modules and whatever a module defines are imported,
plain constants are written out, functions and classes of the notebook are copied with their own free names.
Anything else is an error that names the variable: its value exists only in this process.
"""

import builtins
import inspect
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType

from paceline.core.errors import OwnClassError, Problem

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def script_of(train: Callable[..., object], arguments: Mapping[str, object]) -> str:
    """A script that calls `train(paceline.join(), **arguments)`.

    Raises ConfigError for a function whose source, or a variable that it uses, cannot be written down.
    """
    if not isinstance(train, FunctionType) or train.__name__ == "<lambda>":
        raise _refused(f"{train!r} is not a function made by def", "write  def train(run): …")
    if not any(p.default is p.empty for p in inspect.signature(train).parameters.values()):
        raise _refused(
            f"{train.__name__} has no argument for the run", f"write  def {train.__name__}(run): …"
        )
    for name, value in arguments.items():
        if not _is_plain(value):
            message = (
                f"the argument {name} of {train.__name__} is {_kind(value)}, which cannot be written down"
            )
            raise _refused(message, "pass a number, a string, or a list or dict of these")
    written = _Script()
    written.add_function(train)
    call = f"{train.__name__}(paceline.join(), **{dict(arguments)!r})"
    body = [*written.imports, *written.constants, *written.definitions]
    heading = f"# Written by paceline.run from the function {train.__name__}."
    return "\n".join([heading, "import paceline", *body, "", call, ""])


class _Script:
    """Lines of the script, each name once. Imports come first, so constants and functions find them."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.definitions: list[str] = []
        self._known: set[str] = set()

    def add_function(self, function: FunctionType) -> None:
        self._known.add(function.__name__)
        closure = inspect.getclosurevars(function)
        self._add_definition(function, {**function.__globals__, **closure.nonlocals})

    def _add_definition(self, item: "FunctionType | type", scope: Mapping[str, object]) -> None:
        try:
            source = textwrap.dedent(inspect.getsource(item))
        except (OSError, TypeError) as error:
            message = f"the source of {item.__name__} is not known"
            raise _refused(message, "define it in a file or in a cell of a notebook") from error
        for name in _names_in(source):
            if name in scope and name not in self._known and not hasattr(builtins, name):
                self._add(item.__name__, name, scope[name])
        self.definitions.append(f"\n{source}")

    def _add(self, user: str, name: str, value: object) -> None:
        self._known.add(name)
        match value:
            case ModuleType():
                self.imports.append(f"import {value.__name__} as {name}")
            case _ if _is_plain(value):
                self.constants.append(f"{name} = {value!r}")
            case _ if (place := _importable(value)) is not None:
                self.imports.append(f"from {place[0]} import {place[1]} as {name}")
            case FunctionType() if value.__name__ == name:
                self.add_function(value)
            case type() if value.__name__ == name:
                self._add_definition(value, vars(sys.modules[value.__module__]))
            case _:
                message = f"{user} uses {name}, {_kind(value)}"
                raise _refused(message, f"load it inside of {user}, or pass a path")


def _names_in(source: str) -> list[str]:
    """Names that the source takes from outside of it."""
    names: set[str] = set()
    todo = [symtable.symtable(source, "function", "exec")]
    while todo:
        table = todo.pop()
        is_outermost = table.get_type() == "module"
        for symbol in table.get_symbols():
            is_outside = not symbol.is_assigned() if is_outermost else symbol.is_global()
            if symbol.is_referenced() and is_outside:
                names.add(symbol.get_name())
        todo += table.get_children()
    return sorted(names)


def _importable(value: object) -> tuple[str, str] | None:
    """(module, name) under which workers can import it; None: it belongs to this notebook or script."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "." in name:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _is_plain(value: object) -> bool:
    match value:
        case list() | tuple() | set() | frozenset():
            return all(map(_is_plain, value))
        case dict():
            return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
        case _:
            return type(value) in _PLAIN


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _refused(message: str, hint: str) -> OwnClassError:
    return OwnClassError([Problem(message, hint)])

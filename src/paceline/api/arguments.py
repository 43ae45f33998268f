"""Keyword arguments of the Python API, parsed and checked like command-line flags."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.config.values import Raw, RawSetting
from paceline.core.errors import OwnClassError, PacelineError, Problem
from paceline.training.session import Common, Session


def parse_kwargs(call: str, settings: Mapping[str, object]) -> list[RawSetting]:
    """The arguments of `call`, such as `train`, as settings; None means not given."""
    return [
        RawSetting(key=key, raw=_raw(key, value, where), where=where)
        for key, value in settings.items()
        if value is not None and (where := f"{call}({key}=…)")
    ]


def import_name(value: object, noun: str) -> str:
    """The name by which worker processes import a class; a name stays as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, type):
        hint = (
            f"give a built-in name, a class, or 'module:Class'; see docs/guides/your-own-{_GUIDES[noun]}.md"
        )
        raise OwnClassError([Problem(f"{noun} is {value!r}, which is not a class", hint)])
    module = value.__module__
    name = value.__qualname__
    if module == "__main__":
        problem = (
            f"{noun} {name} is defined in this notebook or script, where worker processes cannot import it"
        )
        raise OwnClassError([Problem(problem, _own_module_hint(name, noun))])
    if "." in name:
        problem = (
            f"{noun} {name} is defined inside a function or class, where worker processes cannot import it"
        )
        raise OwnClassError([Problem(problem, _own_module_hint(name.rpartition(".")[2], noun))])
    return f"{module}:{_assigned_name(value, module)}"


def _assigned_name(kind: type, module: str) -> str:
    """Its own name, or the one that the module gave to a class that a function made (`from_torch`)."""
    named: dict[str, object] = vars(sys.modules[module])
    if named.get(kind.__name__) is kind:
        return kind.__name__
    return next((name for name, value in named.items() if value is kind), kind.__name__)


@contextmanager
def hints_in_traceback() -> Iterator[None]:
    """Errors raised inside carry every problem, with its place and hint, in their traceback."""
    try:
        yield
    except PacelineError as error:
        for problem in error.problems:
            place = "" if problem.where is None else f"{problem.where}: "
            error.add_note(f"error[{problem.code}]: {place}{problem.what}\n  fix: {problem.hint}")
        raise


_GUIDES = {"task": "task", "mode": "strategy"}


def _own_module_hint(name: str, noun: str) -> str:
    file = f"my_{noun}"
    cell = f"in a notebook begin its cell with  %%writefile {file}.py"
    return f"move it to its own file, {file}.py ({cell}), and write  from {file} import {name}"


def _raw(key: str, value: object, where: str) -> Raw:
    match value:
        case bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case Mapping():
            return {str(name): _raw(key, inner, where) for name, inner in value.items()}
        case Sequence():
            return [_raw(key, inner, where) for inner in value]
        case _ if hasattr(value, "item"):  # a numpy scalar, or a tensor with one element
            return _raw(key, value.item(), where)
        case _:
            message = (
                f"{key} is {value!r}, of type {type(value).__name__}, which is not a valid value of a setting"
            )
            hint = "pass a number, a string, a bool, or a list or dict of these"
            raise OwnClassError([Problem(message, hint, where)])


def session_for(progress: bool, config: str | Path | None) -> Session:
    """Environment variables are ignored, so that a call means the same everywhere."""
    file = None if config is None else Path(config)
    return Session(common=Common(quiet=not progress, config=file), folder=Path())

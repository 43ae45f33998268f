"""JSON patches (RFC 6902): operations on a plain value, each at a JSON pointer (RFC 6901).

Operations are applied in order, in place. The first that does not apply ends the patch with its number.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

_OPERATIONS = {"add": ("value",), "remove": (), "replace": ("value",), "move": ("from",), "copy": ("from",)}
_OPERATIONS["test"] = ("value",)
_EXAMPLE = "write {op: add, path: /spec/suspend, value: true}, for example"


class PatchFailure(Exception):  # noqa: N818 - becomes a problem with the place in its file
    """A change that does not apply, and its path in the patch."""

    def __init__(self, what: str, hint: str, path: tuple[str | int, ...]) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.path = path


def apply_operations(root: dict[str, Any], operations: Sequence[object]) -> None:
    for number, operation in enumerate(operations):
        if not isinstance(operation, Mapping):
            raise PatchFailure("an operation must be a mapping", _EXAMPLE, (number,))
        name = str(operation.get("op"))
        if name not in _OPERATIONS:
            raise PatchFailure(f"op is {name!r}", f"use one of {', '.join(_OPERATIONS)}", (number,))
        missing = [key for key in ("path", *_OPERATIONS[name]) if key not in operation]
        if missing:
            raise PatchFailure(f"the operation {name} has no {missing[0]}", _EXAMPLE, (number,))
        try:
            _apply(root, name, operation)
        except _MissingError as error:
            hint = "compare the pointer with the output of `paceline job render` without the patch"
            raise PatchFailure(f"{name} does not apply: {error}", hint, (number,)) from None


class _MissingError(Exception):
    """Why a pointer does not lead anywhere."""


def _apply(root: dict[str, Any], name: str, operation: Mapping[str, Any]) -> None:
    path = _steps(operation["path"])
    match name:
        case "add":
            _add(root, path, copy.deepcopy(operation["value"]))
        case "remove":
            _remove(root, path)
        case "replace":
            _remove(root, path)
            _add(root, path, copy.deepcopy(operation["value"]))
        case "move":
            source = _steps(operation["from"])
            if path[: len(source)] == source and path != source:
                raise _MissingError(f"{operation['from']} cannot be moved into itself")
            _add(root, path, _remove(root, source))
        case "copy":
            _add(root, path, copy.deepcopy(_get(root, _steps(operation["from"]))))
        case _:
            if _get(root, path) != operation["value"]:
                raise _MissingError(f"{operation['path']} has another value")


def _steps(pointer: object) -> list[str]:
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise _MissingError(f"{pointer!r} is no pointer to a field, such as /spec/suspend")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _get(root: Any, steps: Sequence[str]) -> Any:
    value = root
    for number, step in enumerate(steps):
        where = "/" + "/".join(steps[: number + 1])
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list):
            value = value[_index(step, len(value) - 1, where)]
        else:
            raise _MissingError(f"there is nothing at {where}")
    return value


def _add(root: Any, steps: Sequence[str], value: Any) -> None:
    parent = _get(root, steps[:-1])
    where = "/" + "/".join(steps)
    if isinstance(parent, dict):
        parent[steps[-1]] = value
    elif isinstance(parent, list):
        place = len(parent) if steps[-1] == "-" else _index(steps[-1], len(parent), where)
        parent.insert(place, value)
    else:
        raise _MissingError(f"the parent of {where} holds no fields")


def _remove(root: Any, steps: Sequence[str]) -> Any:
    value = _get(root, steps)
    parent = _get(root, steps[:-1])
    del parent[int(steps[-1]) if isinstance(parent, list) else steps[-1]]
    return value


def _index(step: str, last: int, where: str) -> int:
    if not step.isdecimal() or (len(step) > 1 and step[0] == "0") or int(step) > last:
        raise _MissingError(f"there is no item at {where}")
    return int(step)

"""Error messages that the product can raise, read from the source without running it.

Every `raise SomeError("what", "hint")` whose two parts are written out there is
found; what is only known at run time shows as an ellipsis.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import paceline

PARTS = 2  # what happened, and what to do


@dataclass(frozen=True, slots=True, order=True)
class Message:
    code: str
    where: str
    what: str
    hint: str


def messages(codes: Mapping[str, str]) -> list[Message]:
    """All messages of these errors (module:Class to its code), sorted."""
    root = Path(paceline.__file__).parent
    found = set[Message]()
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        here = {name: codes[kind] for name, kind in _known(tree, module) if kind in codes}
        found.update(_in_tree(tree, here, path.relative_to(root).as_posix()))
    return sorted(found)


def _known(tree: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    """What a name means in this file: two modules may have a class of the same name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{module}:{node.name}"
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((alias.asname or alias.name, f"{node.module}:{alias.name}") for alias in node.names)


def _in_tree(tree: ast.AST, codes: Mapping[str, str], where: str) -> Iterator[Message]:
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in codes):
            continue
        parts = [text for argument in call.args if (text := _text(argument)) is not None]
        if len(parts) == PARTS:
            yield Message(codes[call.func.id], where, *parts)


def _text(node: ast.expr) -> str | None:
    """The text of a literal or an f-string; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        ).replace("……", "…")
    return None

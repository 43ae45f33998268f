"""The Python files that the container runs, and the modules that they import.

The entry is the file that ENTRYPOINT or CMD names, by itself or through a shell script. Modules are followed
from there through imports at the top of a file, as far as the image holds their files.
"""

import ast
import posixpath
from collections.abc import Iterator

from paceline.images.lint.rules.container.script import Start
from paceline.images.lint.view import StageView

_MAX_MODULES = 50


def reached_modules(view: StageView, start: Start) -> Iterator[tuple[str, ast.Module]]:
    """Path in the context and syntax tree of the entry and of every module of the context that it imports."""
    entry = entry_file(start)
    waiting = [entry] if entry is not None else []
    seen: set[str] = set()
    roots = _roots(view, start)
    while waiting and len(seen) < _MAX_MODULES:
        _, source = waiting.pop()
        tree = _parsed(view.project.code_text(source))
        if source in seen or tree is None:
            continue
        seen.add(source)
        yield source, tree
        for name, _ in _top_imports(tree):
            files = [
                f"{posixpath.join(root, name.replace('.', '/'))}{end}"
                for root in roots
                for end in (".py", "/__init__.py")
            ]
            waiting += [(path, start.files.origin[path]) for path in files if path in start.files.origin]


def imports_of(view: StageView, start: Start) -> Iterator[tuple[str, str, int]]:
    """(file, module, line) of the imports that certainly run, of the entry and the modules next to it."""
    roots = _roots(view, start)
    for source, tree in reached_modules(view, start):
        for name, line in _top_imports(tree):
            first = name.split(".")[0]
            if not any(_is_local(start, root, first) for root in roots):
                yield source, first, line


def _roots(view: StageView, start: Start) -> set[str]:
    """The folders that Python searches for modules of one's own."""
    entry = entry_file(start)
    folder = posixpath.dirname(entry[0]) if entry is not None else ""
    return {folder, start.files.folder or "/"} | set(view.variables.get("PYTHONPATH", "").split(":"))


def entry_file(start: Start) -> tuple[str, str] | None:
    """The Python file that is run: its path in the image and in the context."""
    for argv in start.commands:
        if argv[0] in ("cd", "pushd"):
            return None
        for word in argv:
            path = (
                posixpath.normpath(posixpath.join(start.files.folder or "/", word))
                if word.endswith(".py")
                else ""
            )
            if path in start.files.origin:
                return path, start.files.origin[path]
        module = next((argv[n + 1] for n, w in enumerate(argv[:-1]) if w == "-m"), "")
        path = posixpath.join(start.files.folder or "/", f"{module.replace('.', '/')}.py") if module else ""
        if path in start.files.origin:
            return path, start.files.origin[path]
    return None


def _is_local(start: Start, root: str, name: str) -> bool:
    path = posixpath.join(root, name)
    return start.files.may_hold(f"{path}.py") or any(
        name.startswith(f"{path}/") for name in start.files.exact
    )


def _parsed(text: str | None) -> ast.Module | None:
    try:
        return None if text is None else ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _top_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and node.module
            and node.module != "__future__"
        ):
            yield node.module, node.lineno

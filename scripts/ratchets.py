"""Counts of what the style rules forbid; a count may fall, never rise.

    python scripts/ratchets.py            compare with scripts/ratchets.json
    python scripts/ratchets.py --update   record lower counts

`make check` runs it. A count above the recorded one fails with the places; a count below it fails too,
until `--update` records it, so that an improvement cannot be lost again.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "scripts" / "ratchets.json"
SHORT_MODULE_LINES = 60
LONG_MODULE_LINES = 500
FOLDER_MODULES = 20
GENERATED = ("_pb2.py", "_pb2.pyi")
DIALECT = re.compile(
    r"(?<![a-z])(?:whoever|nobody|everybody|somebody|anew|mend|mends|mended|mending|mender|wish|wishes|dice"
    r"|seat|seats|herald|courier|riddle)(?![a-z])",
    re.IGNORECASE,
)

# Three words of prose in a row; a command line, a path or a name has no such thing.
PROSE = re.compile(r"(?<![-/.\w])[A-Za-z']{2,},? [a-z']+,? [a-z']{2,}(?![-/=\w])")


def main(argv: list[str]) -> int:
    recorded = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    places = {name: list(find()) for name, find in RATCHETS.items()}
    counts = {name: len(found) for name, found in places.items()}
    if argv == ["--update"]:
        lowered = {name: min(count, recorded.get(name, count)) for name, count in counts.items()}
        RECORD.write_text(json.dumps(lowered, indent=2) + "\n", "utf-8")
        recorded = lowered
    failed = False
    for name, count in counts.items():
        limit = recorded.get(name, 0)
        print(f"{name:24} {count:6} (recorded {limit})")
        if count > limit:
            failed = True
            print("\n".join(f"  {place}" for place in _most_affected(places[name])))
            print(f"error: {name}: {count}, recorded are {limit}; the files above have most of them")
        elif count < limit:
            failed = True
            print(f"error: {name} fell to {count}; record it: python scripts/ratchets.py --update")
    return 1 if failed else 0


def _most_affected(places: list[str], shown: int = 8) -> list[str]:
    files = Counter(place.partition(":")[0] for place in places)
    return [f"{path}: {count}" for path, count in files.most_common(shown)]


@cache
def sources(*folders: str) -> list[tuple[str, str]]:
    """Path and text of every Python module below `folders` that people write."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        (str(path.relative_to(ROOT)), path.read_text("utf-8"))
        for path in paths
        if not path.name.endswith(GENERATED) and "node_modules" not in path.parts
    ]


def module_questions() -> Iterator[str]:
    for path, text in sources("src", "tests", "benchmarks"):
        docstring = ast.get_docstring(ast.parse(text)) or ""
        if "?" in docstring.partition("\n")[0]:
            yield path


def dialect_words(*folders: str) -> Iterator[str]:
    for path, text in sources(*folders):
        for number, line in enumerate(text.splitlines(), 1):
            for _ in DIALECT.finditer(line):
                yield f"{path}:{number}"


def dialect_words_in_docs() -> Iterator[str]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            for _ in DIALECT.finditer(line):
                yield f"{page.relative_to(ROOT)}:{number}"


def short_modules() -> Iterator[str]:
    for path, text in sources("src"):
        name = path.rpartition("/")[2]
        is_short = len(text.splitlines()) < SHORT_MODULE_LINES
        if is_short and name not in ("__init__.py", "__main__.py") and not _only_imports(text):
            yield path


def _only_imports(text: str) -> bool:
    """A module that keeps a former name: a docstring, imports and `__all__`."""
    return all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for node in ast.parse(text).body
    )


def long_modules() -> Iterator[str]:
    return (path for path, text in sources("src") if len(text.splitlines()) > LONG_MODULE_LINES)


def crowded_folders() -> Iterator[str]:
    folders = Counter(
        path.rpartition("/")[0] for path, _ in sources("src") if not path.endswith("__init__.py")
    )
    return (f"{folder}: {count} modules" for folder, count in folders.items() if count > FOLDER_MODULES)


def packed_assignments() -> Iterator[str]:
    """`a, b = x, y` of unrelated values; a swap is not one."""
    for path, text in sources("src"):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    if {ast.unparse(name) for name in names} != {ast.unparse(value) for value in values}:
                        yield f"{path}:{node.lineno}"
                case _:
                    pass


def nested_conditionals() -> Iterator[str]:
    """A conditional expression inside another."""
    for path, text in sources("src", "benchmarks"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.IfExp) and any(
                isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node
            ):
                yield f"{path}:{node.lineno}"


def pinned_sentences() -> Iterator[str]:
    """Assertions in tests that compare with words of prose; tests/wording is the place for those."""
    for path, text in sources("tests"):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Compare(left=left, comparators=[right]):
                    compared = [left, right]
                case ast.keyword(arg="match", value=value):
                    compared = [value]
                case _:
                    continue
            if any(_is_sentence(each) for each in compared):
                yield f"{path}:{node.lineno}"


def _is_sentence(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or "\n" in node.value:
        return False
    return PROSE.search(node.value) is not None


RATCHETS: dict[str, Callable[[], Iterator[str]]] = {
    "module_questions": module_questions,
    "dialect_words_src": lambda: dialect_words("src"),
    "dialect_words_tests": lambda: dialect_words("tests", "benchmarks"),
    "dialect_words_docs": dialect_words_in_docs,
    "short_modules": short_modules,
    "long_modules": long_modules,
    "crowded_folders": crowded_folders,
    "packed_assignments": packed_assignments,
    "nested_conditionals": nested_conditionals,
    "pinned_sentences": pinned_sentences,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

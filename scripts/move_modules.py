"""Move, rename and merge modules by a table, and rewrite every reference to them.

    python scripts/move_modules.py check TABLE    report collisions and new import cycles, change nothing
    python scripts/move_modules.py apply TABLE    move, merge and rewrite

A row of the table is `old.module new.module`; several rows with one new module merge the old ones in
the order of the rows, and the first gives the docstring. A row `old.module:Name NewName` renames a
name. `#` opens a comment. References are rewritten in every tracked text file: imports and the names
that they bind, dotted names in strings and configuration, and paths such as `src/paceline/kube/words.py`.
Private names that two merged modules define differently are prefixed; public ones need a row. The
result is formatted by ruff; mypy and the tests find what is left.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON_FOLDERS = ("src", "tests", "benchmarks", "docs", "infra", "examples", "scripts")
TEXT_SUFFIXES = {
    ".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".sh", ".ts", ".tsx", ".js",
    ".proto", ".tf", ".html", ".css", "",
}  # fmt: skip
UNTOUCHED = {"CHANGELOG.md", ".git-blame-ignore-revs", "scripts/move_modules.py"}


def main(argv: list[str]) -> int:
    match argv:
        case ["check", table]:
            problems = check(read_table(Path(table)))
            print("\n".join(problems) or "no collision, no new cycle")
            return 1 if problems else 0
        case ["apply", table]:
            renames = read_table(Path(table))
            problems = check(renames)
            if any("import cycle" not in line for line in problems):
                print("\n".join(problems))
                return 1
            apply_table(renames)
            return 0
        case _:
            print(__doc__)
            return 2


def read_table(path: Path) -> Renames:
    renames = Renames(modules={})
    for line in path.read_text("utf-8").splitlines():
        words = line.split("#")[0].split()
        if len(words) == 2 and ":" in words[0]:
            module, _, name = words[0].partition(":")
            renames.symbols[module, name] = words[1]
            renames.modules.setdefault(module, module)
        elif len(words) == 2:
            renames.modules[words[0]] = words[1]
        elif words:
            sys.exit(f"error: {path}: not `old new`: {line}")
    return renames


# Modules and files


def path_of(module: str) -> Path:
    base = ROOT / "src" if module.split(".")[0] == "paceline" else ROOT
    stem = base.joinpath(*module.split("."))
    return stem / "__init__.py" if (stem / "__init__.py").exists() else stem.with_suffix(".py")


def new_path_of(module: str) -> Path:
    base = ROOT / "src" if module.split(".")[0] == "paceline" else ROOT
    return base.joinpath(*module.split(".")).with_suffix(".py")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [
        ROOT / name
        for name in listed.stdout.split("\0")
        if name and name not in UNTOUCHED and "_pb2" not in name and not name.endswith(".proto")
    ]


def all_modules() -> set[str]:
    modules = set()
    for path in tracked():
        if path.suffix == ".py":
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            parts = parts[1:] if parts[0] == "src" else parts
            modules.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return modules


# References


@dataclass
class Renames:
    """Where a module went, and which of its names changed on the way."""

    modules: dict[str, str]
    symbols: dict[tuple[str, str], str] = field(default_factory=dict)  # (old module, old name): new name

    def name(self, module: str, name: str) -> str:
        return self.symbols.get((module, name), name)


@dataclass(order=True)
class Edit:
    start: int
    end: int
    text: str = field(compare=False)


def apply(source: str, edits: Iterable[Edit]) -> str:
    for edit in sorted(edits, reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


class Offsets:
    """Character offsets of AST positions, which count UTF-8 bytes within a line."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def characters(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)


def rewrite_python(source: str, renames: Renames, modules: set[str], own: str | None = None) -> str:
    """One file with its imports and dotted names rewritten; `own` is the merged module it belongs to."""
    tree = ast.parse(source)
    offsets = Offsets(source)
    edits: list[Edit] = []
    local_names: dict[str, str] = {}  # a bound name in this file: what to write in its place
    attributes: dict[str, str] = {}  # a name bound to a module: the old module
    dropped: set[str] = set()  # names bound to a part of the own module
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assigned = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= assigned
    bound |= {
        getattr(node, "name", "")
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            text = _import_from(
                node, renames, modules, own, bound, assigned, local_names, attributes, dropped
            )
            if text is not None:
                start, end = offsets.span(node)
                edits.append(Edit(start, end, text))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in renames.modules and alias.asname is None:
                    start, end = offsets.span(node)
                    edits.append(Edit(start, end, "import " + renames.modules[alias.name]))

    def replaced(name: str, attribute: str | None) -> str | None:
        """What stands in place of `name` or `name.attribute`."""
        if attribute is not None and name in attributes:
            new = renames.name(attributes[name], attribute)
            return new if name in dropped else f"{local_names.get(name, name)}.{new}"
        if attribute is None and name in local_names:
            return local_names[name]
        return None

    rewritten: set[int] = set()
    for node in ast.walk(tree):  # breadth first: an attribute comes before the name that it is taken from
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            new_text = replaced(node.value.id, node.attr)
            if new_text is not None:
                rewritten.add(id(node.value))
        elif isinstance(node, ast.Name) and id(node) not in rewritten:
            new_text = replaced(node.id, None)
        else:
            continue
        if new_text is not None:
            edits.append(Edit(*offsets.span(node), new_text))
    strings = list(_strings_and_comments(source, offsets))
    annotations = _quoted_annotations(tree, offsets)
    unique = {
        (edit.start, edit.end): edit
        for edit in edits
        if not any(start <= edit.start < end for start, end in strings)
    }
    for start, end in strings:
        text = source[start:end]
        new = rewrite_text(text, renames)
        if re.match(
            r"[rR]?[fF]", text
        ):  # positions inside f-strings are not to be trusted before Python 3.12
            new = EXPRESSION.sub(lambda braces: _names_replaced(braces[0], replaced), new)
        elif (start, end) in annotations:
            new = _names_replaced(new, replaced)
        if new != text:
            unique[start, end] = Edit(start, end, new)
    return apply(source, unique.values())


EXPRESSION = re.compile(r"(?<!\{)\{[^{}]+\}")


def _names_replaced(text: str, replaced: Callable[[str, str | None], str | None]) -> str:
    def name(match: re.Match[str]) -> str:
        whole = replaced(match[1], match[2])
        return whole or (replaced(match[1], None) or match[1]) + (f".{match[2]}" if match[2] else "")

    return re.sub(r"(?<![\w.])([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?(?!\w)", name, text)


def _quoted_annotations(tree: ast.Module, offsets: Offsets) -> set[tuple[int, int]]:
    """Where strings stand for types: `def f(x: "Cluster")`, `cast("Cluster", x)`."""
    roots: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.arg() | ast.AnnAssign():
                roots.append(node.annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                roots.append(node.returns)
            case ast.Call(func=ast.Name(id="cast"), args=[kind, *_]):
                roots.append(kind)
    strings = (
        inner
        for root in roots
        if root is not None
        for inner in ast.walk(root)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    )
    return {offsets.span(string) for string in strings}


def _strings_and_comments(source: str, offsets: Offsets) -> Iterator[tuple[int, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            (first, left), (last, right) = token.start, token.end
            yield offsets.characters(first, left), offsets.characters(last, right)


def _import_from(
    node: ast.ImportFrom,
    renames: Renames,
    modules: set[str],
    own: str | None,
    bound: set[str],
    assigned: set[str],
    local_names: dict[str, str],
    attributes: dict[str, str],
    dropped: set[str],
) -> str | None:
    assert node.module is not None
    lines: dict[str, list[str]] = defaultdict(list)
    changed = False
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        local = alias.asname or alias.name
        if full in modules and full in renames.modules:
            changed = True
            target = renames.modules[full]
            attributes[local] = full
            if target == own:
                dropped.add(local)
                continue
            parent, _, base = target.rpartition(".")
            if alias.asname or base == local:
                lines[parent].append(base if base == local else f"{base} as {local}")
            elif base in bound or local in assigned or hasattr(builtins, base):
                lines[parent].append(f"{base} as {local}")
            else:
                local_names[local] = base
                lines[parent].append(base)
        elif node.module in renames.modules:
            changed = True
            target = renames.modules[node.module]
            new = renames.name(node.module, alias.name)
            if target == own:
                if local != new:
                    local_names[local] = new
                continue
            if alias.asname:
                lines[target].append(f"{new} as {alias.asname}")
            elif new == alias.name:
                lines[target].append(new)
            elif new in bound:
                lines[target].append(f"{new} as {local}")
            else:
                local_names[local] = new
                lines[target].append(new)
        else:
            lines[node.module].append(alias.name if not alias.asname else f"{alias.name} as {alias.asname}")
    if not changed:
        return None
    indent = " " * node.col_offset
    made = [f"from {module} import {', '.join(names)}" for module, names in lines.items()]
    return f"\n{indent}".join(made) if made else "pass"


# Not `paceline.cluster/1` or `paceline.cluster.v1`: names of formats, which stay.
DOTTED = re.compile(r"(?<![\w.])(?:paceline|tests)(?:\.[A-Za-z_]\w*)+(?!-|/\d|[\w.]*\.v\d|\w)")
PATH = re.compile(r"(?<![\w./-])((?:\.\./)*(?:src/)?)((?:paceline|tests)(?:/\w+)+)\.py\b")

# `app/train.py` in comments and link texts, without the package.
BARE_PATH = re.compile(r"(?<![\w./-])((?:\w+/)+\w+)\.py\b")


def rewrite_text(text: str, renames: Renames) -> str:
    """Dotted names and paths in strings, configuration and documents."""
    if "paceline" not in text and "tests" not in text and ".py" not in text:
        return text

    def dotted(match: re.Match[str]) -> str:
        words = match[0].split(".")
        for end in range(len(words), 1, -1):
            module = ".".join(words[:end])
            if module in renames.modules:
                rest = words[end:]
                if rest:
                    rest[0] = renames.name(module, rest[0])
                return ".".join([renames.modules[module], *rest])
        return match[0]

    def path(match: re.Match[str]) -> str:
        module = match[2].replace("/", ".").removesuffix(".__init__")
        new = renames.modules.get(module)
        return match[0] if new is None else f"{match[1]}{new.replace('.', '/')}.py"

    def bare(match: re.Match[str]) -> str:
        new = renames.modules.get("paceline." + match[1].replace("/", "."))
        return match[0] if new is None else f"{new.partition('.')[2].replace('.', '/')}.py"

    return BARE_PATH.sub(bare, PATH.sub(path, DOTTED.sub(dotted, text)))


def rewrite_everywhere(renames: Renames, modules: set[str]) -> list[Path]:
    definitions: dict[Path, dict[str, str]] = defaultdict(dict)
    for (module, name), new in renames.symbols.items():
        definitions[path_of(module)][name] = new
    changed = []
    for path in tracked():
        if path.suffix not in TEXT_SUFFIXES or not path.exists():
            continue
        try:
            before = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        after = before
        own_symbols = definitions.get(path, {})
        if path.suffix in (".py", ".pyi") and (own_symbols or "paceline" in before or "tests." in before):
            after = rewrite_python(_renamed(before, own_symbols), renames, modules)
        elif path.suffix not in (".py", ".pyi"):
            after = rewrite_text(before, renames)
        if after != before:
            path.write_text(after, "utf-8")
            changed.append(path)
    return changed


# Check


def check(renames: Renames) -> list[str]:
    problems = [f"no such module: {old}" for old in renames.modules if not path_of(old).exists()]
    if problems:
        return problems
    known = all_modules()
    for new in set(renames.modules.values()):
        if new in known and new not in renames.modules:
            renames.modules = {new: new, **renames.modules}
    for target, olds in groups(renames).items():
        if len(olds) > 1:
            problems += [f"{target}: {line}" for line in _collisions([_read(old) for old in olds], renames)]
    return problems + _new_cycles(renames)


def groups(renames: Renames) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for old, new in renames.modules.items():
        grouped[new].append(old)
    return grouped


def _new_cycles(renames: Renames) -> list[str]:
    modules = {module for module in all_modules() if module.startswith("paceline")}
    before: dict[str, set[str]] = {}
    after: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        before[module] = set(_imported(ast.parse(path_of(module).read_text("utf-8")), modules)) - {module}
        new = renames.modules.get(module, module)
        after[new] |= {renames.modules.get(name, name) for name in before[module]} - {new}
    old_cycles = {
        frozenset(renames.modules.get(name, name) for name in cycle) for cycle in _components(before)
    }
    return [
        f"import cycle: {', '.join(sorted(c))}" for c in _components(after) if frozenset(c) not in old_cycles
    ]


def _imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules imported when the module is, not those imported by its functions."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [full] if full in modules else [node.module] if node.module in modules else []
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = set()
            while True:
                component.add(stack.pop())
                if node in component:
                    break
            if len(component) > 1:
                found.append(component)

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


# Apply


def apply_table(renames: Renames) -> None:
    modules = all_modules() | set(renames.modules)
    merged: dict[Path, str] = {}
    sources: dict[str, list[Path]] = {}
    for target, olds in groups(renames).items():
        sources[target] = [path_of(old) for old in olds]
        if len(olds) > 1:
            parts = [_read(old) for old in olds]
            text = _joined(parts[0], _ordered(parts), renames, modules, target)
            merged[_new_path(sources[target][0], target)] = text
    changed = rewrite_everywhere(renames, modules)
    staged = ROOT / ".moving"
    placed = []
    for target, paths in sources.items():
        if paths[0] != _new_path(paths[0], target):
            temporary = staged / target
            temporary.parent.mkdir(exist_ok=True)
            _git("mv", "-k", str(paths[0]), str(temporary))
        for path in paths[1:]:
            _git("rm", "-qf", str(path))
    for target, paths in sources.items():
        place = _new_path(paths[0], target)
        placed.append(place)
        if (staged / target).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists() and place.read_text("utf-8").strip():
                sys.exit(f"error: {place} exists")
            _git("mv", "-f", str(staged / target), str(place))
            _mark_packages(place)
    for place, text in merged.items():
        place.write_text(text, "utf-8")
    _remove_empty_packages()
    tidy([path for path in changed if path.exists()] + placed)
    print(f"{len(renames.modules)} modules into {len(sources)}, rewrote {len(changed)} files")


def _new_path(old: Path, target: str) -> Path:
    place = new_path_of(target)
    package = place.with_suffix("") / "__init__.py"
    if package == old:
        return old
    return package if old.name == "__init__.py" and not place.exists() else place


def _mark_packages(place: Path) -> None:
    for folder in place.relative_to(ROOT).parents:
        mark = ROOT / folder / "__init__.py"
        if len(folder.parts) > 1 and folder.parts[0] == "src" and not mark.exists():
            mark.write_text("", "utf-8")
            _git("add", "-f", str(mark))


def _remove_empty_packages() -> None:
    """Packages that hold nothing but an empty `__init__.py` go; those with words in it are named."""
    for mark in sorted((ROOT / "src").rglob("__init__.py"), key=lambda path: len(path.parts), reverse=True):
        rest = [path for path in mark.parent.iterdir() if path.name not in ("__init__.py", "__pycache__")]
        if not rest:
            if mark.read_text("utf-8").strip():
                print(f"only an __init__.py is left: {mark.relative_to(ROOT)}")
            else:
                _git("rm", "-qf", str(mark))


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True)


# Merge


@dataclass
class Part:
    module: str
    source: str
    tree: ast.Module

    @property
    def docstring(self) -> str | None:
        return ast.get_docstring(self.tree, clean=False)

    def definitions(self) -> dict[str, ast.stmt]:
        return {name: node for node in self.tree.body for name in _defined(node)}


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign():
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.If() | ast.Try():
            for inner in node.body:
                yield from _defined(inner)
        case _:
            return


def _read(module: str) -> Part:
    path = path_of(module)
    if not path.exists():
        sys.exit(f"error: no such module: {module}")
    source = path.read_text("utf-8")
    return Part(module, source, ast.parse(source))


def _collisions(parts: list[Part], renames: Renames) -> list[str]:
    """Names that cannot stand in one module; private ones are renamed on the way."""
    owners: dict[str, list[Part]] = defaultdict(list)
    imported: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        for name in part.definitions():
            owners[renames.name(part.module, name)].append(part)
        for node in part.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module not in {other.module for other in parts}:
                for alias in node.names:
                    if f"{node.module}.{alias.name}" not in {other.module for other in parts}:
                        assert node.module is not None
                        bound = alias.asname or renames.name(node.module, alias.name)
                        imported[bound].add(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    imported[alias.asname or alias.name].add(alias.name)
    problems = []
    for name, holders in owners.items():
        texts = {ast.dump(part.definitions()[name]) for part in holders if name in part.definitions()}
        if len(holders) > 1 and len(texts) != 1:
            if not name.startswith("_"):
                problems.append(f"{name} is defined in {', '.join(part.module for part in holders)}")
            for part in holders[1:] if name.startswith("_") else []:
                prefix = part.module.rpartition(".")[2].strip("_")
                renames.symbols[part.module, name] = f"_{prefix.upper() if name.isupper() else prefix}{name}"
        if name in imported:
            problems.append(
                f"{name} is defined in {holders[0].module}, imported from {', '.join(imported[name])}"
            )
    return problems + [
        f"{name} is imported from {', '.join(sorted(origins))}"
        for name, origins in imported.items()
        if len(origins) > 1
    ]


def _ordered(parts: list[Part]) -> list[Part]:
    """Parts in an order in which module-level uses follow definitions; the given order otherwise."""
    by_name = {part.module: part for part in parts}
    done: list[Part] = []

    def visit(part: Part, above: tuple[str, ...]) -> None:
        if part in done or part.module in above:
            return
        for node in part.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in by_name and name != part.module:
                        visit(by_name[name], (*above, part.module))
        done.append(part)

    for part in parts:
        visit(part, ())
    return done


def _joined(first: Part, ordered: list[Part], renames: Renames, modules: set[str], target: str) -> str:
    head: list[str] = []
    typing_only: list[str] = []
    bodies: list[str] = []
    seen: set[str] = set()
    for part in ordered:
        own_symbols = {name: new for (module, name), new in renames.symbols.items() if module == part.module}
        source = _renamed(part.source, own_symbols)
        source = rewrite_python(source, renames, modules, own=target)
        tree = ast.parse(source)
        lines = source.splitlines(keepends=True)
        skip: set[int] = set()
        for index, node in enumerate(tree.body):
            is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_merged = isinstance(node, ast.Pass)
            is_import = isinstance(node, (ast.Import, ast.ImportFrom))
            is_typing = isinstance(node, ast.If) and ast.unparse(node.test) in (
                "TYPE_CHECKING",
                "typing.TYPE_CHECKING",
            )
            assert node.end_lineno is not None
            span = range(node.lineno, node.end_lineno + 1)
            if is_typing:
                assert isinstance(node, ast.If)
                typing_only += [ast.unparse(inner) for inner in node.body if not isinstance(inner, ast.Pass)]
            if is_import:
                head.append("".join(lines[i - 1] for i in span))
            if is_docstring or is_merged or is_import or is_typing:
                skip |= set(span)
            elif isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
            ):
                names = tuple(_defined(node))
                if names and names != ("_",) and all(name in seen for name in names):
                    start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                    skip |= set(range(start, node.end_lineno + 1))
                seen |= set(names)
        body = "".join(line for number, line in enumerate(lines, 1) if number not in skip).strip("\n")
        if body:
            bodies.append(_theory(part, first) + body)
    docstring = first.docstring or ""
    future = [line for line in head if line.startswith("from __future__")]
    rest = [line for line in head if not line.startswith("from __future__")]
    block = ""
    if typing_only:
        block = "\nif TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in dict.fromkeys(typing_only))
    imports = "".join(dict.fromkeys(future + rest))
    return f'"""{docstring}"""\n\n{imports}{block}\n\n' + "\n\n\n".join(bodies) + "\n"


def _theory(part: Part, first: Part) -> str:
    """What a merged part's docstring says beyond its first paragraph, as a comment over its code."""
    if part is first:
        return ""
    _, _, rest = (ast.get_docstring(part.tree) or "").partition("\n\n")
    return "".join(f"# {line}".rstrip() + "\n" for line in rest.splitlines()) + "\n" * bool(rest)


def _renamed(source: str, symbols: dict[str, str]) -> str:
    """Rename module-level names where they are defined and used, not fields and locals of that name."""
    if not symbols:
        return source
    offsets = Offsets(source)
    edits: list[Edit] = []
    tree = ast.parse(source)
    top = {
        id(inner)
        for node in tree.body
        for inner in [node, *getattr(node, "body", [])]
        if not isinstance(node, ast.ClassDef) or inner is node
    }

    def visit(node: ast.AST, hidden: frozenset[str], in_class: bool) -> None:
        if isinstance(node, ast.Name) and node.id in symbols and node.id not in hidden:
            is_field = in_class and isinstance(node.ctx, ast.Store)
            edits.extend([] if is_field else [Edit(*offsets.span(node), symbols[node.id])])
        if id(node) in top and getattr(node, "name", None) in symbols:
            assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            start, _ = offsets.span(node)
            at = re.compile(rf"\b{node.name}\b").search(source, start)
            assert at is not None
            edits.append(Edit(at.start(), at.end(), symbols[node.name]))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            outside = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
            outside += getattr(node, "decorator_list", [])
            for child in outside:
                visit(child, hidden, in_class)
            for arg in [
                *node.args.posonlyargs,
                *node.args.args,
                *node.args.kwonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]:
                if arg is not None and arg.annotation is not None:
                    visit(arg.annotation, hidden, in_class)
            if getattr(node, "returns", None) is not None:
                visit(node.returns, hidden, in_class)  # type: ignore[union-attr]  # a lambda has none
            inner = hidden | _bound_in(node)
            for child in node.body if isinstance(node.body, list) else [node.body]:
                visit(child, inner, False)
            return
        is_class = isinstance(node, ast.ClassDef)
        for child in ast.iter_child_nodes(node):
            visit(child, hidden, is_class or (in_class and not isinstance(node, ast.expr)))

    visit(tree, frozenset(), False)
    annotations = _quoted_annotations(tree, offsets)
    for start, end in annotations:
        text = source[start:end]
        new = _names_replaced(text, lambda name, rest: None if rest else symbols.get(name))
        if new != text:
            edits.append(Edit(start, end, new))
    for start, end in _strings_and_comments(source, offsets):
        if re.match(r"[rR]?[fF]", source[start:end]):  # positions inside are not to be trusted before 3.12
            edits = [edit for edit in edits if not start <= edit.start < end]
            text = source[start:end]
            edits.append(
                Edit(
                    start,
                    end,
                    EXPRESSION.sub(
                        lambda m: _names_replaced(
                            m[0],
                            lambda n, r: (f"{symbols[n]}.{r}" if r else symbols[n]) if n in symbols else None,
                        ),
                        text,
                    ),
                )
            )
    return apply(source, {(edit.start, edit.end): edit for edit in edits}.values())


def _bound_in(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> frozenset[str]:
    args = function.args
    names = {
        arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg] if arg
    }
    shared: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared |= set(node.names)
    return frozenset(names - shared)


# Format


def tidy(paths: Iterable[Path]) -> None:
    files = sorted({str(path) for path in paths if path.suffix == ".py" and path.exists()})
    ruff = ROOT / ".venv/bin/ruff"
    for start in range(0, len(files), 300):
        batch = files[start : start + 300]
        subprocess.run(
            [ruff, "check", "-q", "--select", "I,F401,PIE790", "--fix", *batch], cwd=ROOT, check=False
        )
        subprocess.run([ruff, "format", "-q", *batch], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

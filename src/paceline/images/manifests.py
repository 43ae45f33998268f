"""Readers of the files that name a project's dependencies: pyproject.toml, setup.py, environment.yml, ….

Each reader returns the same `RequirementFile` as a requirements file does, so that a rule need not know which
format a package was asked for in. Text that cannot be read yields no package: nothing is concluded from it.
"""

import ast
import configparser
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from paceline.images.requirements import Asked, Option, RequirementFile, read_asked, read_requirements
from paceline.images.text import line_at

NAMES = ("pyproject.toml", "setup.cfg", "setup.py")
_ENVIRONMENT = re.compile(r"(?:^|[/._-])(?:conda|env(?:ironment)?)[^/]*\.ya?ml$")
_SEVERAL_INDEXES = "https://download.pytorch.org/whl/$chosen"  # which one is decided by a marker
Table = Mapping[str, Any]  # Any: TOML and YAML


def is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in NAMES or _ENVIRONMENT.search(path) is not None


def read_file(path: str, text: str) -> RequirementFile:
    """A file of any format that this package reads, by its name."""
    name = path.rpartition("/")[2]
    if name == "pyproject.toml":
        return _pyproject(path, text)
    if name == "setup.cfg":
        return _setup_cfg(path, text)
    if name == "setup.py":
        return _setup_py(path, text)
    if _ENVIRONMENT.search(path) is not None:
        return _environment(path, text)
    return read_requirements(path, text)


def _asked(path: str, text: str, wanted: Iterable[str]) -> tuple[Asked, ...]:
    """The packages with the place of each literal; one that is not written literally cannot be edited."""
    found: list[Asked] = []
    for said in wanted:
        at = next((at for quote in "\"'" if (at := text.find(f"{quote}{said}{quote}")) >= 0), -1)
        start = at + 1 if at >= 0 else 0
        line = line_at(text, start) if at >= 0 else 1
        one = read_asked(said, path, start, start + len(said), line, is_literal=at >= 0)
        found += [one] if one is not None else []
    return tuple(found)


def _pyproject(path: str, text: str) -> RequirementFile:
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return RequirementFile(path, text, (), (), (f"{path}: {error}",))
    project: Table = _table(said, "project")
    tool: Table = _table(said, "tool")
    wanted = [one for one in project.get("dependencies", ()) if isinstance(one, str)]
    sources: Table = _table(_table(tool, "uv"), "sources")
    asked = [_from_git(one, sources) for one in _asked(path, text, wanted)]
    asked += _asked(path, text, _poetry(_table(_table(tool, "poetry"), "dependencies")))
    options = [*_index_options(tool, sources), *_dynamic(tool)]
    return RequirementFile(path, text, tuple(asked), tuple(options))


def _table(said: Table, name: str) -> Table:
    found = said.get(name, {})
    return found if isinstance(found, dict) else {}


def _from_git(asked: Asked, sources: Table) -> Asked:
    """`[tool.uv.sources] x = {git = "…"}`: the package is cloned, whatever its range says."""
    source = sources.get(asked.name)
    if isinstance(source, dict) and isinstance(source.get("git"), str):
        other = read_asked(
            f"git+{source['git']}#egg={asked.name}", asked.path, 0, 0, asked.line, is_literal=False
        )
        return other or asked
    return asked


def _poetry(dependencies: Table) -> Iterator[str]:
    """Exact versions alone become pins: carets and tildes say little about what is installed."""
    for name, said in dependencies.items():
        version = said.get("version", "") if isinstance(said, dict) else said
        if name.lower() == "python" or not isinstance(version, str):
            continue
        exact = re.fullmatch(r"(?:==?)?\s*(\d+(?:\.\d+)+(?:\+\w+)?)", version)
        yield f"{name}=={exact[1]}" if exact else name


def _index_options(tool: Table, sources: Table) -> Iterator[Option]:
    uv: Table = _table(tool, "uv")
    listed = [one for one in uv.get("index", ()) if isinstance(one, dict)]
    source = sources.get("torch")
    if isinstance(source, list):
        yield Option("extra-index-url", _SEVERAL_INDEXES, 1)
        return
    chosen = source.get("index") if isinstance(source, dict) else None
    for one in listed:
        if "url" in one and (not one.get("explicit") or one.get("name") == chosen):
            yield Option("extra-index-url", str(one["url"]), 1)
    for one in _table(tool, "poetry").get("source", ()):
        if isinstance(one, dict) and "url" in one:
            yield Option("extra-index-url", str(one["url"]), 1)
    for name in uv.get("no-build-isolation-package", ()):
        yield Option("no-build-isolation-package", str(name), 1)
    for name in _table(uv, "extra-build-dependencies"):
        yield Option("no-build-isolation-package", name, 1)
    if uv.get("no-build-isolation"):
        yield Option("no-build-isolation", "", 1)


def _dynamic(tool: Table) -> Iterator[Option]:
    """setuptools may read the dependencies from files."""
    dynamic: Table = _table(_table(_table(tool, "setuptools"), "dynamic"), "dependencies")
    files = dynamic.get("file", ())
    for name in [files] if isinstance(files, str) else files:
        yield Option("requirement", str(name), 1)


def _setup_cfg(path: str, text: str) -> RequirementFile:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
        lines = parser.get("options", "install_requires", fallback="").splitlines()
    except configparser.Error as error:
        return RequirementFile(path, text, (), (), (f"{path}: {error}",))
    wanted = [line.strip() for line in lines if line.strip() and not line.strip().startswith(("#", "file:"))]
    found: list[Asked] = []
    for said in wanted:
        at = text.find(said)
        one = read_asked(said, path, at, at + len(said), line_at(text, max(at, 0)), is_literal=at >= 0)
        found += [one] if one is not None else []
    return RequirementFile(path, text, tuple(found), ())


def _setup_py(path: str, text: str) -> RequirementFile:
    """`install_requires` where it is a list of literals, or the name of one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return RequirementFile(path, text, (), (), (f"{path}: {error}",))
    lists: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            lists[node.targets[0].id] = _literals(node.value)
    wanted: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            value = node.value
            wanted += lists.get(value.id, []) if isinstance(value, ast.Name) else _literals(value)
    return RequirementFile(path, text, _asked(path, text, wanted), ())


def _literals(node: ast.expr) -> list[str]:
    if not isinstance(node, ast.List | ast.Tuple):
        return []
    return [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _environment(path: str, text: str) -> RequirementFile:
    """The part for pip; conda's own packages are told by `conda_packages`."""
    listed = _conda_dependencies(text)
    pip = [one for part in listed if isinstance(part, dict) for one in part.get("pip") or ()]
    lines = [one for one in pip if isinstance(one, str)]
    plain = [line for line in lines if not line.startswith("-")]
    options = [read_requirements(path, line).options for line in lines if line.startswith("-")]
    found: list[Asked] = []
    for said in plain:
        at = text.find(said)
        one = read_asked(said, path, at, at + len(said), line_at(text, max(at, 0)), is_literal=at >= 0)
        found += [one] if one is not None else []
    return RequirementFile(path, text, tuple(found), tuple(o for part in options for o in part))


def _conda_dependencies(text: str) -> list[Any]:  # Any: YAML
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    listed = said.get("dependencies") if isinstance(said, dict) else None
    return listed if isinstance(listed, list) else []


def conda_packages(text: str) -> dict[str, str]:
    """Name and version range, as conda writes them, of an environment file's own packages."""
    words = [one for one in _conda_dependencies(text) if isinstance(one, str)]
    return dict(conda_spec(word) for word in words)


def conda_spec(word: str) -> tuple[str, str]:
    """`conda-forge::python=3.10.*` names python with `=3.10.*`."""
    found = re.match(r"^(?:[^:]+::)?([A-Za-z0-9._-]+)\s*(.*)$", word.strip())
    return (found[1].lower(), found[2].strip()) if found else (word, "")

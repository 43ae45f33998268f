"""Parsers of dependency files: requirements, pyproject.toml, setup.cfg, setup.py and conda environments.

Each package and option keeps its place in the text. pip's format: `#` behind a blank begins a comment, a
backslash continues a line, an option begins with `-`. Names and version ranges are parsed by `packaging`.
"""

import ast
import configparser
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from paceline.images.lint.project import line_at, lines_of

_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTION_BEHIND = re.compile(r"\s+--(?:hash|config-settings|global-option)[= ].*$")
_LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}
_NAME_AND_EXTRAS = re.compile(r"^[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?")
_MARKER = re.compile(r"\s*;.*$")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_URL_NAME = re.compile(r"/([A-Za-z0-9._-]+?)(?:\.git)?(?:@[^/]+)?(?:#.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSpec:
    """One package that shall be installed, and where that is written."""

    name: str  # canonical; empty if a path or an address does not contain it
    text: str
    path: str
    start: int
    end: int
    line: int
    requirement: Requirement | None = None  # None: an address or a path
    has_hash: bool = False
    is_literal: bool = True  # no variable in it, no escape: may be edited in place

    @property
    def specifier(self) -> SpecifierSet:
        return SpecifierSet() if self.requirement is None else self.requirement.specifier

    @property
    def pin(self) -> Version | None:
        """The version, where exactly one is allowed."""
        exact = [clause for clause in self.specifier if clause.operator in ("==", "===")]
        if len(exact) != 1 or "*" in exact[0].version:
            return None
        try:
            return Version(exact[0].version)
        except InvalidVersion:
            return None

    def with_range(self, spec_range: str) -> str:
        """The same words with another range of versions: name, extras and marker stay unchanged."""
        head = _NAME_AND_EXTRAS.match(self.text)
        marker = _MARKER.search(self.text)
        return f"{head[0].rstrip() if head else self.name}{spec_range}{marker[0] if marker else ''}"

    @property
    def is_url(self) -> bool:
        return self.requirement is None or self.requirement.url is not None

    def is_meant_for(self, python: str | None) -> bool:
        """Whether its marker holds on Linux and x86 with this Python; False if unknown."""
        marker = None if self.requirement is None else self.requirement.marker
        if marker is None:
            return True
        if python is None and "python" in str(marker):
            return False
        return marker.evaluate(
            {**_LINUX, "python_version": python or "", "python_full_version": f"{python}.0"}
        )

    @property
    def is_git(self) -> bool:
        return "git+" in self.text


@dataclass(frozen=True, slots=True)
class Option:
    """`--extra-index-url X` on a separate line."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class RequirementFile:
    path: str
    text: str
    specs: tuple[PackageSpec, ...]
    options: tuple[Option, ...]
    notes: tuple[str, ...] = ()  # lines that cannot be read


def read_requirements(path: str, text: str) -> RequirementFile:
    specs: list[PackageSpec] = []
    options: list[Option] = []
    notes: list[str] = []
    lines = lines_of(text)
    at = 0
    number = 0
    while number < len(lines):
        first = number + 1
        start = at
        at += len(lines[number])
        joined = lines[number].removeprefix("\ufeff")
        while joined.rstrip("\r\n").endswith("\\") and number + 1 < len(lines):
            number += 1
            at += len(lines[number])
            joined = joined.rstrip("\r\n")[:-1] + " " + lines[number]
        number += 1
        content = _COMMENT.sub("", joined.rstrip("\r\n")).strip()
        if not content:
            continue
        if content.startswith("-") and not content.startswith(("-e ", "--editable")):
            options.append(_option(content, first))
            continue
        core = _OPTION_BEHIND.sub("", content).strip()
        begins = start + len(lines[first - 1]) - len(lines[first - 1].lstrip("\ufeff \t"))
        spec = read_spec(core, path, begins, begins + len(core), first, has_hash=core != content)
        if spec is None:
            notes.append(f"{path}:{first}: {core}")
        else:
            specs.append(spec)
    return RequirementFile(path, text, tuple(specs), tuple(options), tuple(notes))


def _option(content: str, line: int) -> Option:
    name, _, value = content.replace("=", " ", 1).partition(" ")
    short = {"-r": "--requirement", "-c": "--constraint", "-i": "--index-url", "-f": "--find-links"}
    return Option(short.get(name, name).removeprefix("--"), value.strip(), line)


def read_spec(
    text: str, path: str, start: int, end: int, line: int, *, has_hash: bool = False, is_literal: bool = True
) -> PackageSpec | None:
    """A package as pip takes it: `name[extra]>=1`, `name @ address`, an address, a path; None: not that."""
    bare = re.sub(r"^(-e|--editable)[= ]\s*", "", text)
    name = ""
    requirement = None
    if _is_address(bare):
        egg = _EGG.search(bare)
        last = _URL_NAME.search(bare.partition("#")[0].rstrip("/"))
        if egg:
            name = egg[1]
        elif last and "://" in bare:
            name = last[1]
    else:
        try:
            requirement = Requirement(bare)
        except InvalidRequirement:
            return None
        name = requirement.name
    return PackageSpec(
        name=str(canonicalize_name(name)) if name else "",
        text=text,
        path=path,
        start=start,
        end=end,
        line=line,
        requirement=requirement,
        has_hash=has_hash,
        is_literal=is_literal,
    )


def _is_address(text: str) -> bool:
    return (
        text.startswith((".", "/", "git+", "http:", "https:", "file:"))
        or (("://" in text) and " @ " not in text)
        or text.endswith((".whl", ".tar.gz"))
    )


# Each reader returns the same `RequirementFile` as a requirements file does, so that a rule is independent of
# the format in which a package was requested. Text that cannot be parsed yields no package: nothing is
# concluded from it.

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


def _specs(path: str, text: str, requirements: Iterable[str]) -> tuple[PackageSpec, ...]:
    """The packages with the place of each literal; one that is not written literally cannot be edited."""
    specs: list[PackageSpec] = []
    for requirement in requirements:
        at = next((at for quote in "\"'" if (at := text.find(f"{quote}{requirement}{quote}")) >= 0), -1)
        start = at + 1 if at >= 0 else 0
        line = line_at(text, start) if at >= 0 else 1
        spec = read_spec(requirement, path, start, start + len(requirement), line, is_literal=at >= 0)
        specs += [spec] if spec is not None else []
    return tuple(specs)


def _pyproject(path: str, text: str) -> RequirementFile:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return RequirementFile(path, text, (), (), (f"{path}: {error}",))
    project: Table = _table(document, "project")
    tool: Table = _table(document, "tool")
    requirements = [item for item in project.get("dependencies", ()) if isinstance(item, str)]
    sources: Table = _table(_table(tool, "uv"), "sources")
    specs = [_from_git(spec, sources) for spec in _specs(path, text, requirements)]
    specs += _specs(path, text, _poetry(_table(_table(tool, "poetry"), "dependencies")))
    options = [*_index_options(tool, sources), *_dynamic(tool)]
    return RequirementFile(path, text, tuple(specs), tuple(options))


def _table(table: Table, name: str) -> Table:
    value = table.get(name, {})
    return value if isinstance(value, dict) else {}


def _from_git(spec: PackageSpec, sources: Table) -> PackageSpec:
    """`[tool.uv.sources] x = {git = "…"}`: the package is cloned, regardless of its range."""
    source = sources.get(spec.name)
    if isinstance(source, dict) and isinstance(source.get("git"), str):
        other = read_spec(
            f"git+{source['git']}#egg={spec.name}", spec.path, 0, 0, spec.line, is_literal=False
        )
        return other or spec
    return spec


def _poetry(dependencies: Table) -> Iterator[str]:
    """Exact versions alone become pins: carets and tildes do not determine the installed version."""
    for name, value in dependencies.items():
        version = value.get("version", "") if isinstance(value, dict) else value
        if name.lower() == "python" or not isinstance(version, str):
            continue
        exact = re.fullmatch(r"(?:==?)?\s*(\d+(?:\.\d+)+(?:\+\w+)?)", version)
        yield f"{name}=={exact[1]}" if exact else name


def _index_options(tool: Table, sources: Table) -> Iterator[Option]:
    uv: Table = _table(tool, "uv")
    listed = [entry for entry in uv.get("index", ()) if isinstance(entry, dict)]
    source = sources.get("torch")
    if isinstance(source, list):
        yield Option("extra-index-url", _SEVERAL_INDEXES, 1)
        return
    chosen = source.get("index") if isinstance(source, dict) else None
    for index in listed:
        if "url" in index and (not index.get("explicit") or index.get("name") == chosen):
            yield Option("extra-index-url", str(index["url"]), 1)
    for index in _table(tool, "poetry").get("source", ()):
        if isinstance(index, dict) and "url" in index:
            yield Option("extra-index-url", str(index["url"]), 1)
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
    requirements = [
        line.strip() for line in lines if line.strip() and not line.strip().startswith(("#", "file:"))
    ]
    specs: list[PackageSpec] = []
    for requirement in requirements:
        at = text.find(requirement)
        spec = read_spec(
            requirement, path, at, at + len(requirement), line_at(text, max(at, 0)), is_literal=at >= 0
        )
        specs += [spec] if spec is not None else []
    return RequirementFile(path, text, tuple(specs), ())


def _setup_py(path: str, text: str) -> RequirementFile:
    """`install_requires` if it is a list of literals, or the name of one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return RequirementFile(path, text, (), (), (f"{path}: {error}",))
    lists: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            lists[node.targets[0].id] = _literals(node.value)
    requirements: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            value = node.value
            requirements += lists.get(value.id, []) if isinstance(value, ast.Name) else _literals(value)
    return RequirementFile(path, text, _specs(path, text, requirements), ())


def _literals(node: ast.expr) -> list[str]:
    if not isinstance(node, ast.List | ast.Tuple):
        return []
    return [
        element.value
        for element in node.elts
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    ]


def _environment(path: str, text: str) -> RequirementFile:
    """The part for pip; `conda_packages` returns conda's own packages."""
    listed = _conda_dependencies(text)
    pip = [line for part in listed if isinstance(part, dict) for line in part.get("pip") or ()]
    lines = [line for line in pip if isinstance(line, str)]
    plain = [line for line in lines if not line.startswith("-")]
    options = [read_requirements(path, line).options for line in lines if line.startswith("-")]
    specs: list[PackageSpec] = []
    for requirement in plain:
        at = text.find(requirement)
        spec = read_spec(
            requirement, path, at, at + len(requirement), line_at(text, max(at, 0)), is_literal=at >= 0
        )
        specs += [spec] if spec is not None else []
    return RequirementFile(path, text, tuple(specs), tuple(o for part in options for o in part))


def _conda_dependencies(text: str) -> list[Any]:  # Any: YAML
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    listed = document.get("dependencies") if isinstance(document, dict) else None
    return listed if isinstance(listed, list) else []


def conda_packages(text: str) -> dict[str, str]:
    """Name and version range, as conda writes them, of an environment file's own packages."""
    specs = [item for item in _conda_dependencies(text) if isinstance(item, str)]
    return dict(conda_spec(word) for word in specs)


def conda_spec(word: str) -> tuple[str, str]:
    """`conda-forge::python=3.10.*` names python with `=3.10.*`."""
    match = re.match(r"^(?:[^:]+::)?([A-Za-z0-9._-]+)\s*(.*)$", word.strip())
    return (match[1].lower(), match[2].strip()) if match else (word, "")

"""Edits that carry out one change: another base, a further package, another version, one more flag.

Each function returns no edits where it is not certain how: then the finding stays, with advice.
"""

import re
from collections.abc import Iterable
from datetime import date

from packaging.version import Version

from paceline.images.lint.bases import Base, catalog, read_base
from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.dockerfile import Instruction, argument_values
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.project import (
    Change,
    Edit,
    Source,
    deletion,
    edits_of,
    insertion,
    lines_of,
    offset_of,
)
from paceline.images.lint.view import Installed, StageView

_LONE_VARIABLE = re.compile(r"^\$(?:\{(\w+)\}|(\w+))$")


def another_base(view: StageView, reference: str) -> tuple[Edit, ...]:
    """FROM another image; where FROM names an ARG alone, another default of that ARG."""
    first = view.docker.chain(view.stage)[0]
    old = first.base_written
    origin = first.origin
    lone = _LONE_VARIABLE.match(old)
    if lone is not None:
        name = lone[1] or lone[2]
        for step in view.docker.arguments:
            if argument_values(step).get(name) == first.base:
                return _words_replaced(view, step, first.base, reference)
        return ()
    return () if "$" in old else _words_replaced(view, origin, old, reference)


def _words_replaced(view: StageView, step: Instruction, old: str, new: str) -> tuple[Edit, ...]:
    text = view.docker.text
    start = offset_of(text, step.first)
    end = offset_of(text, step.last + 1)
    at = text.find(old, start, end)
    return () if at < 0 else edits_of(view.dockerfile, [Change(at, at + len(old), new)])


def respelled(view: StageView, spec: PackageSpec, new: str) -> tuple[Edit, ...]:
    """Replace a package requirement in place; in a command, quoted as needed."""
    if not spec.is_literal or spec.has_hash:
        return ()
    source = view.source(spec.path)
    written = source.text[spec.start : spec.end]
    if spec.path == view.docker.path:
        is_quoted = written[0] in "'\"" and written[-1] == written[0]
        quote = '"' if re.search(r"[<>\[\]!; ]", new) else ""
        if is_quoted:
            quote = written[0]
            written = written[1:-1]
        if written != spec.text or (quote and quote in new):
            return ()
        return edits_of(source, [Change(spec.start, spec.end, f"{quote}{new}{quote}")])
    if not _is_one_line(source, spec):
        return ()
    return edits_of(source, [Change(spec.start, spec.end, new)])


def dropped(view: StageView, package: Installed) -> tuple[Edit, ...]:
    """Remove a package requirement: its line of a requirements file, or its word of a command."""
    spec = package.spec
    source = view.source(spec.path)
    if spec.path != view.docker.path:
        # Another command that installs from this file would lose it too.
        if not _is_requirements(spec) or not _is_one_line(source, spec) or view.uses_of(spec.path) > 1:
            return ()
        return (deletion(source, spec.line, spec.line),)
    if not spec.is_literal or not package.by.is_editable or len(package.by.specs) < 2:
        return ()
    # With the continued line before it: a backslash left alone would swallow the next instruction.
    start = max(word.end for word in package.by.command.words if word.end <= spec.start)
    if "#" in source.text[start : spec.start]:
        return ()  # a comment between them: only a person can tell what it refers to
    return edits_of(source, [Change(start, spec.end, "")])


def _is_one_line(source: Source, spec: PackageSpec) -> bool:
    return source.text[spec.start : spec.end] == spec.text


def requirement_added(view: StageView, package: Installed, requirement: str) -> tuple[Edit, ...]:
    """Add a package after a given one: on the next line, or as the next word."""
    spec = package.spec
    source = view.source(spec.path)
    if spec.path != view.docker.path:
        if not _is_requirements(spec) or not _is_one_line(source, spec):
            return ()
        return (insertion(source, spec.line + 1, [requirement]),)
    if not package.by.is_editable:
        return ()
    word = f'"{requirement}"' if re.search(r"[<>\[\]!; ]", requirement) else requirement
    return edits_of(source, [Change(spec.end, spec.end, f" {word}")])


def _is_requirements(spec: PackageSpec) -> bool:
    """A line may be added or taken away; in pyproject.toml and its like only a literal is replaced."""
    return not spec.has_hash and spec.path.endswith((".txt", ".in"))


def with_flag(view: StageView, by: PipInstall, flag: str) -> tuple[Edit, ...]:
    if not by.is_editable:
        return ()
    return edits_of(view.dockerfile, [Change(by.behind, by.behind, f" {flag}")])


def word_replaced(view: StageView, by: PipInstall, old: str, new: str) -> tuple[Edit, ...]:
    """Every word of a command that has `old` in it, with `new` in its place."""
    changes = []
    text = view.docker.text
    for word in by.command.words if by.is_editable else ():
        at = text.find(old, word.start, word.end)
        if at >= 0:
            changes.append(Change(at, at + len(old), new))
    return edits_of(view.dockerfile, changes)


def index_switched(view: StageView, package: Installed, old: str, new: str) -> tuple[Edit, ...]:
    """Another package index, wherever the old one is written: command, requirements file or variable."""
    edits = word_replaced(view, package.by, old, new)
    for file in view.files_of(package.by):
        for option in file.options if file.path.endswith((".txt", ".in")) else ():
            if old in option.value:
                start = offset_of(file.text, option.line)
                at = file.text.find(old, start)
                edits += edits_of(view.source(file.path), [Change(at, at + len(old), new)])
    if edits:
        return edits
    for step in view.steps:
        if step.word in ("ENV", "ARG") and any(old in value for value in step.values):
            return _words_replaced(view, step, old, new)
    return ()


def index_added(view: StageView, package: Installed, address: str) -> tuple[Edit, ...]:
    """One more index for the command that installs a package, written where the package is."""
    source = view.source(package.spec.path)
    if package.by.is_uv:
        return ()  # uv takes a package from the first index that has its name: which order, a person decides
    if package.spec.path != view.docker.path:
        if not _is_requirements(package.spec):
            return ()
        first = min(spec.line for spec in view.files[package.spec.path].specs)
        return (insertion(source, first, [f"--extra-index-url {address}"]),)
    return with_flag(view, package.by, f"--extra-index-url {address}")


def system_packages_added(view: StageView, before: Instruction, packages: Iterable[str]) -> tuple[Edit, ...]:
    """Install system packages before an instruction: in an existing list, or in a new one."""
    names = [name for name in packages if name not in view.system_packages]
    own_steps = {id(step) for step in view.stage.instructions}
    lists = [
        install
        for install in view.system
        if id(install.instruction) in own_steps
        and install.instruction.first <= before.first
        and install.packages
        and not install.instruction.is_json
    ]
    if not names:
        return ()
    if view.base.system == "alpine":
        line = f"RUN apk add --no-cache {' '.join(names)}"
    elif view.base.system.startswith(("debian", "ubuntu")):
        line = (
            f"RUN apt-get update && apt-get install -y --no-install-recommends {' '.join(names)}"
            " && rm -rf /var/lib/apt/lists/*"
        )
    else:
        return ()
    if lists:
        at = lists[-1].end
        return edits_of(view.dockerfile, [Change(at, at, f" {' '.join(names)}")])
    if not is_root_at(view, before):
        return ()
    return (insertion(view.dockerfile, above(view, before), [line]),)


def above(view: StageView, step: Instruction) -> int:
    """The line for something new before an instruction: above the comments that belong to it."""
    lines = lines_of(view.docker.text)
    line = step.first
    while line > 1 and lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def is_root_at(view: StageView, step: Instruction) -> bool:
    users = [s.values[0] for s in view.steps if s.word == "USER" and s.first < step.first and s.values]
    return not users or users[-1].partition(":")[0] in ("root", "0")


def lines_added_behind(view: StageView, step: Instruction, lines: Iterable[str]) -> tuple[Edit, ...]:
    return (insertion(view.dockerfile, step.last + 1, lines),)


def nearest_cuda_tag(base: Base, major: int, wheel: Version | None = None, **overrides: str) -> str | None:
    """The tag of nvidia/cuda with this major that differs least from the given base."""
    flavour = overrides.get("flavour", base.flavour or "runtime")
    cudnn = overrides.get("cudnn", base.cudnn)
    system = overrides.get("system", base.system)

    def distance(tag: str) -> tuple[object, ...]:
        candidate = read_base(f"nvidia/cuda:{tag}")
        assert candidate.cuda is not None, f"{tag} of the curated list names a CUDA"
        minor = 0 if wheel is None else abs(candidate.cuda.minor - wheel.minor)
        same = candidate.flavour != flavour, bool(candidate.cudnn) != bool(cudnn), candidate.system != system
        return (*same, minor, -candidate.cuda.minor, candidate.system)

    maker = re.match(r"[a-z]*", base.system)
    of_maker = f"-{maker[0]}" if maker else ""  # commands for dnf mean nothing where apt is
    same = [tag for tag in catalog().cuda_tags if int(tag.partition(".")[0]) == major and of_maker in tag]
    return min(same, key=distance) if same else None


def with_python(view: StageView, other: str, known: tuple[str, ...]) -> str | None:
    """The base with another Python: that tag of python, or CUDA on a supported system with that Python."""
    base = view.base
    if view.has_own_python:
        return None
    if base.family == "python" and base.tag is not None:
        tag = re.sub(r"^(?:latest(?=-|$)|3(?:\.\d+){0,2}(?:[a-z]+\d+)?)", other, base.tag)
        return f"{base.reference.rpartition(':')[0]}:{tag}" if tag != base.tag else None
    if base.family == "cuda" and base.cuda is not None:
        supported = [s for s, ends in catalog().systems.items() if ends >= view.target.today]
        for system in sorted(supported, reverse=True):
            near = nearest_cuda_tag(base, base.cuda.major, base.cuda, system=system)
            if catalog().system_pythons.get(system) in known and near is not None and near.endswith(system):
                return f"{base.name}:{near}"
    return None


def torch_tag(base: Base, torch: Version) -> str | None:
    """The tag of pytorch/pytorch with this torch, in the flavour that is used now."""
    known = [tag for tag in catalog().torch_tags if tag.startswith(f"{torch.base_version}-")]
    return f"{known[0]}-{base.flavour or 'runtime'}" if known else None


def supported_python(view: StageView, today: date) -> str | None:
    """The oldest maintained Python for which the pinned torch has wheels."""
    pythons = [version for version, ends in catalog().pythons.items() if ends >= today]
    torch = view.torch
    if torch is not None and torch.row is not None:
        pythons = [version for version in pythons if version in torch.row.pythons]
    return min(pythons, key=Version) if pythons else None

"""Edits that carry out one change: another base, a further package, another version, one more flag.

Each function returns no edits where it is not certain how: then the finding stays, with advice.
"""

import re
from collections.abc import Iterable
from datetime import date

from packaging.version import Version

from paceline.images.lint.bases import Base, catalog, read_base
from paceline.images.lint.dependency_files import Asked
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
from paceline.images.lint.view import Installed, Place

_LONE_VARIABLE = re.compile(r"^\$(?:\{(\w+)\}|(\w+))$")


def another_base(place: Place, reference: str) -> tuple[Edit, ...]:
    """FROM another image; where FROM names an ARG alone, another default of that ARG."""
    first = place.docker.chain(place.stage)[0]
    old, origin = first.base_written, first.origin
    lone = _LONE_VARIABLE.match(old)
    if lone is not None:
        name = lone[1] or lone[2]
        for step in place.docker.arguments:
            if argument_values(step).get(name) == first.base:
                return _words_replaced(place, step, first.base, reference)
        return ()
    return () if "$" in old else _words_replaced(place, origin, old, reference)


def _words_replaced(place: Place, step: Instruction, old: str, new: str) -> tuple[Edit, ...]:
    text = place.docker.text
    start, end = offset_of(text, step.first), offset_of(text, step.last + 1)
    at = text.find(old, start, end)
    return () if at < 0 else edits_of(place.dockerfile, [Change(at, at + len(old), new)])


def respelled(place: Place, asked: Asked, new: str) -> tuple[Edit, ...]:
    """A package asked for in other words, at the same place; in a command, quoted as far as needed."""
    if not asked.is_literal or asked.has_hash:
        return ()
    source = place.source(asked.path)
    written = source.text[asked.start : asked.end]
    if asked.path == place.docker.path:
        is_quoted = written[0] in "'\"" and written[-1] == written[0]
        quote = written[0] if is_quoted else '"' if re.search(r"[<>\[\]!; ]", new) else ""
        if (written[1:-1] if is_quoted else written) != asked.text or (quote and quote in new):
            return ()
        return edits_of(source, [Change(asked.start, asked.end, f"{quote}{new}{quote}")])
    if not _is_one_line(source, asked):
        return ()
    return edits_of(source, [Change(asked.start, asked.end, new)])


def dropped(place: Place, one: Installed) -> tuple[Edit, ...]:
    """A package no longer asked for: its line of a requirements file, or its word of a command."""
    asked = one.asked
    source = place.source(asked.path)
    if asked.path != place.docker.path:
        # Another command that installs from this file would lose it too.
        if not _is_requirements(asked) or not _is_one_line(source, asked) or place.uses_of(asked.path) > 1:
            return ()
        return (deletion(source, asked.line, asked.line),)
    if not asked.is_literal or not one.by.is_editable or len(one.by.asked) < 2:
        return ()
    # With the continued line before it: a backslash left alone would swallow the next instruction.
    start = max(word.end for word in one.by.command.words if word.end <= asked.start)
    if "#" in source.text[start : asked.start]:
        return ()  # a remark between them: what it is about, a person knows
    return edits_of(source, [Change(start, asked.end, "")])


def _is_one_line(source: Source, asked: Asked) -> bool:
    return source.text[asked.start : asked.end] == asked.text


def beside(place: Place, one: Installed, wanted: str) -> tuple[Edit, ...]:
    """One more package beside a given one: on a line behind it, or as a word behind it."""
    asked = one.asked
    source = place.source(asked.path)
    if asked.path != place.docker.path:
        if not _is_requirements(asked) or not _is_one_line(source, asked):
            return ()
        return (insertion(source, asked.line + 1, [wanted]),)
    if not one.by.is_editable:
        return ()
    word = f'"{wanted}"' if re.search(r"[<>\[\]!; ]", wanted) else wanted
    return edits_of(source, [Change(asked.end, asked.end, f" {word}")])


def _is_requirements(asked: Asked) -> bool:
    """A line may be added or taken away; in pyproject.toml and its like only a literal is replaced."""
    return not asked.has_hash and asked.path.endswith((".txt", ".in"))


def with_flag(place: Place, by: PipInstall, flag: str) -> tuple[Edit, ...]:
    if not by.is_editable:
        return ()
    return edits_of(place.dockerfile, [Change(by.behind, by.behind, f" {flag}")])


def word_replaced(place: Place, by: PipInstall, old: str, new: str) -> tuple[Edit, ...]:
    """Every word of a command that has `old` in it, with `new` in its place."""
    changes = []
    text = place.docker.text
    for word in by.command.words if by.is_editable else ():
        at = text.find(old, word.start, word.end)
        if at >= 0:
            changes.append(Change(at, at + len(old), new))
    return edits_of(place.dockerfile, changes)


def index_switched(place: Place, one: Installed, old: str, new: str) -> tuple[Edit, ...]:
    """Another package index, wherever the old one is written: command, requirements file or variable."""
    found = word_replaced(place, one.by, old, new)
    for file in place.files_of(one.by):
        for option in file.options if file.path.endswith((".txt", ".in")) else ():
            if old in option.value:
                start = offset_of(file.text, option.line)
                at = file.text.find(old, start)
                found += edits_of(place.source(file.path), [Change(at, at + len(old), new)])
    if found:
        return found
    for step in place.steps:
        if step.word in ("ENV", "ARG") and any(old in value for value in step.values):
            return _words_replaced(place, step, old, new)
    return ()


def index_added(place: Place, one: Installed, address: str) -> tuple[Edit, ...]:
    """One more index for the command that installs a package, written where the package is."""
    source = place.source(one.asked.path)
    if one.by.is_uv:
        return ()  # uv takes a package from the first index that has its name: which order, a person decides
    if one.asked.path != place.docker.path:
        if not _is_requirements(one.asked):
            return ()
        first = min(asked.line for asked in place.files[one.asked.path].asked)
        return (insertion(source, first, [f"--extra-index-url {address}"]),)
    return with_flag(place, one.by, f"--extra-index-url {address}")


def system_packages_added(place: Place, before: Instruction, wanted: Iterable[str]) -> tuple[Edit, ...]:
    """System packages, there before an instruction: in a list that exists, or in one of their own."""
    names = [name for name in wanted if name not in place.system_packages]
    mine = {id(step) for step in place.stage.instructions}
    lists = [
        one
        for one in place.system
        if id(one.instruction) in mine
        and one.instruction.first <= before.first
        and one.packages
        and not one.instruction.is_json
    ]
    if not names:
        return ()
    if place.base.system == "alpine":
        line = f"RUN apk add --no-cache {' '.join(names)}"
    elif place.base.system.startswith(("debian", "ubuntu")):
        line = (
            f"RUN apt-get update && apt-get install -y --no-install-recommends {' '.join(names)}"
            " && rm -rf /var/lib/apt/lists/*"
        )
    else:
        return ()
    if lists:
        at = lists[-1].end
        return edits_of(place.dockerfile, [Change(at, at, f" {' '.join(names)}")])
    if not is_root_at(place, before):
        return ()
    return (insertion(place.dockerfile, above(place, before), [line]),)


def above(place: Place, step: Instruction) -> int:
    """The line for something new before an instruction: above the comments that belong to it."""
    lines = lines_of(place.docker.text)
    line = step.first
    while line > 1 and lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def is_root_at(place: Place, step: Instruction) -> bool:
    users = [s.values[0] for s in place.steps if s.word == "USER" and s.first < step.first and s.values]
    return not users or users[-1].partition(":")[0] in ("root", "0")


def lines_added_behind(place: Place, step: Instruction, lines: Iterable[str]) -> tuple[Edit, ...]:
    return (insertion(place.dockerfile, step.last + 1, lines),)


def nearest_cuda_tag(base: Base, major: int, wheel: Version | None = None, **wanted: str) -> str | None:
    """The tag of nvidia/cuda with this major that differs least from the given base."""
    flavour = wanted.get("flavour", base.flavour or "runtime")
    cudnn = wanted.get("cudnn", base.cudnn)
    system = wanted.get("system", base.system)

    def distance(tag: str) -> tuple[object, ...]:
        one = read_base(f"nvidia/cuda:{tag}")
        assert one.cuda is not None, f"{tag} of the curated list names a CUDA"
        minor = 0 if wheel is None else abs(one.cuda.minor - wheel.minor)
        same = one.flavour != flavour, bool(one.cudnn) != bool(cudnn), one.system != system
        return (*same, minor, -one.cuda.minor, one.system)

    maker = re.match(r"[a-z]*", base.system)
    of_maker = f"-{maker[0]}" if maker else ""  # commands for dnf mean nothing where apt is
    same = [tag for tag in catalog().cuda_tags if int(tag.partition(".")[0]) == major and of_maker in tag]
    return min(same, key=distance) if same else None


def with_python(place: Place, other: str, known: tuple[str, ...]) -> str | None:
    """The base with another Python: that tag of python, or CUDA on a supported system with that Python."""
    base = place.base
    if place.has_own_python:
        return None
    if base.family == "python" and base.tag is not None:
        tag = re.sub(r"^(?:latest(?=-|$)|3(?:\.\d+){0,2}(?:[a-z]+\d+)?)", other, base.tag)
        return f"{base.reference.rpartition(':')[0]}:{tag}" if tag != base.tag else None
    if base.family == "cuda" and base.cuda is not None:
        supported = [s for s, ends in catalog().systems.items() if ends >= place.target.today]
        for system in sorted(supported, reverse=True):
            near = nearest_cuda_tag(base, base.cuda.major, base.cuda, system=system)
            if catalog().system_pythons.get(system) in known and near is not None and near.endswith(system):
                return f"{base.name}:{near}"
    return None


def torch_tag(base: Base, torch: Version) -> str | None:
    """The tag of pytorch/pytorch with this torch, in the flavour that is used now."""
    known = [tag for tag in catalog().torch_tags if tag.startswith(f"{torch.base_version}-")]
    return f"{known[0]}-{base.flavour or 'runtime'}" if known else None


def supported_python(place: Place, today: date) -> str | None:
    """The oldest Python that is looked after, and that the pinned torch has wheels for."""
    pythons = [version for version, ends in catalog().pythons.items() if ends >= today]
    torch = place.torch
    if torch is not None and torch.row is not None:
        pythons = [version for version in pythons if version in torch.row.pythons]
    return min(pythons, key=Version) if pythons else None

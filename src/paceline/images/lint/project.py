"""Types of the image check: the project, the target machine, findings and edits.

A project is text: a Dockerfile and the requirement files it installs, by their path in the build context.
Nothing here reads or writes a file; `lint/files.py` does.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from typing import NamedTuple

DOCKERFILE = "Dockerfile"


@dataclass(frozen=True, slots=True)
class Source:
    """One text file, by its path in the build context (with `/`)."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """`files` holds the Dockerfile, every requirement and constraint file, and .dockerignore, if there.

    `names` are the other paths of the build context that are known to exist; their text is not read.
    `code` holds the scripts and Python files of the context: they are read, and never changed. `paths` is
    every file of the context, or None where the list is not complete.
    """

    files: tuple[Source, ...]
    dockerfile: str = DOCKERFILE
    names: frozenset[str] = frozenset()
    code: tuple[Source, ...] = ()
    paths: frozenset[str] | None = None
    runnable: frozenset[str] | None = None  # those of `paths` that may be executed; None: not known

    def has(self, path: str) -> bool:
        return any(source.path == path for source in self.files)

    def text(self, path: str) -> str:
        return next(source.text for source in self.files if source.path == path)

    def code_text(self, path: str) -> str | None:
        """The text of a script or a Python file; None if unknown."""
        return next((source.text for source in (*self.code, *self.files) if source.path == path), None)

    def with_text(self, path: str, text: str) -> "Project":
        """The same project with this text under this path, changed or added."""
        if not self.has(path):
            return replace(self, files=(*self.files, Source(path, text)))
        files = tuple(Source(path, text) if source.path == path else source for source in self.files)
        return replace(self, files=files)

    @property
    def fingerprint(self) -> str:
        """Two attempts with the same fingerprint would build the same."""
        digest = hashlib.sha256()
        for source in sorted(self.files, key=lambda source: source.path):
            digest.update(f"{source.path}\0{len(source.text)}\0{source.text}".encode())
        return digest.hexdigest()


class Kind(Enum):
    CPU = "cpu"
    GPU = "gpu"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of the image. Unset properties are not checked."""

    today: date  # which base images have ended is a question of the day
    kind: Kind = Kind.UNKNOWN
    arch: str | None = None  # the GPU's, such as "sm_90"
    driver: int | None = None  # NVIDIA's major version on the host, such as 535
    platform: str = "linux/amd64"


class Level(Enum):
    PROBLEM = "problem"  # the build, the import or the run fails
    WARNING = "warning"  # it works, and costs: size, safety, or luck
    NOTE = "note"  # unchecked, or for a person to decide


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `first` to `last` (from 1, both included) of a file become `new`.

    `last == first - 1` inserts before `first`. `old` is the current text: an edit of a text that has
    changed meanwhile is refused. A file that does not exist is made by an edit of lines 1 to 0.
    """

    path: str
    first: int
    last: int
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One conflict. `pattern` is its number, `id` its name in docs/reference/image-checks.md."""

    id: str
    pattern: int
    level: Level
    path: str
    line: int
    why: str
    evidence: str
    advice: str
    edits: tuple[Edit, ...] = ()
    asks: bool = False  # the edits change what the user pinned: applied only where the user agreed
    log_line: str | None = field(default=None)  # for findings from a build log: the matched line

    @property
    def key(self) -> tuple[str, str, int]:
        """Findings with equal keys are equal."""
        return self.id, self.path, self.line

    @property
    def is_automatic(self) -> bool:
        return bool(self.edits) and not self.asks


# Lines end at "
# " alone, as BuildKit counts them; a "
# " before it belongs to the line.


class Change(NamedTuple):
    """The characters from `start` up to `end` of a text become `new`."""

    start: int
    end: int
    new: str


def lines_of(text: str) -> list[str]:
    """The lines with their ends; joined, they are the text."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def line_at(text: str, offset: int) -> int:
    """The number, from 1, of the line that the character belongs to."""
    return text.count("\n", 0, offset) + 1


def offset_of(text: str, line: int) -> int:
    """Offset of a line; the text's length for the line after the last."""
    return sum(len(line) for line in lines_of(text)[: line - 1])


def newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def edits_of(source: Source, changes: Iterable[Change]) -> tuple[Edit, ...]:
    """The changes as edits of whole lines; changes on the same lines become one edit."""
    groups: list[list[Change]] = []
    last_line = 0
    for change in sorted(changes):
        first = line_at(source.text, change.start)
        if groups and first <= last_line:
            groups[-1].append(change)
        else:
            groups.append([change])
        last_line = max(last_line, line_at(source.text, change.end))
    return tuple(_edit(source, group) for group in groups)


def _edit(source: Source, group: list[Change]) -> Edit:
    text = source.text
    first = line_at(text, group[0].start)
    last = line_at(text, group[-1].end)
    start = offset_of(text, first)
    end = offset_of(text, last + 1)
    parts = []
    at = start
    for change in group:
        parts += [text[at : change.start], change.new]
        at = change.end
    return Edit(source.path, first, last, text[start:end], "".join(parts) + text[at:end])


def insertion(source: Source, before_line: int, lines: Iterable[str]) -> Edit:
    """New lines before a line; behind the last line, a missing end of line is added first."""
    end = newline_of(source.text)
    new = "".join(f"{line}{end}" for line in lines)
    existing = lines_of(source.text)
    if before_line > len(existing) and existing and not existing[-1].endswith("\n"):
        return Edit(source.path, len(existing), len(existing), existing[-1], f"{existing[-1]}{end}{new}")
    return Edit(source.path, before_line, before_line - 1, "", new)


def deletion(source: Source, first: int, last: int) -> Edit:
    return Edit(source.path, first, last, "".join(lines_of(source.text)[first - 1 : last]), "")

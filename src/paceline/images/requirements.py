"""What does a requirements file ask for? Each line's package or option, with its place in the text.

pip's format: `#` behind a blank begins a comment, a backslash continues a line, an option begins with `-`.
Names and version ranges are read by `packaging`.
"""

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from paceline.images.text import lines_of

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
class Asked:
    """One package that shall be installed, and where that is written."""

    name: str  # canonical; empty where a path or an address does not tell
    text: str
    path: str
    start: int
    end: int
    line: int
    requirement: Requirement | None = None  # None: an address or a path
    has_hash: bool = False
    is_literal: bool = True  # no variable in it, no escape: may be edited where it stands

    @property
    def specifier(self) -> SpecifierSet:
        return SpecifierSet() if self.requirement is None else self.requirement.specifier

    @property
    def pin(self) -> Version | None:
        """The version, where exactly one is allowed."""
        exact = [one for one in self.specifier if one.operator in ("==", "===")]
        if len(exact) != 1 or "*" in exact[0].version:
            return None
        try:
            return Version(exact[0].version)
        except InvalidVersion:
            return None

    def with_range(self, said: str) -> str:
        """The same words with another range of versions: name, extras and marker stay as they are written."""
        head, marker = _NAME_AND_EXTRAS.match(self.text), _MARKER.search(self.text)
        return f"{head[0].rstrip() if head else self.name}{said}{marker[0] if marker else ''}"

    @property
    def is_url(self) -> bool:
        return self.requirement is None or self.requirement.url is not None

    def is_meant_for(self, python: str | None) -> bool:
        """Does its marker hold on Linux and x86 with this Python? Not known: no."""
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
    """`--extra-index-url X` on a line of its own."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class RequirementFile:
    path: str
    text: str
    asked: tuple[Asked, ...]
    options: tuple[Option, ...]
    notes: tuple[str, ...] = ()  # lines that cannot be read


def read_requirements(path: str, text: str) -> RequirementFile:
    asked: list[Asked] = []
    options: list[Option] = []
    notes: list[str] = []
    lines = lines_of(text)
    at, number = 0, 0
    while number < len(lines):
        first, start = number + 1, at
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
        found = read_asked(core, path, begins, begins + len(core), first, has_hash=core != content)
        if found is None:
            notes.append(f"{path}:{first}: {core}")
        else:
            asked.append(found)
    return RequirementFile(path, text, tuple(asked), tuple(options), tuple(notes))


def _option(content: str, line: int) -> Option:
    name, _, value = content.replace("=", " ", 1).partition(" ")
    short = {"-r": "--requirement", "-c": "--constraint", "-i": "--index-url", "-f": "--find-links"}
    return Option(short.get(name, name).removeprefix("--"), value.strip(), line)


def read_asked(
    text: str, path: str, start: int, end: int, line: int, *, has_hash: bool = False, is_literal: bool = True
) -> Asked | None:
    """A package as pip takes it: `name[extra]>=1`, `name @ address`, an address, a path; None: not that."""
    bare = re.sub(r"^(-e|--editable)[= ]\s*", "", text)
    name, requirement = "", None
    if _is_address(bare):
        egg, last = _EGG.search(bare), _URL_NAME.search(bare.partition("#")[0].rstrip("/"))
        name = egg[1] if egg else (last[1] if last and "://" in bare else "")
    else:
        try:
            requirement = Requirement(bare)
        except InvalidRequirement:
            return None
        name = requirement.name
    return Asked(
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

"""The skills and slash commands that this package ships, as files to install.

A skill is a folder with `SKILL.md`, whose YAML front matter names and describes it; a slash command is one
Markdown file. Both are called units here: a unit is installed, kept or removed by its name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NewType

import yaml

from paceline.skills.places import Agent

FilePath = NewType("FilePath", str)  # relative to an agent's folder, with `/`

ENTRY = "SKILL.md"
# In SKILL.md and in slash commands: a user's copy with this sentence sends the agent to the project's copy.
DEFERS_TO_PROJECT = "follow that copy instead"
_ROOT = "bundled"
_FRONT_MATTER = re.compile(r"---\n(?P<header>.*?)^---\n", re.M | re.S)
_OF_COMMANDS = {Agent.OPENCODE: ("description",)}  # front matter that an agent reads; others read all of it


class UnitKind(Enum):
    SKILL = "skill"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A skill or a slash command. The entry file is the one that an agent searches for."""

    kind: UnitKind
    name: str
    description: str
    files: Mapping[FilePath, bytes]

    @property
    def entry(self) -> FilePath:
        return entry_path(self.kind, self.name)


def entry_path(kind: UnitKind, name: str) -> FilePath:
    if kind is UnitKind.SKILL:
        return FilePath(f"skills/{name}/{ENTRY}")
    return FilePath(f"commands/{name}.md")


def bundle(agent: Agent) -> list[Unit]:
    """All units in the form that `agent` reads: skills first, each kind by name."""
    root = files("paceline.skills").joinpath(_ROOT)
    folders = sorted(root.joinpath("skills").iterdir(), key=lambda folder: folder.name)
    pages = sorted(root.joinpath("commands").iterdir(), key=lambda page: page.name)
    skills = [_skill(folder) for folder in folders if folder.is_dir()]
    return [*skills, *(_command(page, agent) for page in pages if page.name.endswith(".md"))]


def is_script(path: FilePath) -> bool:
    """Whether the installed file is executable. A wheel does not keep the mode of a file."""
    return path.endswith(".sh")


def split_front_matter(text: str) -> tuple[dict[str, object], str]:
    """The YAML between the first two lines `---`, and what follows it."""
    found = _FRONT_MATTER.match(text)
    assert found is not None, "a bundled page begins with front matter"
    fields = yaml.safe_load(found["header"])
    assert isinstance(fields, dict), "front matter is a mapping"
    return fields, text[found.end() :]


def _skill(folder: Traversable) -> Unit:
    contents = {FilePath(f"skills/{path}"): data for path, data in _walk(folder, folder.name)}
    fields, _ = split_front_matter(contents[entry_path(UnitKind.SKILL, folder.name)].decode())
    return Unit(kind=UnitKind.SKILL, name=folder.name, description=str(fields["description"]), files=contents)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        path = f"{prefix}/{item.name}"
        if item.is_dir():
            yield from _walk(item, path)
        else:
            yield path, item.read_bytes()


def _command(page: Traversable, agent: Agent) -> Unit:
    name = page.name.removesuffix(".md")
    fields, body = split_front_matter(page.read_text(encoding="utf-8"))
    kept = _OF_COMMANDS.get(agent, tuple(fields))
    header = yaml.safe_dump({key: fields[key] for key in kept}, sort_keys=False, width=1000)
    text = f"---\n{header}---\n{body}"
    contents = {entry_path(UnitKind.COMMAND, name): text.encode()}
    return Unit(kind=UnitKind.COMMAND, name=name, description=str(fields["description"]), files=contents)

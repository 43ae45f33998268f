"""What is installed where: every copy of a skill or slash command, and the one that an agent follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.skills.bundle import DEFERS_TO_PROJECT, Unit, UnitKind
from paceline.skills.changes import digest
from paceline.skills.install import file_digest, read_record
from paceline.skills.places import (
    Agent,
    Place,
    UserFolders,
    choose_effective,
    command_places,
    skill_places,
)


class CopyState(Enum):
    CURRENT = "current"  # as this version ships it
    OUTDATED = "outdated"  # as another version shipped it
    EDITED = "edited"
    YOURS = "yours"  # not installed by paceline


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    place: Place
    path: Path  # of the entry file
    state: CopyState
    edited: tuple[str, ...]  # files that differ from what was installed
    is_effective: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    agent: Agent
    unit: Unit
    copies: tuple[Copy, ...]  # lowest precedence first

    @property
    def effective(self) -> Copy | None:
        return next((copy for copy in self.copies if copy.is_effective), None)


def list_units(agent: Agent, units: Sequence[Unit], user: UserFolders, project: Path) -> list[Listed]:
    return [_listed(agent, unit, user, project) for unit in units]


def _listed(agent: Agent, unit: Unit, user: UserFolders, project: Path) -> Listed:
    search = skill_places if unit.kind is UnitKind.SKILL else command_places
    places = [place for place in search(agent, user, project) if (place.folder / unit.entry).is_file()]
    effective = choose_effective([(place, _defers(place.folder / unit.entry)) for place in places])
    copies = tuple(_copy(unit, place, is_effective=place is effective) for place in places)
    return Listed(agent=agent, unit=unit, copies=copies)


def _defers(entry: Path) -> bool:
    return DEFERS_TO_PROJECT in entry.read_text(encoding="utf-8", errors="replace")


def _copy(unit: Unit, place: Place, *, is_effective: bool) -> Copy:
    record = read_record(place.folder).files
    seen = {path: file_digest(place.folder / path) for path in unit.files}
    shipped = {path: digest(data) for path, data in unit.files.items()}
    edited = tuple(
        path
        for path in unit.files
        if seen[path] is not None and seen[path] not in (shipped[path], record.get(path))
    )
    if unit.entry not in record and seen[unit.entry] != shipped[unit.entry]:
        state = CopyState.YOURS
        edited = ()
    elif edited:
        state = CopyState.EDITED
    else:
        state = CopyState.CURRENT if seen == shipped else CopyState.OUTDATED
    path = place.folder / unit.entry
    return Copy(place=place, path=path, state=state, edited=edited, is_effective=is_effective)

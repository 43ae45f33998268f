"""Which files an installation of skills writes, keeps and removes (pure).

Three digests decide about a file: of what is shipped, of what is there, and of what was installed before
(the record). A file whose content is neither shipped nor recorded is the user's: it is never overwritten and
never removed. A skill of the user with the same name is left alone as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import NewType

from paceline.skills.bundle import FilePath

Digest = NewType("Digest", str)  # sha256:…, or a word for what is no regular file

EDITED = "edited since it was installed"
NOT_OURS = "not installed by paceline"


class Action(Enum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    path: FilePath
    action: Action
    reason: str = ""  # of what is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedUnit:
    entry: FilePath
    digests: Mapping[FilePath, Digest]


def digest(data: bytes) -> Digest:
    return Digest(f"sha256:{sha256(data).hexdigest()}")


def plan_install(
    units: Sequence[ShippedUnit],
    retired: Sequence[FilePath],
    present: Mapping[FilePath, Digest],
    record: Mapping[FilePath, Digest],
) -> list[Change]:
    """`retired`: recorded files that this version does not ship any more."""
    changes = [change for unit in units for change in _plan_unit(unit, present, record)]
    changes += plan_uninstall(retired, present, record)
    return changes


def plan_uninstall(
    paths: Sequence[FilePath], present: Mapping[FilePath, Digest], record: Mapping[FilePath, Digest]
) -> list[Change]:
    """Of recorded files, those that are there: unchanged ones are removed, edited ones are kept."""
    return [
        Change(path=path, action=Action.REMOVED)
        if present[path] == record[path]
        else Change(path=path, action=Action.KEPT, reason=EDITED)
        for path in paths
        if path in present
    ]


def updated_record(
    changes: Sequence[Change], shipped: Mapping[FilePath, Digest], record: Mapping[FilePath, Digest]
) -> dict[FilePath, Digest]:
    """The record after these changes. A kept file stays in it, so that its edit is seen again."""
    written = {Action.CREATED, Action.UPDATED, Action.UNCHANGED}
    result = dict(record)
    for change in changes:
        if change.action in written:
            result[change.path] = shipped[change.path]
        elif change.action is Action.REMOVED:
            result.pop(change.path, None)
    return result


def _plan_unit(
    unit: ShippedUnit, present: Mapping[FilePath, Digest], record: Mapping[FilePath, Digest]
) -> Iterator[Change]:
    has_entry = unit.entry in present
    is_ours = unit.entry in record or present.get(unit.entry) == unit.digests[unit.entry]
    if has_entry and not is_ours:
        yield Change(path=unit.entry, action=Action.KEPT, reason=NOT_OURS)
        return
    for path, shipped in unit.digests.items():
        yield _plan_file(path, shipped, present.get(path), record.get(path))


def _plan_file(path: FilePath, shipped: Digest, seen: Digest | None, recorded: Digest | None) -> Change:
    if seen is None:
        return Change(path=path, action=Action.CREATED)
    if seen == shipped:
        return Change(path=path, action=Action.UNCHANGED)
    if seen == recorded:
        return Change(path=path, action=Action.UPDATED)
    reason = NOT_OURS if recorded is None else EDITED
    return Change(path=path, action=Action.KEPT, reason=reason)

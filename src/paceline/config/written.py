"""What was written where, before anyone asks what it means?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.config.values import Raw
from paceline.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One setting as one source wrote it. `parts` says where the items of a list or mapping are."""

    key: str
    raw: Raw
    where: str
    parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    entries: tuple[Written, ...] = ()
    problems: tuple[Problem, ...] = ()

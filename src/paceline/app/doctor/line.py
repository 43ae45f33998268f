"""What does `paceline doctor` say about one thing? How it is, in words, and what to do if it is not well."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # something will be slow or missing; a plain `paceline train` works
    WRONG = "wrong"  # a plain `paceline train` does not work

    @property
    def glyph(self) -> str:
        return {Level.OK: "✔", Level.WARNING: "⚠", Level.WRONG: "✕"}[self]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    level: Level
    text: str
    fix: str = ""  # what to type, or to read


def is_ready(lines: list[Line]) -> bool:
    return all(line.level is not Level.WRONG for line in lines)

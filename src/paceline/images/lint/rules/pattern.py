"""What is a pattern of conflict? A name, what is wrong, what is done; and a finding made of it."""

from dataclasses import dataclass

from paceline.core.redaction import redact
from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.view import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One row of docs/reference/image-checks.md."""

    number: int
    id: str
    what: str  # the conflict, in one sentence
    fix: str  # what is changed, or advised
    level: Level = Level.PROBLEM

    def found(
        self,
        place: Place,
        at: Asked | Instruction,
        why: str,
        evidence: str,
        advice: str,
        edits: tuple[Edit, ...] = (),
        *,
        asks: bool = False,
        level: Level | None = None,
    ) -> Finding:
        path, line = (at.path, at.line) if isinstance(at, Asked) else (place.docker.path, at.first)
        return Finding(
            id=self.id,
            pattern=self.number,
            level=level or self.level,
            path=path,
            line=line,
            why=redact(why),
            evidence=redact(evidence),
            advice=redact(advice),
            edits=edits,
            asks=asks,
        )

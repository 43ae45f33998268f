"""`Pattern`: the name, description and remedy of one conflict, and the findings made of it."""

from dataclasses import dataclass

from paceline.core.redaction import redact
from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.view import StageView


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One row of docs/reference/image-checks.md."""

    number: int
    id: str
    what: str  # the conflict, in one sentence
    fix: str  # change or advice
    level: Level = Level.PROBLEM

    def finding(
        self,
        view: StageView,
        at: PackageSpec | Instruction,
        why: str,
        evidence: str,
        advice: str,
        edits: tuple[Edit, ...] = (),
        *,
        asks: bool = False,
        level: Level | None = None,
    ) -> Finding:
        path, line = (at.path, at.line) if isinstance(at, PackageSpec) else (view.docker.path, at.first)
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

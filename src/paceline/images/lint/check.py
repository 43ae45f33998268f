"""What may others ask about an image? Four questions, all pure.

    check(project, target)          what is wrong, before anything is built
    from_log(log, project, target)  what a failed build's log says is wrong
    apply(project, findings)        the project with these findings mended
    mend(project, target)           check and apply until nothing more can be mended

Least change: lines outside an edit stay byte for byte, and mending twice changes nothing more.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.core.redaction import redact
from paceline.images.lint.build_log import findings_of
from paceline.images.lint.project import Edit, Finding, Level, Project, Target, lines_of
from paceline.images.lint.rules import RULES
from paceline.images.lint.view import places

_LEVELS = list(Level)
_OTHER_ESCAPE = re.compile(r"\A\ufeff?(?:#[^\n]*\n)*#\s*escape\s*=\s*`", re.I)
# Every round mends at least one finding for good; more rounds than patterns times stages would be a bug.
_MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FixResult:
    project: Project
    applied: tuple[Finding, ...]  # in this order, each found in what the ones before it left
    left: tuple[Finding, ...]  # what is found in `project`


def check(project: Project, target: Target) -> tuple[Finding, ...]:
    """Everything that is wrong, worst first. Raises ConfigError where the Dockerfile cannot be read."""
    return tuple(sorted(_findings(project, target), key=lambda one: _LEVELS.index(one.level)))


def _findings(project: Project, target: Target) -> list[Finding]:
    """In the order in which they are mended; a finding of two stages (the same line) counts once."""
    seen: dict[tuple[str, str, int], Finding] = {}
    there = places(project, target)
    # With another sign for continued lines, where words stand is not certain: then nothing is edited.
    is_certain = not _OTHER_ESCAPE.match(project.text(project.dockerfile))
    for rule in RULES:
        for place in there:
            for one in rule(place):
                seen.setdefault(one.key, one if is_certain else replace(one, edits=()))
    return list(seen.values())


def findings_from_log(log: str, project: Project, target: Target) -> tuple[Finding, ...]:
    """What the log of a failed build (or of a failed import in the image) says is wrong, with edits."""
    return findings_of(log, places(project, target))


def apply_findings(project: Project, findings: Iterable[Finding], *, agreed: bool = False) -> Project:
    """The project with the findings' edits; those that ask are left out unless the user `agreed`.

    Where two findings want the same lines, the first one has them: check again for the other.
    """
    return _applied(project, findings, agreed=agreed)[0]


def _applied(
    project: Project, findings: Iterable[Finding], *, agreed: bool
) -> tuple[Project, tuple[Finding, ...]]:
    taken: list[Edit] = []
    used = []
    for one in findings:
        wanted = one.is_automatic or (agreed and one.edits)
        if wanted and not any(_overlap(edit, other) for edit in one.edits for other in taken):
            taken += one.edits
            used.append(one)
    # From the last line to the first, so that the numbers of the edits still to come stay true.
    for edit in sorted(taken, key=lambda edit: (edit.path, edit.first, edit.last), reverse=True):
        project = _edited(project, edit)
    return project, tuple(used)


def _overlap(edit: Edit, other: Edit) -> bool:
    """Do they want the same lines, or a place between two of them?"""
    if edit.path != other.path:
        return False
    first, second = sorted((edit, other), key=lambda e: (e.first, e.last))
    return second.first <= max(first.last, first.first)


def _edited(project: Project, edit: Edit) -> Project:
    text = project.text(edit.path) if project.has(edit.path) else ""
    lines = lines_of(text)
    assert "".join(lines[edit.first - 1 : edit.last]) == edit.old, "an edit is made for the text it changes"
    return project.with_text(edit.path, "".join([*lines[: edit.first - 1], edit.new, *lines[edit.last :]]))


def apply_fixes(
    project: Project, target: Target, *, also: Iterable[Finding] = (), agreed: bool = False
) -> FixResult:
    """All that can be mended, one finding after the other, until nothing changes.

    `also`: what was found in this project by other means (a log, a resolver); it is mended first.
    """
    known = {one.key for one in _findings(project, target)}
    others = [one for one in also if one.key not in known]
    project, first = _applied(project, others, agreed=agreed)
    states, applied = _until_nothing_changes(project, target, agreed=agreed)
    left = (*check(states[-1], target), *(one for one in others if one not in first))
    return FixResult(project=states[-1], applied=(*first, *applied), left=left)


def _until_nothing_changes(
    project: Project, target: Target, *, agreed: bool
) -> tuple[list[Project], list[Finding]]:
    """The states from the given project to the mended one, and the finding that led to each.

    Two stages may want the same line in two ways. Then the states go round in a circle: what led round it is
    left out, and a person decides.
    """
    states, applied = [project], list[Finding]()
    contradictory: set[tuple[str, str, int]] = set()
    for _ in range(_MAX_ROUNDS):
        step = _next(states[-1], target, contradictory, agreed=agreed)
        if step is None:
            break
        after, finding = step
        if after in states:
            begin = states.index(after)
            contradictory |= {one.key for one in (*applied[begin:], finding)}
            states, applied = states[: begin + 1], applied[:begin]
        else:
            states, applied = [*states, after], [*applied, finding]
    return states, applied


def _next(
    project: Project, target: Target, without: set[tuple[str, str, int]], *, agreed: bool
) -> tuple[Project, Finding] | None:
    for one in _findings(project, target):
        if one.key not in without:
            after, used = _applied(project, [one], agreed=agreed)
            if used and after != project:
                return after, one
    return None


def changed_files(before: Project, after: Project) -> dict[str, str]:
    """The files that differ, with their new text: what has to be written over a copy of the context."""
    old = {one.path: one.text for one in before.files}
    return {one.path: one.text for one in after.files if old.get(one.path) != one.text}


def unified_diff(before: Project, after: Project) -> str:
    """All changes as one patch for `patch -p1` or `git apply`: exact, so with what the files hold."""
    parts: list[str] = []
    for path, text in changed_files(before, after).items():
        old = before.text(path) if before.has(path) else ""
        name = f"a/{path}" if before.has(path) else "/dev/null"
        for line in difflib.unified_diff(lines_of(old), lines_of(text), name, f"b/{path}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def redacted_diff(project: Project, finding: Finding) -> str:
    """What one finding would change, for people and reports: secrets beside it are hidden."""
    return redact(unified_diff(project, apply_findings(project, [finding], agreed=True)))

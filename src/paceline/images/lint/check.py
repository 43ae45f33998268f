"""Check and fix a project: run all rules, apply findings, and repeat until nothing changes. Pure.

    check(project, target)                   problems, before anything is built
    findings_from_log(log, project, target)  problems that the log of a failed build shows
    apply_findings(project, findings)        the project with these findings fixed
    apply_fixes(project, target)             check and apply until nothing more can be fixed

Minimal change: lines outside an edit stay byte for byte, and a second fix changes nothing more.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.core.redaction import redact
from paceline.images.lint.build_log import findings_of
from paceline.images.lint.project import Edit, Finding, Level, Project, Target, lines_of
from paceline.images.lint.rules import RULES
from paceline.images.lint.view import stage_views

_LEVELS = list(Level)
_OTHER_ESCAPE = re.compile(r"\A\ufeff?(?:#[^\n]*\n)*#\s*escape\s*=\s*`", re.I)
# Every round fixes at least one finding for good; more rounds than patterns times stages would be a bug.
_MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FixResult:
    project: Project
    applied: tuple[Finding, ...]  # in this order, each found after the previous ones were applied
    left: tuple[Finding, ...]  # findings in `project`


def check(project: Project, target: Target) -> tuple[Finding, ...]:
    """Everything that is wrong, worst first. Raises ConfigError where the Dockerfile cannot be read."""
    return tuple(sorted(_findings(project, target), key=lambda finding: _LEVELS.index(finding.level)))


def _findings(project: Project, target: Target) -> list[Finding]:
    """In the order in which they are fixed; a finding of two stages (the same line) counts once."""
    seen: dict[tuple[str, str, int], Finding] = {}
    views = stage_views(project, target)
    # With another escape character, positions of words are not certain: then nothing is edited.
    is_certain = not _OTHER_ESCAPE.match(project.text(project.dockerfile))
    for rule in RULES:
        for view in views:
            for finding in rule(view):
                seen.setdefault(finding.key, finding if is_certain else replace(finding, edits=()))
    return list(seen.values())


def findings_from_log(log: str, project: Project, target: Target) -> tuple[Finding, ...]:
    """Findings from the log of a failed build (or of a failed import in the image), with edits."""
    return findings_of(log, stage_views(project, target))


def apply_findings(project: Project, findings: Iterable[Finding], *, agreed: bool = False) -> Project:
    """The project with the findings' edits; those that need consent are left out unless the user `agreed`.

    If two findings edit the same lines, the first one is applied: check again for the other.
    """
    return _applied(project, findings, agreed=agreed)[0]


def _applied(
    project: Project, findings: Iterable[Finding], *, agreed: bool
) -> tuple[Project, tuple[Finding, ...]]:
    taken: list[Edit] = []
    used = []
    for finding in findings:
        is_applied = finding.is_automatic or (agreed and finding.edits)
        if is_applied and not any(_overlap(edit, other) for edit in finding.edits for other in taken):
            taken += finding.edits
            used.append(finding)
    # From the last line to the first, so that the line numbers of the remaining edits stay valid.
    for edit in sorted(taken, key=lambda edit: (edit.path, edit.first, edit.last), reverse=True):
        project = _edited(project, edit)
    return project, tuple(used)


def _overlap(edit: Edit, other: Edit) -> bool:
    """Whether they edit the same lines, or a position between two of them."""
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
    """Fix all that can be fixed, one finding after the other, until nothing changes.

    `also`: findings of this project by other means (a log, a resolver); they are fixed first.
    """
    known = {finding.key for finding in _findings(project, target)}
    extra = [finding for finding in also if finding.key not in known]
    project, first = _applied(project, extra, agreed=agreed)
    states, applied = _until_nothing_changes(project, target, agreed=agreed)
    left = (*check(states[-1], target), *(finding for finding in extra if finding not in first))
    return FixResult(project=states[-1], applied=(*first, *applied), left=left)


def _until_nothing_changes(
    project: Project, target: Target, *, agreed: bool
) -> tuple[list[Project], list[Finding]]:
    """The states from the given project to the fixed one, and the finding that led to each.

    Two stages may want the same line in two ways. Then the states go round in a circle: what led round it is
    left out, and a person decides.
    """
    states = [project]
    applied = list[Finding]()
    contradictory: set[tuple[str, str, int]] = set()
    for _ in range(_MAX_ROUNDS):
        step = _next(states[-1], target, contradictory, agreed=agreed)
        if step is None:
            break
        after, finding = step
        if after in states:
            begin = states.index(after)
            contradictory |= {finding.key for finding in (*applied[begin:], finding)}
            states = states[: begin + 1]
            applied = applied[:begin]
        else:
            states = [*states, after]
            applied = [*applied, finding]
    return states, applied


def _next(
    project: Project, target: Target, without: set[tuple[str, str, int]], *, agreed: bool
) -> tuple[Project, Finding] | None:
    for finding in _findings(project, target):
        if finding.key not in without:
            after, used = _applied(project, [finding], agreed=agreed)
            if used and after != project:
                return after, finding
    return None


def changed_files(before: Project, after: Project) -> dict[str, str]:
    """The files that differ, with their new text: what has to be written over a copy of the context."""
    old = {command.path: command.text for command in before.files}
    return {source.path: source.text for source in after.files if old.get(source.path) != source.text}


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
    """Diff of one finding, for users and reports; secrets in its context are redacted."""
    return redact(unified_diff(project, apply_findings(project, [finding], agreed=True)))

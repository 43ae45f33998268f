"""What may others ask about an image? Four questions, all pure.

    check(project, target)          what is wrong, before anything is built
    from_log(log, project, target)  what a failed build's log says is wrong
    apply(project, findings)        the project with these findings mended
    mend(project, target)           check and apply until nothing more can be mended

Least change: lines outside an edit stay byte for byte, and mending twice changes nothing more.
"""

from dataclasses import dataclass

from paceline.images.project import Finding, Project, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    project: Project
    applied: tuple[Finding, ...]  # in this order, each found in what the ones before it left
    left: tuple[Finding, ...]  # what is found in `project`


def check(project: Project, target: Target) -> tuple[Finding, ...]:
    """Everything that is wrong, worst first. Raises ConfigError where the Dockerfile cannot be read."""
    return ()


def from_log(log: str, project: Project, target: Target) -> tuple[Finding, ...]:
    """What the log of a failed build (or of a failed import in the image) says is wrong, with edits."""
    return ()


def apply(project: Project, findings: tuple[Finding, ...], *, agreed: bool = False) -> Project:
    """The project with the findings' edits; those that ask are left out unless the user `agreed`.

    Where two findings want the same lines, the first one has them: check again for the other.
    """
    return project


def mend(project: Project, target: Target, *, agreed: bool = False) -> Mended:
    """All that can be mended, one round of checks after the other, until nothing changes."""
    return Mended(project=project, applied=(), left=())


def changed(before: Project, after: Project) -> dict[str, str]:
    """The files that differ, with their new text: what has to be written over a copy of the context."""
    old = {one.path: one.text for one in before.files}
    return {one.path: one.text for one in after.files if old.get(one.path) != one.text}


def unified_diff(before: Project, after: Project) -> str:
    """All changes as one patch for `patch -p1` or `git apply`."""
    return ""

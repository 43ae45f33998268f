"""`paceline image check`: what is wrong with a Dockerfile, before it is built?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_options import image_options, target_of
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.image_advice import Advice
    from paceline.images.api import Mended
    from paceline.images.project import Finding, Project, Target
    from paceline.plan.codec import Json


@click.command("check")
@image_options
@click.option("--resolve", is_flag=True, help="Ask uv and the package index whether the versions fit at all.")
@click.option("--write", is_flag=True, help="Mend the files. [default: only show how]")
@click.option("--agree", is_flag=True, help="Also change what you pinned, where only that helps.")
@click.option(
    "--patch",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all fixes as one patch, for `patch -p1` or `git apply`.",
)
@common_options
def check(
    session: Session,
    *,
    folder: Path,
    dockerfile: Path | None,
    requirements: tuple[Path, ...],
    target: str | None,
    gpu: str | None,
    driver: int | None,
    platform: str,
    resolve: bool,
    write: bool,
    agree: bool,
    patch: Path | None,
) -> ExitCode:
    """Find conflicts in a Dockerfile and its requirements, and show how to mend them: CUDA of base and wheel,
    versions, Python, missing libraries and tools, deleted base images, and more. In seconds, with no network
    and no container engine; your files stay as they are unless you say --write. Exit code 8 when there is a
    problem that was not mended."""
    from paceline.app.image_advice import lint
    from paceline.app.image_check import load_project, write_project
    from paceline.images.api import mend, unified_diff

    place, wanted = session.folder / folder, target_of(target, gpu, driver, platform)
    named = session.placed(dockerfile)
    project = load_project(place, named, [session.folder / one for one in requirements])
    found = _found(session, project, wanted, resolves=resolve)
    mended = mend(project, wanted, also=tuple(found), agreed=agree)
    advice, silent = lint(project)
    if silent is not None:
        say(session, silent)
    if patch is not None:
        (session.folder / patch).parent.mkdir(parents=True, exist_ok=True)
        (session.folder / patch).write_text(unified_diff(project, mended.project), "utf-8", newline="")
    if write:
        for file in write_project(place, project, mended.project):
            say(session, f"wrote {file}")
    return _show(session, project, found, mended, advice, is_written=write)


def _found(session: Session, project: "Project", target: "Target", *, resolves: bool) -> "list[Finding]":
    from paceline.app.image_advice import resolve
    from paceline.images.api import check as look

    found = list(look(project, target))
    if resolves:
        asked = resolve(project, target)
        for note in asked.notes:
            say(session, note)
        known = {one.key for one in found}
        found += [one for one in asked.findings if one.key not in known]
    return found


def _show(
    session: Session,
    project: "Project",
    found: "list[Finding]",
    mended: "Mended",
    advice: "list[Advice]",
    *,
    is_written: bool,
) -> ExitCode:
    from paceline.images.project import Level

    later = [one for one in mended.applied if one.id not in {first.id for first in found}]
    rows: list[Json] = [_row(project, one) for one in found]
    rows += [_row(project, one, is_later=True) for one in later]
    judged = mended.left if is_written else found
    problems = [one for one in judged if one.level is Level.PROBLEM]
    answer: dict[str, Json] = {
        "fine": not problems,
        "written": is_written,
        "findings": rows,
        "mended": len(mended.applied),
        "hadolint": [
            {"code": one.code, "level": one.level, "line": one.line, "message": one.message} for one in advice
        ],
    }
    lines = [line for one in found for line in _lines(project, one)]
    lines += [f"hadolint {one.code} line {one.line}: {one.message}" for one in advice if one.level != "style"]
    emit(session, "image.check", answer, [*lines, _verdict(judged, mended, is_written=is_written)])
    return ExitCode.GATE_FAILED if problems else ExitCode.OK


def _row(project: "Project", one: "Finding", *, is_later: bool = False) -> "Json":
    from paceline.images.api import shown_diff

    return {
        "id": one.id,
        "pattern": one.pattern,
        "level": one.level.value,
        "file": one.path,
        "line": one.line,
        "why": one.why,
        "evidence": one.evidence,
        "advice": one.advice,
        "automatic": one.is_automatic,
        "asks": one.asks,
        "diff": "" if is_later else shown_diff(project, one),
        "found_after_other_fixes": is_later,
    }


def _lines(project: "Project", one: "Finding") -> list[str]:
    from paceline.images.api import shown_diff

    fix = "fix, with --agree" if one.asks and one.edits else "fix" if one.edits else "to do"
    return [
        f"{one.level.value:<8} {one.id}  {one.path}:{one.line}",
        f"  why       {one.why}",
        f"  evidence  {one.evidence}",
        f"  {fix:<9} {one.advice}",
        *(f"    {line}" for line in shown_diff(project, one).splitlines()),
    ]


def _verdict(judged: "list[Finding] | tuple[Finding, ...]", mended: "Mended", *, is_written: bool) -> str:
    from paceline.images.project import Level

    counts = [sum(one.level is level for one in judged) for level in Level]
    told = (
        f"{_counted(counts[0], 'problem')}, {_counted(counts[1], 'warning')}, {_counted(counts[2], 'note')}"
    )
    number = _counted(len(mended.applied), "fix", "fixes")
    done = f"; {number} written" if is_written else f"; {number} with --write" if mended.applied else ""
    return f"{'not fine' if counts[0] else 'fine'}: {told}{done}"


def _counted(number: int, word: str, many: str | None = None) -> str:
    return f"{number} {word if number == 1 else many or word + 's'}"

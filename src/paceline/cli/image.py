"""`paceline image`: check a Dockerfile and fix it, list supported versions; build, test and push."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_build import build, push
from paceline.cli.image_options import image_options, target_of
from paceline.cli.image_test import test
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode, ImageOptionError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.images.lint.check import FixResult
    from paceline.images.lint.external_tools import Advice
    from paceline.images.lint.matrix import TorchRow
    from paceline.images.lint.project import Finding, Project, Target
    from paceline.plan.codec import Json


@click.command("check")
@image_options
@click.option("--resolve", is_flag=True, help="Resolve the versions with uv and the package index.")
@click.option("--write", is_flag=True, help="Write the fixes to the files. [default: show them]")
@click.option(
    "--agree", is_flag=True, help="Also change pinned versions if nothing else resolves the conflict."
)
@click.option(
    "--patch",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Patch file to write all fixes to, for `patch -p1` or `git apply`.",
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
    """Find conflicts in a Dockerfile and its requirements, and show fixes: CUDA of base image and wheels,
    versions, Python, missing libraries and tools, deleted base images, and more. Takes seconds, without
    network or container engine. Files change only with --write. Exit code 8 if a problem remains."""
    from paceline.images.lint.check import apply_fixes, unified_diff
    from paceline.images.lint.external_tools import lint
    from paceline.images.lint.files import load_project, write_project

    context = session.folder / folder
    build_target = target_of(target, gpu, driver, platform)
    dockerfile_path = session.resolve_path(dockerfile)
    project = load_project(context, dockerfile_path, [session.folder / file for file in requirements])
    findings = _find(session, project, build_target, resolves=resolve)
    fixed = apply_fixes(project, build_target, also=tuple(findings), agreed=agree)
    advice, silent = lint(project)
    if silent is not None:
        print_message(session, silent)
    if patch is not None:
        (session.folder / patch).parent.mkdir(parents=True, exist_ok=True)
        (session.folder / patch).write_text(unified_diff(project, fixed.project), "utf-8", newline="")
    if write:
        for file in write_project(context, project, fixed.project):
            print_message(session, f"wrote {file}")
    return _show(session, project, findings, fixed, advice, is_written=write)


def _find(session: Session, project: "Project", target: "Target", *, resolves: bool) -> "list[Finding]":
    from paceline.images.lint.check import check as run_rules
    from paceline.images.lint.external_tools import resolve

    findings = list(run_rules(project, target))
    if resolves:
        resolution = resolve(project, target)
        for note in resolution.notes:
            print_message(session, note)
        keys = {finding.key for finding in findings}
        findings += [finding for finding in resolution.findings if finding.key not in keys]
    return findings


def _show(
    session: Session,
    project: "Project",
    findings: "list[Finding]",
    fixed: "FixResult",
    advice: "list[Advice]",
    *,
    is_written: bool,
) -> ExitCode:
    from paceline.images.lint.project import Level

    later = [finding for finding in fixed.applied if finding.id not in {first.id for first in findings}]
    rows: list[Json] = [_row(project, finding) for finding in findings]
    rows += [_row(project, finding, is_later=True) for finding in later]
    judged = fixed.left if is_written else findings
    problems = [finding for finding in judged if finding.level is Level.PROBLEM]
    data: dict[str, Json] = {
        "fine": not problems,
        "written": is_written,
        "findings": rows,
        "mended": len(fixed.applied),
        "hadolint": [
            {"code": finding.code, "level": finding.level, "line": finding.line, "message": finding.message}
            for finding in advice
        ],
    }
    lines = [line for finding in findings for line in _lines(project, finding)]
    lines += [
        f"hadolint {finding.code} line {finding.line}: {finding.message}"
        for finding in advice
        if finding.level != "style"
    ]
    emit(session, "image.check", data, [*lines, _verdict(judged, fixed, is_written=is_written)])
    return ExitCode.GATE_FAILED if problems else ExitCode.OK


def _row(project: "Project", finding: "Finding", *, is_later: bool = False) -> "Json":
    from paceline.images.lint.check import redacted_diff

    return {
        "id": finding.id,
        "pattern": finding.pattern,
        "level": finding.level.value,
        "file": finding.path,
        "line": finding.line,
        "why": finding.why,
        "evidence": finding.evidence,
        "advice": finding.advice,
        "automatic": finding.is_automatic,
        "asks": finding.asks,
        "diff": "" if is_later else redacted_diff(project, finding),
        "found_after_other_fixes": is_later,
    }


def _lines(project: "Project", finding: "Finding") -> list[str]:
    from paceline.images.lint.check import redacted_diff

    fix = "to do"
    if finding.edits:
        fix = "fix, with --agree" if finding.asks else "fix"
    return [
        f"{finding.level.value:<8} {finding.id}  {finding.path}:{finding.line}",
        f"  why       {finding.why}",
        f"  evidence  {finding.evidence}",
        f"  {fix:<9} {finding.advice}",
        *(f"    {line}" for line in redacted_diff(project, finding).splitlines()),
    ]


def _verdict(findings: "list[Finding] | tuple[Finding, ...]", fixed: "FixResult", *, is_written: bool) -> str:
    from paceline.images.lint.project import Level

    counts = [sum(finding.level is level for finding in findings) for level in Level]
    counted = (
        f"{_counted(counts[0], 'problem')}, {_counted(counts[1], 'warning')}, {_counted(counts[2], 'note')}"
    )
    number = _counted(len(fixed.applied), "fix", "fixes")
    fixes = ""
    if is_written:
        fixes = f"; {number} written"
    elif fixed.applied:
        fixes = f"; {number} with --write"
    return f"{'not fine' if counts[0] else 'fine'}: {counted}{fixes}"


def _counted(number: int, word: str, many: str | None = None) -> str:
    return f"{number} {word if number == 1 else many or word + 's'}"


@click.command("matrix")
@click.option(
    "--refresh",
    is_flag=True,
    help="Query the package index configured for pip and uv. Takes several minutes.",
)
@click.option(
    "--only-new", is_flag=True, help="With --refresh, query only versions that are not in the table."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file of --refresh; wheels.json is written next to it. [default: the package's own files]",
)
@common_options
def matrix(session: Session, *, refresh: bool, only_new: bool, out: Path | None) -> None:
    """Show the compatibility table from the wheels' metadata, with its date. --refresh reads the package
    index again, for this table and wheels.json. Versions that are in neither are not checked."""
    from importlib.resources import files

    from paceline.images.lint.bases import catalog
    from paceline.images.lint.matrix import matrix as load_matrix
    from paceline.images.lint.matrix import to_json, wheels

    table = load_matrix()
    if refresh:
        from datetime import UTC, datetime

        from paceline.core import clock
        from paceline.images.lint.matrix_refresh import refresh as refresh_matrix
        from paceline.images.lint.matrix_refresh import refresh_wheels, write_matrix, write_wheels

        today = datetime.fromtimestamp(clock.unix_now_s(), UTC).date()
        table = refresh_matrix(
            today, table, only_new=only_new, notify=lambda line: print_message(session, line)
        )
        wheel_table = refresh_wheels(
            today,
            wheels(),
            table,
            torch_index=catalog().index,
            notify=lambda line: print_message(session, line),
        )
        package = Path(str(files("paceline.images.lint").joinpath("data/matrix.json")))
        target = package if out is None else session.folder / out
        write_matrix(table, target)
        wheels_path = target.with_name("wheels.json")
        write_wheels(wheel_table, wheels_path)
        print_message(session, f"wrote {target} and {wheels_path}")
    elif only_new or out is not None:
        raise ImageOptionError([Problem("--only-new and --out need --refresh", "add --refresh", "--refresh")])
    lines = [f"from wheel metadata of {table.dated}", _HEAD, *map(_matrix_line, table.torch)]
    emit(session, "image.matrix", to_json(table), lines)


_WIDTHS = (9, 13, 11, 12, 9, 13, 10)
_HEAD = "torch    Python       CUDA       cuDNN       NCCL     torchvision  torchaudio"


def _matrix_line(row: "TorchRow") -> str:
    parts = (row.cuda, row.cudnn, row.nccl, row.torchvision, row.torchaudio)
    cells = [str(row.torch), f"{row.pythons[0]} to {row.pythons[-1]}", *(str(part or "–") for part in parts)]
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


@click.group("image")
@common_options
def image(session: Session) -> None:
    """Check, build, test and push container images."""


image.add_command(check)
image.add_command(build)
image.add_command(test)
image.add_command(push)
image.add_command(matrix)

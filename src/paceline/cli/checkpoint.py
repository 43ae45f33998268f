"""`paceline checkpoint`: list, verify and export a run's checkpoints, or request one now."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import act_from_anywhere, read_from_anywhere
from paceline.cli.options import changed_run_argument, checked_run_argument, common_options
from paceline.cli.output import emit
from paceline.cli.workers import run_action_anywhere
from paceline.core.errors import ExitCode
from paceline.core.humanize import short_bytes
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.run_endpoint import Coordinators
    from paceline.plan.codec import Json
    from paceline.training.checkpoints import Row


@click.group("checkpoint")
@common_options
def checkpoint(session: Session) -> None:
    """List and verify checkpoints, and export weights."""


@checkpoint.command("list")
@checked_run_argument
@common_options
@read_from_anywhere(needs_checkpoints=True)
def list_(session: Session, run: Path) -> None:
    """List the checkpoints of RUN (a run folder or its store) and whether each can be resumed from."""
    from paceline.training.checkpoints import list_checkpoints, to_rows

    rows = list_checkpoints(session.folder / run)
    lines = [_line(row) for row in rows] or ["no checkpoints"]
    emit(session, "checkpoint.list", {"run": str(run), "checkpoints": to_rows(rows)}, lines)


@checkpoint.command("now")
@changed_run_argument
@common_options
@act_from_anywhere
def now(session: Session, run: Path, coordinators: "Coordinators | None") -> ExitCode:
    """Save a checkpoint of the running elastic RUN after its next step, and wait until it is written.

    RUN is a run folder, or with --coordinator the name or id of a run there.
    """
    return run_action_anywhere(session, run, "checkpoint", coordinators)


@checkpoint.command("verify")
@checked_run_argument
@common_options
@read_from_anywhere(needs_checkpoints=True)
def verify(session: Session, run: Path) -> ExitCode:
    """Verify the checksum of every checkpoint of RUN; exit code 8 if one is corrupted."""
    from paceline.training.checkpoints import to_rows, verify_checkpoints

    findings = verify_checkpoints(session.folder / run)
    holds = all(finding.ok for finding in findings)
    lines = [f"{'ok  ' if finding.ok else 'FAIL'} {finding.file}: {finding.seen}" for finding in findings]
    data: dict[str, Json] = {"run": str(run), "holds": holds, "findings": to_rows(findings)}
    emit(session, "checkpoint.verify", data, lines or ["no checkpoints"])
    return ExitCode.OK if holds else ExitCode.GATE_FAILED


@checkpoint.command("export")
@checked_run_argument
@click.option(
    "--at",
    type=click.IntRange(min=0),
    help="Step of the checkpoint, as shown by `list`. [default: the newest valid one]",
)
@click.option(
    "--worker",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Worker whose weights to export, in modes whose workers differ.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "dcp"]),
    default="safetensors",
    show_default=True,
    help="Output format: one safetensors file, or a folder with a torch distributed checkpoint.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output file, or folder for dcp.")
@common_options
def export(session: Session, run: Path, at: int | None, worker: int, kind: str, out: Path) -> None:
    """Export the model weights of RUN, under the module's parameter names."""
    from paceline.training.checkpoints import export_weights

    done = export_weights(session.folder / run, at=at, worker=worker, kind=kind, out=session.folder / out)
    text = f"{done['tensors']} tensors of {done['who']} from {done['checkpoint']} written to {done['out']}"
    emit(session, "checkpoint.export", done, [text])


def _line(row: "Row") -> str:
    state = f"{row.steps} steps" if row.valid else row.why_not
    pin = f"  (needed by: {row.pinned_by})" if row.pinned_by else ""
    return f"at {row.at:<10}{short_bytes(row.bytes):>9}  {'valid' if row.valid else 'DAMAGED':<8}{state}{pin}"

"""`paceline export`: a finished run's metrics for TensorBoard, MLflow or W&B."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, run_argument
from paceline.cli.output import emit
from paceline.core.errors import ConfigError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.config.train_config import ExportTarget
    from paceline.plan.codec import Json


@click.command("export")
@run_argument
@click.option(
    "--to",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME[=WHERE]",
    help="Target: tensorboard[=FOLDER], mlflow[=ADDRESS] or wandb[=offline|online]. Repeatable.",
)
@common_options
def export(session: Session, run: Path, targets: Sequence[str]) -> None:
    """Export RUN (a run folder) to TensorBoard, MLflow or W&B.

    Writes the same values as `paceline train --export`.
    """
    from paceline.export.processes import export_run, require_packages

    parsed_targets = _read(targets)
    require_packages(parsed_targets)
    rows: list[Json] = []
    lines: list[str] = []
    for target in parsed_targets:
        done = export_run(session.folder / run, target)
        rows.append(done)
        lines.append(f"{target.kind:<14}{done['points']} points in {done['place']}")
        lines.append(f"{'next':<14}{done['look']}")
    emit(session, "export", {"run": str(run), "exports": rows}, lines)


def _read(texts: Sequence[str]) -> "list[ExportTarget]":
    """All problems at once."""
    from paceline.config.load import read_export

    parsed: list[ExportTarget] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            parsed += read_export(text, where="--to", folder=Path())
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return parsed

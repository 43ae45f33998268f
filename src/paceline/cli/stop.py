"""`paceline stop`: end a run in good order."""

from pathlib import Path

import click

from paceline.cli.acting import carry_out
from paceline.cli.options import common_options
from paceline.cli.run_argument import run_argument
from paceline.cli.session import Session
from paceline.errors import ExitCode


@click.command("stop")
@run_argument
@common_options
def stop(session: Session, run: Path) -> ExitCode:
    """Ask RUN (a run's folder) to stop after its current step, with a checkpoint, and wait until it has."""
    return carry_out(session, run, "stop")

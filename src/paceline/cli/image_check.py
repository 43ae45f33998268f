"""`paceline image check`: what is wrong with a Dockerfile, before it is built?"""

from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.session import Session
from paceline.errors import ExitCode


@click.command("check")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@common_options
def check(session: Session, folder: Path) -> ExitCode:
    """Find conflicts in a Dockerfile and its requirements, and show how to mend them."""
    return ExitCode.OK

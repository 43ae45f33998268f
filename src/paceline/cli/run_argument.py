"""How is a run named on the command line? By its folder, which the Tab key completes."""

from pathlib import Path

import click

from paceline.cli.completing import run_names

run_argument = click.argument("run", shell_complete=run_names, type=click.Path(path_type=Path))
run_if_said = click.argument("run", shell_complete=run_names, required=False, type=click.Path(path_type=Path))

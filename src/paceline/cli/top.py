"""`paceline top`: a run's workers on the whole terminal, twice a second."""

from pathlib import Path

import click

from paceline.cli.completing import run_names
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import MissingPackageError


@click.command("top")
@click.argument("run", shell_complete=run_names, required=False, type=click.Path(path_type=Path))
@click.option("-1", "--once", is_flag=True, help="Print once, and end.")
@click.option("--readonly", is_flag=True, help="Nothing can be paused or killed.")
@common_options
def top(session: Session, run: Path | None, once: bool, readonly: bool) -> None:
    """Watch RUN (a run's folder; else the newest under runs/): who is where, who is slow, what is wrong.

    Keys: ? help, / filter, s sort, p pause, K kill, q quit.
    """
    from paceline.app.watching import find_run, look
    from paceline.cli.status import lines_of

    run_dir = find_run(session.folder, run)
    if once or session.common.json:
        told = look(run_dir)
        emit(session, "top", told, lines_of(told, str(run_dir)))
        return
    try:
        from paceline.cli.top_app import TopApp
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"top needs {error.name}, which cannot be imported here",
            "pip install 'paceline[tui]', or use: paceline top -1",
        ) from error
    TopApp(run_dir, is_readonly=readonly).run()

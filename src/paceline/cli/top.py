"""`paceline top`: a run's workers on the whole terminal, twice a second."""

import signal
import sys
from pathlib import Path

import click

from paceline.cli.completing import run_names
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import ExitCode, MissingPackageError


@click.command("top")
@click.argument("run", shell_complete=run_names, required=False, type=click.Path(path_type=Path))
@click.option("-1", "--once", is_flag=True, help="Print once, and end; so too where stdout is no terminal.")
@click.option("--readonly", is_flag=True, help="Nothing can be paused or killed.")
@common_options
def top(session: Session, run: Path | None, once: bool, readonly: bool) -> ExitCode:
    """Watch RUN (a run's folder; else the newest under runs/): who is where, who is slow, what is wrong.

    Keys: ? help, / filter, s sort, p pause, K kill, q quit.
    """
    from paceline.app.watching import find_run, look
    from paceline.cli.status import lines_of

    run_dir = find_run(session.folder, run)
    if once or session.common.json or not sys.stdout.isatty():  # a pipe has no screen
        told = look(run_dir)
        emit(session, "top", told, lines_of(told, str(run_dir)))
        return ExitCode.OK
    try:
        from paceline.cli.top_app import TopApp
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"top needs {error.name}, which cannot be imported here",
            "pip install 'paceline[tui]', or use: paceline top -1",
        ) from error
    app = TopApp(run_dir, is_readonly=readonly)
    # Raised in the middle of drawing, the error of this signal would leave the terminal as it is then.
    signal.signal(signal.SIGTERM, lambda *_: app.exit(return_code=ExitCode.TERMINATED))
    app.run()
    return ExitCode(app.return_code or 0)

"""`paceline report`: one page of finished runs, or of a comparison once more."""

from pathlib import Path

import click

from paceline.cli.completing import run_names
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session


@click.command("report")
@click.argument(
    "runs", shell_complete=run_names, nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN…"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of report.html and plots/. [default: the run's own, or ./report for several]",
)
@common_options
def report(session: Session, runs: tuple[Path, ...], out: Path | None) -> None:
    """Make one page of finished runs: alone, side by side, or a comparison's report once more."""
    from paceline.app.report import report as make_report
    from paceline.report.plots import can_draw

    folders = [session.folder / run for run in runs]
    place = (
        session.folder / out
        if out is not None
        else folders[0]
        if len(runs) == 1
        else session.folder / "report"
    )
    figures = make_report(folders, place)
    if not can_draw():
        say(session, "note: no picture files, as matplotlib is not installed: pip install 'paceline[report]'")
    path = str(place / "report.html")
    emit(
        session,
        "report",
        {"report": path, "figures": [figure.name for figure in figures]},
        [f"report: {path}"],
    )

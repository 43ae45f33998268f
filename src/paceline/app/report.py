"""What do finished runs say? One page: of a run, of several side by side, or of a comparison once more."""

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import PacelineError
from paceline.report.comparison import read
from paceline.report.figures import Figure
from paceline.report.files import write_all
from paceline.report.measured import read_run
from paceline.report.plots import draw_all
from paceline.report.run_page import run_figures, run_page


def report(folders: Sequence[Path], out: Path) -> list[Figure]:
    """Writes report.html and pictures into `out`, and answers with the figures.

    The folder of a comparison is reported from its comparison.json.
    """
    compared = [folder for folder in folders if (folder / "comparison.json").exists()]
    if compared and len(folders) > 1:
        raise PacelineError(
            f"{compared[0]} is a comparison, which has a report of its own",
            f"name runs only, such as {compared[0]}/runs/*, or the comparison alone",
        )
    if compared:
        comparison = read(compared[0] / "comparison.json")
        out.mkdir(parents=True, exist_ok=True)
        return write_all(comparison, out)
    names = short_names(folders)
    runs = [read_run(folder) for folder in folders]
    figures = run_figures(runs, names)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(run_page(runs, names), encoding="utf-8")
    draw_all(figures, out / "plots")
    return figures


def short_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with those above where two are called the same."""
    whole = [folder.resolve() for folder in folders]
    for parts in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-parts:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    raise PacelineError(f"{folders[0]} is named twice", "name each run once")

"""`paceline data prepare`: your own files to a file that a built-in task reads."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.sp500.prepare import Part, Prepared
    from paceline.plan.codec import Json


@click.group("prepare")
@common_options
def prepare(session: Session) -> None:
    """Make a file that a built-in task reads out of files of your own."""


@prepare.command("sp500")
@click.option("--csv", type=click.Path(path_type=Path), required=True, help="Daily closes: date, close.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("sp500_classification.npz"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--window", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Days in one sample."
)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="The part of the samples, the latest ones, that is kept for the test.",
)
@click.option(
    "--max-gap-days",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="More calendar days than this between two closes are refused.",
)
@click.option("--date-column", metavar="NAME", help="The column of dates. [default: by its usual names]")
@click.option("--close-column", metavar="NAME", help="The column of closes. [default: by its usual names]")
@common_options
def sp500(
    session: Session,
    csv: Path,
    out: Path,
    window: int,
    test_fraction: float,
    max_gap_days: int,
    date_column: str | None,
    close_column: str | None,
) -> None:
    """Turn daily closes into samples of the task sp500: does the index rise tomorrow?

    Training samples come before test samples in time, with days dropped between them,
    and no sample knows anything of a later day.
    """
    from paceline.app.sp500.closes import Columns, read_closes
    from paceline.app.sp500.prepare import prepare as prepare_sp500

    columns = Columns(date=date_column, close=close_column)
    closes = read_closes(session.folder / csv, columns, max_gap_days=max_gap_days)
    done = prepare_sp500(closes, session.folder / out, window=window, test_fraction=test_fraction)
    _show(session, done)


def _show(session: Session, done: "Prepared") -> None:
    from paceline.app.sp500.windows import FEATURES

    lines = [
        f"closes        {done.closes} days; {done.rows_without_close} rows without a close were left out",
        f"windows       {done.window} days of {', '.join(FEATURES)}",
        f"training      {_in_words(done.train)}",
        f"dropped       {done.embargo} samples between them, so that the test shares no day with training",
        f"test          {_in_words(done.test)}",
        f"written       {done.out}",
    ]
    answer: dict[str, Json] = {
        "out": str(done.out),
        "sha256": done.sha256,
        "closes": done.closes,
        "rows_without_close": done.rows_without_close,
        "window": done.window,
        "features": list(FEATURES),
        "embargo": done.embargo,
        "train": _as_json(done.train),
        "test": _as_json(done.test),
    }
    emit(session, "data.prepare", answer, lines)
    say(session, f"next: paceline train --task sp500 --task-option npz_path={done.out} --epochs 25")


def _in_words(part: "Part") -> str:
    return f"{part.samples} samples, {part.first} to {part.last}; the next day is up in {part.up_rate:.1%}"


def _as_json(part: "Part") -> "Json":
    return {
        "samples": part.samples,
        "first": part.first.isoformat(),
        "last": part.last.isoformat(),
        "up_rate": part.up_rate,
    }

"""`paceline compare`: several modes on equal work, in turns, and a report that says which to use."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.errors import Terminated
from paceline.cli.options import common_options, config_options_without
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.cli.units import short_duration
from paceline.config.written import Written
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.app.compare import Coming
    from paceline.app.compare_plan import CompareRequest
    from paceline.app.progress import Watcher
    from paceline.report.comparison import Comparison


@click.command("compare")
@click.option(
    "--modes",
    metavar="MODE[,MODE…]",
    help="What is compared; the baseline single always runs too. [default: single,ssgd,asgd,ssp,localsgd]",
)
@click.option("--num-workers", metavar="N[,N…]", help="Numbers of workers. [default: 2]")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs of each, in rounds."
)
@click.option(
    "--target-loss",
    type=click.FloatRange(min=0, min_open=True),
    help="How soon does each reach this training loss? [default: the best that every run reaches]",
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="The same for the accuracy of evaluations on the way (--evaluate-every).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("comparison"),
    show_default=True,
    help="Folder of the runs and the report; goes on with what it holds.",
)
@config_options_without("mode", "num_workers", "run_dir")
@common_options
def compare(
    session: Session,
    flags: Sequence[Written],
    modes: str | None,
    num_workers: str | None,
    repeats: int,
    target_loss: float | None,
    target_accuracy: float | None,
    out: Path,
) -> None:
    """Train one task under several modes, on equal work, and report which to use and why.

    Runs take turns, so that a drift of the machine meets everybody alike. The same
    command goes on where it was interrupted. Settings are those of `train`; with a
    straggler a step lasts at least 10 ms, unless --pace says otherwise.
    """
    from paceline.app.train import warm_up

    # First of all: workers take a second to start, while what follows here is quick.
    with warm_up() as launcher:
        from paceline.app.compare import StoppedError, carry_out, facts_for
        from paceline.app.compare_plan import lay_out
        from paceline.app.train import count_samples

        asked, found = _request(session, flags, modes, num_workers, repeats)
        request = replace(asked, target_loss=target_loss, target_accuracy=target_accuracy)
        layout = lay_out(
            request, facts_for(request), found=found, count=lambda config: count_samples(config, launcher)
        )
        folder = session.folder / out
        say(session, f"comparing {', '.join(layout.contenders)}: {len(layout.turns)} runs, in {folder}")
        for remark in layout.remarks:
            say(session, f"note: {remark}")
        try:
            comparison = carry_out(
                layout, request, folder, lambda coming: _watcher(session, coming), launcher=launcher
            )
        except StoppedError as stopped:
            if stopped.by != "SIGINT":
                raise Terminated(stopped.by) from stopped
            raise
    _show(session, comparison, folder)


def _request(
    session: Session,
    flags: Sequence[Written],
    modes: str | None,
    num_workers: str | None,
    repeats: int,
) -> "tuple[CompareRequest, list[Problem]]":
    from paceline.app.compare_plan import USUAL_MODES, CompareRequest
    from paceline.config.load import load
    from paceline.config.sources import from_sets

    sets = from_sets(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = loaded.config
    named = (config.mode,) if config.mode is not None else USUAL_MODES
    request = CompareRequest(
        config=config,
        modes=named if modes is None else tuple(part.strip() for part in modes.split(",") if part.strip()),
        worker_counts=(config.num_workers or 2,) if num_workers is None else _counts(num_workers),
        repeats=repeats,
    )
    return request, [*sets.problems, *loaded.problems]


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        what = f"num_workers is {text!r}, but it must be whole numbers"
        hint = "write for example --num-workers 4 or --num-workers 2,4"
        raise ConfigError([Problem(what, hint, "--num-workers")]) from None


def _watcher(session: Session, coming: "Coming") -> "Watcher":
    from paceline.app.progress import SilentWatcher

    left = "" if coming.left_s is None else f", about {short_duration(coming.left_s)} left"
    say(session, f"  {coming.number}/{coming.count}  {coming.turn.name}{left}")
    return SilentWatcher() if session.is_silent else _Notes(session)


class _Notes:
    """Of a run among many only changes of state are shown."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def progress(self, progress: object) -> None: ...

    def note(self, text: str) -> None:
        say(self._session, f"        {text}")


def _show(session: Session, comparison: "Comparison", folder: Path) -> None:
    from paceline.cli.compare_table import table
    from paceline.plan.codec import to_json
    from paceline.report.comparison import finite
    from paceline.report.plots import can_draw

    if not can_draw():
        say(session, "note: no picture files, as matplotlib is not installed: pip install 'paceline[report]'")
    warnings = [f"warning: {text}" for text in comparison.warnings]
    verdict = [comparison.verdict.headline, *(f"  {reason}" for reason in comparison.verdict.reasons)]
    lines = [*table(comparison), "", *warnings, *verdict, f"report: {folder / 'report.html'}"]
    emit(session, "compare", {"out": str(folder), "comparison": finite(to_json(comparison))}, lines)

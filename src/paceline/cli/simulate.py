"""`paceline simulate`: what would each mode do? Nothing is started."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, config_options
from paceline.cli.output import emit, say
from paceline.cli.scene import condition_options, conditions_of, read_scene
from paceline.cli.session import Session
from paceline.cli.units import short_bytes, short_duration, short_number
from paceline.config.written import Written
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.app.simulate import SimulatedRow
    from paceline.plan.codec import Json


@click.command("simulate")
@click.option("--from", "run", type=click.Path(path_type=Path), help="A recorded run's folder to learn from.")
@click.option("--workers", metavar="N[,N…]", help="Numbers of workers to compare. [default: the plan's]")
@condition_options
@config_options
@common_options
def simulate(
    session: Session,
    flags: Sequence[Written],
    run: Path | None,
    workers: str | None,
    spread: str,
    latency_us: float | None,
    bandwidth_mb_s: float | None,
    parameter_mb: float,
) -> None:
    """Predict time, waiting, staleness and bytes of every mode on equal work, and start nothing.

    `--pace` says how long a step takes and `--straggler` who is slow, as for train;
    or `--from RUN` takes both from a recorded run.
    """
    from paceline.app.simulate import simulate as predict_all
    from paceline.plan.codec import to_json

    conditions = conditions_of(spread, latency_us, bandwidth_mb_s, parameter_mb)
    scene = read_scene(session, flags, run, conditions)
    rows = predict_all(scene, _worker_counts(workers))
    data: list[Json] = [to_json(row) for row in rows]
    gradients = scene.plan.total_gradients
    say(
        session,
        f"predicted from {scene.profile.source}: {gradients:,} gradients in every mode, none computed",
    )
    emit(session, "simulate", {"source": scene.profile.source, "rows": data}, _table(rows))


def _worker_counts(text: str | None) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        counts = [0]
    if any(not 1 <= count <= 1024 for count in counts):
        what = f"workers is {text!r}, but it must be numbers from 1 to 1024"
        raise ConfigError([Problem(what, "write for example --workers 1,2,4,8", "--workers")])
    return counts


def _table(rows: "Sequence[SimulatedRow]") -> list[str]:
    lines = [
        f"{'mode':<22}{'seconds':>9}{'samples/s':>11}{'vs ssgd':>9}{'waiting':>9}{'sent':>9}{'staleness':>11}"
    ]
    rule = "-" * len(lines[0])
    for num_workers, mine in groupby(rows, key=lambda row: row.num_workers):
        lines += [rule, f"{num_workers} worker{'s' * (num_workers != 1)}"]
        lines += [_line(row) for row in mine]
    return lines


def _line(row: "SimulatedRow") -> str:
    seen = row.prediction
    stale = "-" if seen.mean_staleness is None else f"{seen.mean_staleness:.2f}"
    sent = short_bytes(seen.bytes_out) if seen.bytes_out else "-"
    return (
        f"  {row.label:<20}{short_duration(seen.total_s):>9}{short_number(seen.samples_per_s):>11}"
        f"{row.versus_ssgd:>8.2f}x{seen.waiting:>9.0%}{sent:>9}{stale:>11}"
    )

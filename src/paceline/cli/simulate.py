"""`paceline simulate` and `paceline advise`: predicted results of each mode; nothing is started."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import SettingsCommand, common_options, config_options, optional_run_argument
from paceline.cli.output import emit, print_message
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, Problem
from paceline.core.humanize import short_bytes, short_duration, short_number
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json
    from paceline.simulate.advice import Advice, Ranked
    from paceline.simulate.what_if import Conditions, SimulatedRow, SimulationInput


SPREADS = ("constant", "uniform", "exponential", "lognormal")

_OPTIONS = (
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        default="constant",
        show_default=True,
        help="Distribution of step times around the pace.",
    ),
    click.option(
        "--latency-us",
        type=click.FloatRange(min=0),
        help="Latency per message in microseconds. [default: as on one host]",
    ),
    click.option(
        "--bandwidth-mb-s",
        type=click.FloatRange(min=0, min_open=True),
        help="Bandwidth of a link in megabytes per second. [default: as on one host]",
    ),
    click.option(
        "--parameter-mb",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Size of the parameters in megabytes. [default: none]",
    ),
)


def condition_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the flags for conditions that are not part of a plan."""
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


def conditions_of(
    spread: str, latency_us: float | None, bandwidth_mb_s: float | None, parameter_mb: float
) -> "Conditions":
    from paceline.simulate.what_if import Conditions

    return Conditions(
        spread=spread,
        latency_s=None if latency_us is None else latency_us / 1e6,
        bytes_per_s=None if bandwidth_mb_s is None else bandwidth_mb_s * 1e6,
        parameter_bytes=round(parameter_mb * 1e6),
    )


def read_scene(
    session: Session, flags: Sequence[RawSetting], run: Path | None, conditions: "Conditions"
) -> "SimulationInput":
    from paceline.plan.plan import Launcher
    from paceline.simulate.what_if import Conditions, input_from_plan, input_from_run
    from paceline.training.request import read_request

    if run is None:
        request = read_request(session, flags)
        shared = request.facts.cpu_count if request.plan.launcher is Launcher.LOCAL else None
        return input_from_plan(request.plan, replace(conditions, processors=shared))
    if flags or conditions != Conditions():
        origin = flags[0].where if flags else "--spread, --latency-us, --bandwidth-mb-s or --parameter-mb"
        message = (
            f"{run} is a recorded run with its own settings and times, so it cannot be combined with {origin}"
        )
        raise ConfigError([Problem(message, "leave the other options out, or leave the run out", origin)])
    return input_from_run(session.folder / run)


@click.command("simulate", cls=SettingsCommand)
@click.option("--from", "run", type=click.Path(path_type=Path), help="Run folder whose step times to use.")
@click.option("--workers", metavar="N[,N…]", help="Numbers of workers to compare. [default: the plan's]")
@condition_options
@config_options
@common_options
def simulate(
    session: Session,
    flags: Sequence[RawSetting],
    run: Path | None,
    workers: str | None,
    spread: str,
    latency_us: float | None,
    bandwidth_mb_s: float | None,
    parameter_mb: float,
) -> None:
    """Predict time, waiting, staleness and bytes of every mode on equal work, without training.

    `--pace` sets the step time and `--straggler` the slow workers, as for train;
    or `--from RUN` takes both from a recorded run.
    """
    from paceline.plan.codec import to_json
    from paceline.simulate.what_if import simulate_modes as predict_all

    conditions = conditions_of(spread, latency_us, bandwidth_mb_s, parameter_mb)
    scene = read_scene(session, flags, run, conditions)
    rows = predict_all(scene, _worker_counts(workers))
    data: list[Json] = [to_json(row) for row in rows]
    gradients = scene.plan.total_gradients
    print_message(
        session,
        f"predicted from {scene.profile.source}: {gradients:,} gradients in every mode, simulated",
    )
    emit(session, "simulate", {"source": scene.profile.source, "rows": data}, _prediction_table(rows))


def _worker_counts(text: str | None) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        counts = [0]
    if any(not 1 <= count <= 1024 for count in counts):
        what = f"workers is {text!r}, but it must be numbers from 1 to 1024"
        raise ConfigError([Problem(what, "write for example --workers 1,2,4,8", "--workers")])
    return counts


def _prediction_table(rows: "Sequence[SimulatedRow]") -> list[str]:
    lines = [
        f"{'mode':<22}{'seconds':>9}{'samples/s':>11}{'vs ssgd':>9}{'waiting':>9}{'sent':>9}{'staleness':>11}"
    ]
    rule = "-" * len(lines[0])
    for num_workers, mine in groupby(rows, key=lambda row: row.num_workers):
        lines += [rule, f"{num_workers} worker{'s' * (num_workers != 1)}"]
        lines += [_prediction_line(row) for row in mine]
    return lines


def _prediction_line(row: "SimulatedRow") -> str:
    seen = row.prediction
    stale = "-" if seen.mean_staleness is None else f"{seen.mean_staleness:.2f}"
    sent = short_bytes(seen.bytes_out) if seen.bytes_out else "-"
    return (
        f"  {row.label:<20}{short_duration(seen.total_s):>9}{short_number(seen.samples_per_s):>11}"
        f"{row.versus_ssgd:>8.2f}x{seen.waiting:>9.0%}{sent:>9}{stale:>11}"
    )


@click.command("advise", cls=SettingsCommand)
@optional_run_argument
@click.option(
    "--repeats",
    type=click.IntRange(min=20),
    default=20,
    show_default=True,
    help="Number of simulated runs per mode, each with another seed.",
)
@condition_options
@config_options
@common_options
def advise(
    session: Session,
    flags: Sequence[RawSetting],
    run: Path | None,
    repeats: int,
    spread: str,
    latency_us: float | None,
    bandwidth_mb_s: float | None,
    parameter_mb: float,
) -> None:
    """Rank the modes for RUN (a run folder), or for the workload that the options describe.

    Reports how much slower the other modes would be, why, and when the difference is
    within noise. It predicts time, not accuracy.
    """
    from paceline.plan.codec import to_json
    from paceline.simulate.what_if import advise_on, command_for

    conditions = conditions_of(spread, latency_us, bandwidth_mb_s, parameter_mb)
    scene = read_scene(session, flags, run, conditions)
    advice = advise_on(scene, repeats=repeats)
    command = command_for(scene, advice)
    data: dict[str, Json] = {
        "source": scene.profile.source,
        "advised": advice.advised.candidate.mode,
        "is_clear": advice.is_clear,
        "command": command,
        "workers": list(advice.workers),
        "ranking": [_as_data(ranked) for ranked in advice.ranking],
        "caveats": to_json(advice.caveats),
    }
    emit(session, "advise", data, _advice_lines(advice, command, scene.profile.source, repeats))


def _as_data(ranked: "Ranked") -> "Json":
    from paceline.plan.codec import to_json

    data = to_json(ranked.compared)
    assert isinstance(data, dict), "a dataclass becomes an object"
    candidate = ranked.compared.candidate
    facts: dict[str, Json] = {
        "candidate": candidate.label,
        "mode": candidate.mode,
        "reason": ranked.reason,
    }
    return {**data, **facts}


def _advice_lines(advice: "Advice", command: str, source: str, repeats: int) -> list[str]:
    doubt = "" if advice.is_clear else "; no significant difference to others, so the simplest is recommended"
    lines = [f"recommended {advice.advised.candidate.label}{doubt}"]
    lines += [f"workers     {text}" for text in advice.workers]
    lines += ["", f"predicted from {source}, {repeats} simulated runs per mode:"]
    lines += [_advice_line(ranked) for ranked in advice.ranking]
    lines += ["", *(f"note        {text}" for text in advice.caveats), f"try         {command}"]
    return lines


def _advice_line(ranked: "Ranked") -> str:
    compared = ranked.compared
    if compared.is_significant:
        verdict = f"{compared.regret:+.0%}"
    else:
        verdict = "best" if compared.regret == 0 else "no significant difference"
    span = f"{short_duration(compared.low_s)} … {short_duration(compared.high_s)}"
    return (
        f"  {compared.candidate.label:<20}{short_duration(compared.mean_s):>7}  {span:<16}"
        f"{verdict:<26}{ranked.reason}"
    )

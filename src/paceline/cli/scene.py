"""From what does `simulate` or `advise` start? A recorded run, or flags such as `plan` takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.session import Session
from paceline.config.written import Written
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.app.simulate import Conditions, Scene

SPREADS = ("constant", "uniform", "exponential", "lognormal")

_OPTIONS = (
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        default="constant",
        show_default=True,
        help="How step times vary around the pace.",
    ),
    click.option(
        "--latency-us",
        type=click.FloatRange(min=0),
        help="Microseconds per message. [default: as on one host]",
    ),
    click.option(
        "--bandwidth-mb-s",
        type=click.FloatRange(min=0, min_open=True),
        help="Megabytes per second of a link. [default: as on one host]",
    ),
    click.option(
        "--parameter-mb",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Megabytes of parameters that travel. [default: none]",
    ),
)


def condition_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the flags that say what a plan does not."""
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


def conditions_of(
    spread: str, latency_us: float | None, bandwidth_mb_s: float | None, parameter_mb: float
) -> "Conditions":
    from paceline.app.simulate import Conditions

    return Conditions(
        spread=spread,
        latency_s=None if latency_us is None else latency_us / 1e6,
        bytes_per_s=None if bandwidth_mb_s is None else bandwidth_mb_s * 1e6,
        parameter_bytes=round(parameter_mb * 1e6),
    )


def read_scene(
    session: Session, flags: Sequence[Written], run: Path | None, conditions: "Conditions"
) -> "Scene":
    from paceline.app.simulate import Conditions, scene_of_plan, scene_of_run
    from paceline.cli.request import read_request
    from paceline.plan.plan import Launcher

    if run is None:
        request = read_request(session, flags)
        shared = request.facts.cpu_count if request.plan.launcher is Launcher.LOCAL else None
        return scene_of_plan(request.plan, replace(conditions, processors=shared))
    if flags or conditions != Conditions():
        said = flags[0].where if flags else "--spread, --latency-us, --bandwidth-mb-s or --parameter-mb"
        what = f"{run} was recorded, so its own settings and times count, but there is also {said}"
        raise ConfigError([Problem(what, "leave the other flags out, or leave the run out", said)])
    return scene_of_run(session.folder / run)

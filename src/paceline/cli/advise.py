"""`paceline advise`: which mode would be faster for this run, and is that more than noise?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, config_options
from paceline.cli.output import emit
from paceline.cli.run_argument import run_if_said
from paceline.cli.scene import condition_options, conditions_of, read_scene
from paceline.cli.session import Session
from paceline.cli.units import short_duration
from paceline.config.written import Written

if TYPE_CHECKING:
    from paceline.plan.codec import Json
    from paceline.simulate.advice import Advice, Ranked


@click.command("advise")
@run_if_said
@click.option(
    "--repeats",
    type=click.IntRange(min=20),
    default=20,
    show_default=True,
    help="Simulated runs per mode, each with other dice.",
)
@condition_options
@config_options
@common_options
def advise(
    session: Session,
    flags: Sequence[Written],
    run: Path | None,
    repeats: int,
    spread: str,
    latency_us: float | None,
    bandwidth_mb_s: float | None,
    parameter_mb: float,
) -> None:
    """Rank the modes for RUN (a recorded run's folder), or for what the flags describe.

    Says by how much the others would be slower, why, and when the difference is
    no more than noise. It predicts time, not accuracy.
    """
    from paceline.app.advise import advise_on, command_for
    from paceline.plan.codec import to_json

    conditions = conditions_of(spread, latency_us, bandwidth_mb_s, parameter_mb)
    scene = read_scene(session, flags, run, conditions)
    advice = advise_on(scene, repeats=repeats)
    command = command_for(scene, advice)
    found: dict[str, Json] = {
        "source": scene.profile.source,
        "advised": advice.advised.candidate.mode,
        "is_clear": advice.is_clear,
        "command": command,
        "workers": list(advice.workers),
        "ranking": [_as_data(ranked) for ranked in advice.ranking],
        "caveats": to_json(advice.caveats),
    }
    emit(session, "advise", found, _lines(advice, command, scene.profile.source, repeats))


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


def _lines(advice: "Advice", command: str, source: str, repeats: int) -> list[str]:
    doubt = "" if advice.is_clear else "; others do as well, so the simplest is advised"
    lines = [f"advised     {advice.advised.candidate.label}{doubt}"]
    lines += [f"workers     {text}" for text in advice.workers]
    lines += ["", f"predicted from {source}, {repeats} simulated runs per mode:"]
    lines += [_line(ranked) for ranked in advice.ranking]
    lines += ["", *(f"note        {text}" for text in advice.caveats), f"try         {command}"]
    return lines


def _line(ranked: "Ranked") -> str:
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

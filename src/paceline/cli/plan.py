"""`paceline plan`: what would train do? Nothing is started."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, config_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.config.written import Written

if TYPE_CHECKING:
    from paceline.plan.explain import Line


@click.command("plan")
@config_options
@common_options
def plan(session: Session, flags: Sequence[Written]) -> None:
    """Say what train would do, in plain sentences, and start nothing."""
    show_plan(session, flags)


def show_plan(session: Session, flags: Sequence[Written]) -> None:
    # Imported here, so that --help does not pay for it.
    from paceline.cli.request import read_request
    from paceline.plan.codec import plan_hash, to_json
    from paceline.plan.explain import explain

    request = read_request(session, flags)
    lines = explain(request.plan, cpu_count=request.facts.cpu_count)
    digest = plan_hash(request.plan)
    emit(
        session,
        "plan",
        {
            "plan": to_json(request.plan),
            "hash": digest,
            "run_dir": str(request.run_dir),
            "explanation": [{"topic": line.topic, "text": line.text} for line in lines],
        },
        [*_wrapped(lines), f"{'hash':<12}{digest}"],
    )
    say(session, "nothing was started; `paceline train` with the same flags runs it")


def _wrapped(lines: "Sequence[Line]") -> list[str]:
    width = max(60, min(100, shutil.get_terminal_size((100, 24)).columns))
    return [
        textwrap.fill(line.text, width, initial_indent=f"{line.topic:<12}", subsequent_indent=" " * 12)
        for line in lines
    ]

"""`paceline doctor`: checks whether this machine is ready to train."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.doctor.checks import CheckResult
    from paceline.plan.codec import Json

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command("doctor")
@click.option(
    "--num-workers", type=click.IntRange(1, 1024), help="Number of workers to check for. [default: 2]"
)
@click.option(
    "--at", metavar="HOST:PORT,…", help="Addresses of coordinator nodes. [default: PACELINE_COORDINATOR]"
)
@click.option("--address", metavar="HOST:PORT", help="Address of a Ray cluster. [default: RAY_ADDRESS]")
@common_options
def doctor(session: Session, num_workers: int | None, at: str | None, address: str | None) -> ExitCode:
    """Check that this machine is ready to train: ✔ passed, ⚠ warning, ✕ failed.

    Exit code 0 if `paceline train` works here, 4 if not. Read-only; takes less than a minute.
    """
    from paceline.core import environ
    from paceline.dashboard.launch import PAGE, PORT
    from paceline.doctor.checks import is_ready
    from paceline.doctor.probes import DEFAULT_WORKERS, DoctorOptions, check_machine

    said = session.variables.get("num_workers", "")
    workers = num_workers or (int(said) if said.isdecimal() and int(said) else DEFAULT_WORKERS)
    print_message(session, "checking; importing torch takes a few seconds …")
    lines = check_machine(
        DoctorOptions(
            folder=session.folder,
            workers=workers,
            port=PORT,
            page=PAGE,
            coordinator=at or environ.coordinator(),
            ray=address or session.variables.get("address"),
        )
    )
    ready = is_ready(lines)
    rows: list[Json] = [dict(asdict(line)) for line in lines]
    emit(session, "doctor", {"ready": ready, "checks": rows}, _lines(session, lines, ready))
    return ExitCode.OK if ready else ExitCode.NOT_READY


def _lines(session: Session, lines: "list[CheckResult]", ready: bool) -> list[str]:
    import sys

    colour = session.has_colour(sys.stdout)
    shown = []
    for line in lines:
        glyph = click.style(line.level.glyph, fg=_COLOURS[line.level]) if colour else line.level.glyph
        shown.append(f"{glyph} {line.name:<18}{line.text}")
        if line.fix:
            shown.append(f"{'':20}→ {line.fix}")
    wrong = sum(line.level == "wrong" for line in lines)
    warnings = sum(line.level == "warning" for line in lines)
    verdict = (
        "ready: paceline train can run here"
        if ready
        else f"not ready: fix the {pluralize(wrong, 'problem')} marked ✕"
    )
    if warnings:
        verdict += f" ({pluralize(warnings, 'warning')} marked ⚠)"
    return [*shown, "", verdict]

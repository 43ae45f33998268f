"""`paceline laws`: prove that a mode does what it says, or find out that it does not."""

from typing import TYPE_CHECKING

import click

from paceline.app.laws import PEERS
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ConfigError, ExitCode, Problem

if TYPE_CHECKING:
    from paceline.app.laws import LawLine

_MARKS = {
    "holds": "ok       ",
    "deviates": "deviates ",
    "not asked": "not asked",
    "new": "NEW      ",
    "gone": "GONE     ",
}


@click.command("laws")
@click.option("--mode", metavar="MODE", help="Only the laws of this mode; or module:Class of your own.")
@click.option("--like", metavar="MODE", help="For a class of your own: the mode whose laws it must obey.")
@click.option("--peer", type=click.Choice(PEERS), help="Try another library's averagers instead of ours.")
@common_options
def laws(session: Session, mode: str | None, like: str | None, peer: str | None) -> ExitCode:
    """Check the laws that every way of agreeing must obey.

    Runs the real strategies in virtual time, a few on real processes. Exit code
    0 only when all laws hold, 8 when one does not.

    With --peer the library's own code is tried. Deviations that are known are
    findings about it, each told in a sentence; exit code 0 when exactly these
    are found, 8 when a law has a new verdict.
    """
    if peer is None:
        return _ours(session, mode, like)
    if mode is not None or like is not None:
        problem = Problem("--peer brings its own modes", "leave out --mode and --like", "--peer")
        raise ConfigError([problem])
    return _peers(session, peer)


def _ours(session: Session, mode: str | None, like: str | None) -> ExitCode:
    from paceline.app.laws import check_laws

    def show(law: "LawLine") -> None:
        mark = "ok    " if law["ok"] else "BROKEN"
        say(session, f"{mark} {law['id']!s:<20}{law['what']}\n       {law['measured']}")

    results = check_laws(mode, like, show)
    broken = [str(law["id"]) for law in results if not law["ok"]]
    verdict = (
        f"all {len(results)} laws hold"
        if not broken
        else f"{len(broken)} of {len(results)} laws do not hold: {', '.join(broken)}"
    )
    emit(session, "laws", {"laws": list(results), "broken": list(broken)}, [verdict])
    return ExitCode.GATE_FAILED if broken else ExitCode.OK


def _peers(session: Session, peer: str) -> ExitCode:
    from paceline.app.laws import check_peer

    subjects: list[str] = []

    def show(law: "LawLine") -> None:
        if law["subject"] not in subjects:
            subjects.append(str(law["subject"]))
            name = subjects[-1].rpartition(":")[2]
            say(session, f"{name} of {peer} {law['version']}, by the laws of {law['mode']}")
        told = [str(law[part]) for part in ("measured", "note") if law[part]]
        say(
            session,
            "\n          ".join([f"{_MARKS[str(law['verdict'])]} {law['id']!s:<20}{law['what']}", *told]),
        )

    results = check_peer(peer, show)
    by = {mark: [str(law["id"]) for law in results if law["verdict"] == mark] for mark in _MARKS}
    lines = [
        f"{peer}: {len(by['holds'])} laws hold, {len(by['deviates'])} deviations as known "
        f"({', '.join(by['deviates'])}), {len(by['not asked'])} not asked"
    ]
    lines += [f"a deviation that nobody knew: {law}" for law in by["new"]]
    lines += [f"a deviation that is no longer there: {law}" for law in by["gone"]]
    surprises = [*by["new"], *by["gone"]]
    emit(session, "laws", {"peer": peer, "laws": list(results), "surprises": list(surprises)}, lines)
    return ExitCode.GATE_FAILED if surprises else ExitCode.OK

"""`paceline laws`: prove that a mode does what it says, or find out that it does not."""

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode


@click.command("laws")
@click.option("--mode", metavar="MODE", help="Only the laws of this mode; or module:Class of your own.")
@click.option("--like", metavar="MODE", help="For a class of your own: the mode whose laws it must obey.")
@common_options
def laws(session: Session, mode: str | None, like: str | None) -> ExitCode:
    """Check the laws that every way of agreeing must obey.

    Runs the real strategies in virtual time, a few on real processes. Exit code
    0 only when all laws hold, 8 when one does not.
    """
    from paceline.app.laws import LawLine, check_laws

    def show(law: LawLine) -> None:
        mark = "ok    " if law["ok"] else "BROKEN"
        say(session, f"{mark} {law['id']!s:<18}{law['what']}\n       {law['measured']}")

    results = check_laws(mode, like, show)
    broken = [str(law["id"]) for law in results if not law["ok"]]
    verdict = (
        f"all {len(results)} laws hold"
        if not broken
        else f"{len(broken)} of {len(results)} laws do not hold: {', '.join(broken)}"
    )
    emit(session, "laws", {"laws": list(results), "broken": list(broken)}, [verdict])
    return ExitCode.GATE_FAILED if broken else ExitCode.OK

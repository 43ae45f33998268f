"""Is whoever typed this sure? What cannot be taken back is asked about once, at a terminal, unless --yes.

A script has no terminal, so it is not asked: what it says is what it wants.
"""

import sys

import click

from paceline.cli.output import say
from paceline.cli.session import Session

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask whether you are sure.")


def is_sure(session: Session, what: str, *, yes: bool) -> bool:
    """`what` says in words what would be done."""
    is_asked = not yes and not session.common.json and sys.stdin.isatty() and sys.stderr.isatty()
    if not is_asked or click.confirm(f"{what}?", err=True):
        return True
    say(session, "nothing was done")
    return False

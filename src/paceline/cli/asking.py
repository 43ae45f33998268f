"""Is whoever typed this sure? What cannot be taken back is asked about once, at a terminal, unless --yes.

A script has no terminal, so it is not asked: what it says is what it wants. Where there is a terminal and
nobody at it (a CI service may give one to its jobs), --no-input has it refused instead of asked.
"""

import sys

import click

from paceline.cli.output import say
from paceline.cli.session import Session
from paceline.errors import ConfigError, Problem

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask whether you are sure.")


def is_sure(session: Session, what: str, *, yes: bool) -> bool:
    """`what` says in words what would be done."""
    if session.common.no_input and not yes:
        raise ConfigError([Problem(f"it would be asked: {what}?", "add --yes, or leave out --no-input")])
    is_asked = not yes and not session.common.json and sys.stdin.isatty() and sys.stderr.isatty()
    if not is_asked or click.confirm(f"{what}?", err=True):
        return True
    say(session, "nothing was done")
    return False

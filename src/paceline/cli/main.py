"""What happens when someone types `paceline`? Flags to a command, an error to an exit code."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from paceline import __version__, environ
from paceline.cli.errors import guard, stopped_by_signals
from paceline.cli.lazy_group import LazyGroup
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session

_ABOUT = f"""\
paceline {__version__}: train one task with many workers, and learn which way
of agreeing was worth it.

Train with two workers that average their gradients at every step:
  paceline train --mode ssgd --num-workers 2 --steps 10
See what would happen with a slow worker, and start nothing:
  paceline plan --mode ssp --num-workers 4 --straggler worker=1,factor=3

Next: paceline doctor looks whether this machine is ready; paceline --help lists all commands."""


def main() -> NoReturn:
    stopped_by_signals()
    if (instruction := environ.completion_instruction()) is not None:
        from paceline.cli.completion import answer

        sys.exit(answer(instruction))
    sys.exit(run(sys.argv[1:], Session(variables=environ.config_variables())))


def run(args: Sequence[str], session: Session) -> int:
    """`paceline ARGS` in this session; the answer is the exit code."""
    return guard(lambda: _invoke(args, session), session, args)


def _invoke(args: Sequence[str], session: Session) -> object:
    # Not cli.main(): it would turn Ctrl-C and a closed pipe into its own exits.
    with cli.make_context("paceline", list(args), obj=session) as context:
        return cli.invoke(context)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="paceline", message="%(prog)s %(version)s")
@common_options
def cli(session: Session) -> None:
    """Train one task with many workers, and learn which way of agreeing was worth it."""
    if click.get_current_context().invoked_subcommand is None:
        emit(session, "about", {"version": __version__, "about": _ABOUT}, _ABOUT.splitlines())

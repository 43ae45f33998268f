"""Entry point of `paceline`: parses flags, runs a command and returns its exit code; shell completion."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from paceline import __version__
from paceline.cli.commands import RootGroup
from paceline.cli.errors import guard, install_signal_handlers
from paceline.cli.options import common_options, help_all_option
from paceline.cli.output import emit
from paceline.core import environ
from paceline.training.session import Session

_BANNER = f"""\
paceline {__version__}: train one model with many workers, survive failures, and compare strategies.

Train with two synchronous workers:
  paceline train --mode ssgd --num-workers 2 --steps 10
Show the plan of a run with a straggler, without training:
  paceline train --dry-run --mode ssp --num-workers 4 --straggler worker=1,factor=3

Next: `paceline doctor` checks this machine; `paceline --help` lists all commands."""


def main() -> NoReturn:
    install_signal_handlers()
    if (instruction := environ.completion_instruction()) is not None:
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
    cls=RootGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="paceline", message="%(prog)s %(version)s")
@help_all_option
@common_options
def cli(session: Session) -> None:
    """Train one model with many workers, survive failures, and compare strategies."""
    if click.get_current_context().invoked_subcommand is None:
        emit(session, "about", {"version": __version__, "about": _BANNER}, _BANNER.splitlines())


# The script asks `paceline` itself at each Tab; `answer` is what that call does.

COMPLETION_VARIABLE = "_PACELINE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")
_INSTALL = {
    "bash": "echo 'eval \"$(paceline completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(paceline completion zsh)\"' >> ~/.zshrc",
    "fish": "paceline completion fish > ~/.config/fish/completions/paceline.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), metavar="SHELL")
@common_options
def completion(session: Session, shell: str) -> None:
    """Print the script that completes commands, flags, runs, workers and values in SHELL.

    \b
    To have it in every new shell:
      bash  echo 'eval "$(paceline completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(paceline completion zsh)"' >> ~/.zshrc
      fish  paceline completion fish > ~/.config/fish/completions/paceline.fish
    """
    script = _script(shell)
    emit(session, "completion", {"shell": shell, "script": script, "install": _INSTALL[shell]}, [script])


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click completes in {shell}"
    # Not kind.source(): it starts a bash only to ask for its version.
    maker = kind(cli, {}, "paceline", COMPLETION_VARIABLE)
    return maker.source_template % maker.source_vars()


def answer(instruction: str) -> int:
    """What the script asked for by its variable: the words that may follow, on stdout."""
    from click.shell_completion import shell_complete

    code = shell_complete(cli, {}, "paceline", COMPLETION_VARIABLE, instruction)
    sys.stdout.flush()
    return code

"""`paceline completion SHELL`: what makes the Tab key know our commands, flags, runs and values?

The script asks `paceline` itself at each Tab; `answer` is what that call does.
"""

import sys

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session

VARIABLE = "_PACELINE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")
_FILES = {
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
    emit(session, "completion", {"shell": shell, "script": script, "install": _FILES[shell]}, [script])


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    from paceline.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click completes in {shell}"
    # Not kind.source(): it starts a bash only to ask for its version.
    maker = kind(cli, {}, "paceline", VARIABLE)
    return maker.source_template % maker.source_vars()


def answer(instruction: str) -> int:
    """What the script asked for by its variable: the words that may follow, on stdout."""
    from click.shell_completion import shell_complete

    from paceline.cli.main import cli

    code = shell_complete(cli, {}, "paceline", VARIABLE, instruction)
    sys.stdout.flush()
    return code

"""Parsing of command lines without running them, and the list of all commands."""

from collections.abc import Iterator, Sequence

import click

from paceline.cli.commands import RENAMED
from paceline.cli.main import cli
from paceline.training.session import Session

_TOP = click.Context(cli, info_name="paceline", obj=Session())


def find_command(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the words behind its name."""
    command: click.Command = cli
    rest = list(words)
    while rest and isinstance(command, click.Group):
        member = command.get_command(_TOP, rest[0])
        if member is None:
            break
        command = member
        rest = rest[1:]
    return command, rest


def read(words: Sequence[str]) -> click.Context:
    """Raises click's own errors where a flag or a value is not there."""
    command, rest = find_command(words)
    return command.make_context("paceline", rest, parent=_TOP)


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each with its path, such as `coordinator start`; former names are left out."""
    for name in cli.list_commands(_TOP):
        if name in RENAMED:
            continue
        command = cli.get_command(_TOP, name)
        assert command is not None, name
        yield from _below(name, command)


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(_TOP):
            member = command.get_command(_TOP, name)
            assert member is not None, name
            yield from _below(f"{path} {name}", member)

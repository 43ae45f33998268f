"""How does `paceline` know its commands without importing them?

`paceline --help` must answer at once, so names and help lines come from the
table, and a command's module is imported when the command is called.
"""

import importlib
from collections.abc import Mapping
from typing import ClassVar, NoReturn

import click

from paceline.cli.commands import COMMANDS


class LazyGroup(click.Group):
    table: ClassVar[Mapping[str, tuple[str, str, str]]] = COMMANDS  # as in commands.py
    path: ClassVar[str] = ""  # what is typed before its commands, behind `paceline`

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a click command"
        _show_examples(f"{self.path} {cmd_name}".strip(), command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-"):
            _refuse(args[0], list(self.table), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in self.table.items()])


def _show_examples(path: str, command: click.Command) -> None:
    """In the help of a command and of all below it."""
    from paceline.cli.examples import told  # not for the list of commands

    command.epilog = told(path)
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            _show_examples(f"{path} {name}", member)


def _refuse(name: str, known: list[str], ctx: click.Context) -> NoReturn:
    raise click.NoSuchCommand(name, possibilities=known, ctx=ctx)

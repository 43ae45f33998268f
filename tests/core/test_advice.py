"""Commands and flags that explanations recommend exist."""

import re

import click
import pytest
from tests.cli.reading import find_command

from paceline.core.error_catalog.index import ERROR_CATALOG

_COMMAND = re.compile(r"paceline((?: [a-z0-9:=./-]+| [A-Z_:]+)+)")


def _advice() -> list[str]:
    texts = [text for row in ERROR_CATALOG.values() for text in row.do]
    return sorted({message[1].strip() for text in texts for message in _COMMAND.finditer(text)})


@pytest.mark.parametrize("text", _advice())
def test_every_command_in_an_explanation_exists(text: str) -> None:
    words = text.split()
    if words[0] in ("COMMAND", "--help"):  # any of them, or none
        return
    command, rest = find_command(words)
    assert len(rest) < len(words), f"{words[0]} is a command"
    flags = {name for p in command.params if isinstance(p, click.Option) for name in p.opts}
    assert {word for word in rest if word.startswith("--")} <= {*flags, "--help"}
    if isinstance(command, click.Group):  # its name alone is typed to see what is below it
        assert rest[:1] in ([], ["--help"]), f"{rest[0]} is a command of {text}"

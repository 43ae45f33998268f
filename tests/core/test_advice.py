"""Do the commands and flags exist that explanations tell people to type?"""

import re

import click
import pytest
from tests.cli.reading import found

from paceline.core.error_catalog.index import ERROR_CATALOG

_COMMAND = re.compile(r"paceline((?: [a-z0-9:=./-]+| [A-Z_:]+)+)")


def _advice() -> list[str]:
    texts = [text for row in ERROR_CATALOG.values() for text in row.do]
    return sorted({said[1].strip() for text in texts for said in _COMMAND.finditer(text)})


@pytest.mark.parametrize("said", _advice())
def test_what_an_explanation_says_to_type_exists(said: str) -> None:
    words = said.split()
    if words[0] in ("COMMAND", "--help"):  # any of them, or none
        return
    command, rest = found(words)
    assert len(rest) < len(words), f"{words[0]} is a command"
    flags = {name for p in command.params if isinstance(p, click.Option) for name in p.opts}
    assert {word for word in rest if word.startswith("--")} <= {*flags, "--help"}
    if isinstance(command, click.Group):  # its name alone is typed to see what is below it
        assert rest[:1] in ([], ["--help"]), f"{rest[0]} is a command of {said}"

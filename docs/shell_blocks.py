"""Check that the commands on a page parse, without running them.

Every `paceline …` in a shell block is passed to the parser of the real command line: an unknown command, flag
or choice, a missing or a superfluous argument is an error, also where running it would need a cluster.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click

from docs.pages import FENCE

# Reasons why a block is not run by the tests, for example `<!-- not run: needs AWS -->`.
REASONS = (
    "needs a cluster",
    "needs a container engine",
    "needs a GPU",
    "needs AWS",
    "needs the internet",
    "needs root",
    "needs several hosts",
    "needs a run at work",
    "sets this machine up",
    "runs for minutes",
    "runs until it is stopped",
    "has a test of its own",
    "yours to answer",
)
_SEPARATORS = {"&&", "||", "|", ";", "&", "(", ")", "|&"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.S)


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    order: str
    text: str


def shell_blocks(page: str) -> Iterator[Block]:
    for found in FENCE.finditer(page):
        if found["language"] in {"sh", "bash", "shell", "console"}:
            yield Block(page.count("\n", 0, found.start()) + 1, found["order"] or "", found["text"])


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command in a piece of shell, without variables that are set before it."""
    for line in _lines(re.sub(r"\\\n", " ", _without_documents(text))):
        words: list[str] = []
        for word in [*line, ";"]:
            if word not in _SEPARATORS:
                words.append(word)
                continue
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words.pop(0)
            if words:
                yield words
            words = []


def problem(words: list[str], root: click.Command, *, loosely: bool = False) -> str | None:
    """The parser's error for `paceline …`; None if it parses.

    Loosely: a placeholder in capitals is accepted, and so are missing arguments.
    """
    try:
        _parse(root, words[0], _until_redirection(words[1:]), None)
    except click.exceptions.Exit:
        return None  # --help, --version
    except click.UsageError as error:
        said = error.format_message()
        return None if loosely and re.search(r"'[A-Z_]{2,}'|Missing|requires an argument", said) else said
    return None


def _parse(command: click.Command, name: str, args: list[str], parent: click.Context | None) -> None:
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    values, left, _ = command.make_parser(context).parse_args(args=list(args))
    for param in command.params:
        _try(param, values.get(param.name or ""), context)
    if isinstance(command, click.Group):
        if left:
            found, member, rest = command.resolve_command(context, left)
            assert member is not None, "an unknown one is an error of its own"
            assert found is not None, "an unknown one is an error of its own"
            _parse(member, found, rest, context)
    elif left and not context.allow_extra_args:
        raise click.UsageError(f"unexpected: {' '.join(left)}", context)


def _try(param: click.Parameter, value: object, context: click.Context) -> None:
    """Choices are looked up, and what is required must be there; files need not exist."""
    given = value is not None and value != () and not _is_unset(value)
    if param.required and not given:
        raise click.MissingParameter(ctx=context, param=param)
    if given and isinstance(param.type, click.Choice) and not getattr(param, "is_flag", False):
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if "$" not in str(one):  # the shell fills it in
                param.type.convert(one, param, context)


def _is_unset(value: object) -> bool:
    return type(value).__name__ == "Sentinel"  # click's own marker of an absent value


def _until_redirection(words: list[str]) -> list[str]:
    """Without `> file` and what follows it."""
    for at, word in enumerate(words):
        if re.fullmatch(r"\d?[<>]{1,2}(&\d)?.*", word):
            return words[: at - 1] if at and word[0] in "<>" and words[at - 1] in {"1", "2"} else words[:at]
    return words


def _lines(text: str) -> Iterator[list[str]]:
    """The words of each line; lines belong together while a quotation is open."""
    open_text = ""
    for line in text.split("\n"):
        open_text += line + "\n"
        try:
            words = _words(open_text)
        except ValueError:  # no closing quotation: the next line belongs to it
            continue
        yield words
        open_text = ""
    assert not open_text, f"a quotation is never closed: {open_text}"


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    return list(lexer)


def _without_documents(text: str) -> str:
    """Without here-documents: they are files, not commands."""
    return re.sub(r"<<-?\s*'?(\w+)'?(.*?)\n.*?^\s*\1$", r"\2", text, flags=re.M | re.S)

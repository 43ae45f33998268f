"""Which commands does a RUN instruction run, and where in the file does each of their words stand?

No shell is imitated: words, quotes, continued lines and what separates commands are all that is needed to
find a `pip install` and to change one word of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?([-+])([^}]*))?\}|(\w+))")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\r?\n)*")
_DROPPED_COMMENT = re.compile(r"(?<=\n)[ \t]*#[^\n]*\n")
_BREAKS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n")


class Word(NamedTuple):
    text: str  # without quotes, variables as written
    start: int
    end: int
    redirect: int | None = None  # where an unquoted < or > inside of the word begins, as an index of `text`


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


def commands_in(text: str, start: int, end: int) -> list[Command]:
    """The commands between two offsets of a text."""
    found: list[Command] = []
    words: list[Word] = []
    at = start
    while at < end:
        skipped = _blank(text, at, end)
        if skipped > at:
            at = skipped
            continue
        mark = next((mark for mark in _BREAKS if text.startswith(mark, at)), None)
        if mark is not None:
            if words:
                found.append(Command(tuple(words)))
            words, at = [], at + len(mark)
        elif text[at] == "#":  # a comment of the shell's, in a here document
            stop = text.find("\n", at, end)
            at = end if stop < 0 else stop
        else:
            word = _word(text, at, end)
            words.append(word)
            at = word.end
    return [*found, Command(tuple(words))] if words else found


def _blank(text: str, at: int, end: int) -> int:
    """Behind blanks and continued lines; comment lines between continued lines are dropped by Docker."""
    if text[at] in " \t\r":
        return at + 1
    continued = _CONTINUED.match(text, at, end)
    if continued is None:
        return at
    at = continued.end()
    comment = _DROPPED_COMMENT.match(text, at, end)
    while comment is not None:
        at = comment.end()
        comment = _DROPPED_COMMENT.match(text, at, end)
    return at


def _word(text: str, start: int, end: int) -> Word:
    taken: list[str] = []
    at, depth = start, 0
    redirect: int | None = None
    while at < end:
        sign = text[at]
        if sign in "<>" and depth == 0 and redirect is None and not "".join(taken).isdigit() and taken:
            redirect = len("".join(taken))
        if depth == 0 and (sign in " \t\r\n;|()" or _CONTINUED.match(text, at, end)):
            break
        if depth == 0 and sign == "&" and (not taken or taken[-1] not in "<>"):
            break
        if sign in "'\"":
            stop = _closing(text, at, end)
            taken.append(text[at + 1 : stop])
            at = stop + 1
            continue
        if text.startswith("$(", at):
            depth += 1
            taken.append("$(")
            at += 2
            continue
        depth -= sign == ")"
        if sign == "\\" and at + 1 < end:
            at += 1
        taken.append(text[at])
        at += 1
    return Word("".join(taken), start, max(at, start + 1), redirect)


def _closing(text: str, start: int, end: int) -> int:
    quote, at = text[start], start + 1
    while at < end and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return min(at, end)


def substituted(text: str, values: Mapping[str, str]) -> str:
    """`$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}`; what is not known stays as it is written."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[4]
        known = values.get(name)
        match found[2]:
            case "-":
                return known or found[3]
            case "+":
                return found[3] if known else ""
            case _:
                return found[0] if known is None else known

    return _VARIABLE.sub(value, text)

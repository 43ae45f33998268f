"""How is a piece of a file replaced so that every other byte stays?

Lines end at "\n" alone, as BuildKit counts them; a "\r" before it belongs to the line.
"""

from collections.abc import Iterable
from typing import NamedTuple

from paceline.images.project import Edit, Source


class Change(NamedTuple):
    """The characters from `start` up to `end` of a text become `new`."""

    start: int
    end: int
    new: str


def lines_of(text: str) -> list[str]:
    """The lines with their ends; joined, they are the text."""
    found = text.split("\n")
    return [f"{line}\n" for line in found[:-1]] + ([found[-1]] if found[-1] else [])


def line_at(text: str, offset: int) -> int:
    """The number, from 1, of the line that the character belongs to."""
    return text.count("\n", 0, offset) + 1


def offset_of(text: str, line: int) -> int:
    """Where a line begins; the text's length for the line behind the last."""
    return sum(len(one) for one in lines_of(text)[: line - 1])


def newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def edits_of(source: Source, changes: Iterable[Change]) -> tuple[Edit, ...]:
    """The changes as edits of whole lines; changes on the same lines become one edit."""
    groups: list[list[Change]] = []
    last_line = 0
    for change in sorted(changes):
        first = line_at(source.text, change.start)
        if groups and first <= last_line:
            groups[-1].append(change)
        else:
            groups.append([change])
        last_line = max(last_line, line_at(source.text, change.end))
    return tuple(_edit(source, group) for group in groups)


def _edit(source: Source, group: list[Change]) -> Edit:
    text = source.text
    first, last = line_at(text, group[0].start), line_at(text, group[-1].end)
    start, end = offset_of(text, first), offset_of(text, last + 1)
    parts, at = [], start
    for change in group:
        parts += [text[at : change.start], change.new]
        at = change.end
    return Edit(source.path, first, last, text[start:end], "".join(parts) + text[at:end])


def insertion(source: Source, before_line: int, lines: Iterable[str]) -> Edit:
    """New lines before a line; behind the last line, a missing end of line is added first."""
    end = newline_of(source.text)
    new = "".join(f"{line}{end}" for line in lines)
    there = lines_of(source.text)
    if before_line > len(there) and there and not there[-1].endswith("\n"):
        return Edit(source.path, len(there), len(there), there[-1], f"{there[-1]}{end}{new}")
    return Edit(source.path, before_line, before_line - 1, "", new)


def deletion(source: Source, first: int, last: int) -> Edit:
    return Edit(source.path, first, last, "".join(lines_of(source.text)[first - 1 : last]), "")

"""Names that differ by one letter: the usual misspelling of a package or a file."""

import re
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """The known name that differs by one letter dropped, added, changed or exchanged; "" where none does."""
    return next((one for one in known if one != name and is_one_letter_off(name, one)), "")


def is_one_letter_off(name: str, other: str) -> bool:
    if (
        len(other) < 5
        or abs(len(name) - len(other)) > 1
        or re.sub(r"\D", "", name) != re.sub(r"\D", "", other)
    ):
        return False
    start = 0
    while start < min(len(name), len(other)) and name[start] == other[start]:
        start += 1
    a, b = name[start:], other[start:]
    if len(a) != len(b):
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        return longer[1:] == shorter and longer not in ("s", "x")
    return a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])

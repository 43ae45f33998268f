"""Which known name did the user probably mean?"""

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(word: str, names: Iterable[str], *, otherwise: str) -> str:
    """`did you mean steps? …`, with what helps when nothing is close."""
    guess = nearest(word, names)
    return otherwise if guess is None else f"did you mean {guess}? {otherwise}"

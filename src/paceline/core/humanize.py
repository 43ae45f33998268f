"""Numbers, sizes and durations in short form, and the nearest of similar names."""

import difflib
import math
from collections.abc import Iterable


def short_number(number: float) -> str:
    """950, 3.1k, 12M: at most three digits that matter."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{_three_digits(number / limit)}{unit}"
    return _three_digits(number)


def short_bytes(count: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= limit:
            return f"{_three_digits(count / limit)} {unit}"
    return f"{count:.0f} B"


def short_duration(seconds: float) -> str:
    """0.42s, 9.1s, 2m10s, 3h05m."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{_three_digits(seconds)}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _three_digits(number: float) -> str:
    digits = 2
    if abs(number) >= 100:
        digits = 0
    elif abs(number) >= 10:
        digits = 1
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def nearest(word: str, names: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(word: str, names: Iterable[str], *, otherwise: str) -> str:
    """`did you mean steps? …`, or `otherwise` if no name is close."""
    guess = nearest(word, names)
    return otherwise if guess is None else f"did you mean {guess}? {otherwise}"


def pluralize(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

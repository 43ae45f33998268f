"""Is this answer right? Compared with the learner's own run, as exactly as its output was shown.

A number that was copied from the screen is rounded as the screen rounds; what is
computed from two such numbers may be off by both roundings, and by that of the
answer itself. That, and nothing else, is forgiven.
"""

from paceline.learn.lesson import Answer, Near, One, Options

DIGITS = 3  # that matter, of a number on the screen (cli/units.py)


def half_shown(value: float) -> float:
    """How far what is shown may be from the value."""
    size, unit = abs(value), 1.0
    if size == 0:
        return 0.0
    while size >= 10:
        size, unit = size / 10, unit * 10
    while size < 1:
        size, unit = size * 10, unit / 10
    return unit * 10.0 ** (1 - DIGITS) / 2


def quotient(upper: float, lower: float, *, asked: float) -> Near:
    """Of two numbers on the screen; `asked` is the last digit that the question wants."""
    value = upper / lower
    shown = half_shown(upper) / upper + half_shown(lower) / lower if upper else 0.0
    return Near(value=value, give=value * shown + asked / 2)


def exactly(value: float) -> Near:
    return Near(value=value, give=0.0)


def rounded(value: float, unit: float) -> Near:
    """What is shown as whole multiples of `unit`."""
    return Near(value=value, give=unit / 2)


def number(text: str) -> float | None:
    """3.5, 3,5, 51 %, 1.22k; None: it is no number."""
    plain = text.strip().lower().removesuffix("x").removesuffix("%").strip()
    scale = {"k": 1e3, "m": 1e6}.get(plain[-1:], 1.0)
    try:
        value = float((plain if scale == 1.0 else plain[:-1]).replace(",", ".")) * scale
    except ValueError:
        return None
    return value if value - value == 0 else None  # neither infinite nor no number


def readable(text: str, options: Options) -> bool:
    """Is it an answer at all?"""
    return option(text, options) is not None if options else number(text) is not None


def option(text: str, options: Options) -> str | None:
    plain = text.strip().lower()
    return next((key for key, _ in options if key == plain), None)


def is_right(text: str, answer: Answer, options: Options) -> bool:
    match answer:
        case Near(value=value, give=give):
            said = number(text)
            # The last bits of a float are nobody's error.
            return said is not None and abs(said - value) <= give + 1e-9 * max(1.0, abs(value))
        case One(key=key):
            return option(text, options) == key

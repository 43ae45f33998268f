"""Plain YAML scalars that Kubernetes (Go) does not read as text, for paceline's YAML: `1e-05`, `y`, `0o17`.

A word that is written plain and read as a number is refused where text must stand, such as in `args`.
"""

import math
import re

_WHOLE = re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_YES_OR_NO = {"y": True, "Y": True, "n": False, "N": False}


def parse_plain_scalar(word: str) -> bool | int | float | None:
    """Value that Kubernetes parses from a word that PyYAML parses as text; None if also text."""
    plain = word.replace("_", "")
    if word in _YES_OR_NO:
        return _YES_OR_NO[word]
    if _WHOLE.fullmatch(word) and plain[-1] not in "xXoO":
        return int(plain, 0)
    if _NUMBER.fullmatch(word) is None:
        return None
    number = float(plain)
    if not math.isfinite(number):
        return None  # too large for Go: text again
    return int(number) if number.is_integer() else number

"""What is a result for grep, cut and awk? One value a line: where it is in the result, a tab, what it is.

    workers.0.name	worker-0
    workers.0.steps	400

The names are those of --json. No value breaks its line: a tab or a line's end in it is written as \\t or \\n.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.plan.codec import Json

_WRITTEN = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def plain_lines(data: "Json", path: str = "") -> Iterator[str]:
    match data:
        case dict():
            for name, value in data.items():
                yield from plain_lines(value, f"{path}.{name}" if path else name)
        case list():
            for number, value in enumerate(data):
                yield from plain_lines(value, f"{path}.{number}" if path else str(number))
        case _:
            yield f"{path}\t{plain_value(data)}"


def plain_value(value: "Json") -> str:
    """Nothing is written for what is not known, as for a number that is none."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value) if math.isfinite(value) else ""
        case _:
            return str(value).translate(_WRITTEN)

"""When was it, in seconds? Times as Kubernetes and log lines write them."""

import re
from datetime import UTC, datetime

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"
_WHOLE = re.compile(_STAMP)
_LINE = re.compile(rf"({_STAMP}) ?(.*)", re.DOTALL)


def read_time(value: object) -> float | None:
    """Unix seconds of `2026-11-15T10:00:03Z`; None when there is no time."""
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        return None
    # Kubernetes writes nanoseconds; datetime reads at most microseconds.
    text = re.sub(r"(\.\d{6})\d+", r"\1", value.replace("Z", "+00:00"))
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # the 31st of February, from a damaged file
        return None


def write_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def split_line(line: str) -> tuple[float | None, str]:
    """The time that `kubectl logs --timestamps` put before a line, and the line."""
    found = _LINE.match(line)
    return (None, line) if found is None else (read_time(found[1]), found[2])


def newest_time(value: object) -> float | None:
    """The latest time anywhere in it: when a recording was made, as far as it says so itself."""
    newest: float | None = None
    todo = [value]
    while todo:
        one = todo.pop()
        match one:
            case dict():
                todo += one.values()
            case list():
                todo += one
            case str():
                at_s = read_time(one)
                if at_s is not None and (newest is None or at_s > newest):
                    newest = at_s
    return newest

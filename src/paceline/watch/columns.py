"""How are rows read out of a line of columns? Each field as a list of as many entries as there are rows."""

from collections.abc import Mapping, Sequence
from typing import Any


class Columns:
    """One line of a frequent kind."""

    def __init__(self, event: Mapping[str, object]) -> None:
        self.count = int(str(event["rows"]))
        columns = event["columns"]
        assert isinstance(columns, dict), "a line of rows has columns"
        self._columns = columns

    def of(self, name: str, otherwise: object = None) -> Sequence[Any]:  # Any: what JSON held
        value = self._columns.get(name, otherwise)
        return value if isinstance(value, list) else [value] * self.count

    def ints(self, name: str) -> list[int]:
        # As JSON has them: this is done for every number of every step.
        return [v or 0 for v in self.of(name, 0)]

    def floats(self, name: str) -> list[float]:
        return [number(v) for v in self.of(name, 0.0)]

    def rows(self, *names: str) -> list[tuple[object, ...]]:
        return list(zip(*(self.of(name) for name in names), strict=True))


def number(value: object) -> float:
    """What the log has for a number; JSON of Python also knows NaN and Infinity."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, int | float) else float("nan")


def maybe(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def maybe_int(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

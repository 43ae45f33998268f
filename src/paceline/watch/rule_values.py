"""How are the values of a rule file read? Each is known or refused, with its line and what is allowed."""

import math
import re
from collections.abc import Iterable, Mapping

from paceline.errors import Problem
from paceline.watch.rule_lines import HINT, Written
from paceline.watch.rules import Severity

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
Table = Mapping[str, object]
Near = tuple[object, str | None]


def seconds(value: object) -> float | None:
    """`5m` and the like; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _UNITS_S[found[2]] if found else None


def listed(said: object) -> list[object]:
    if said is None:
        return []
    return list(said) if isinstance(said, list) else [said]


class Values:
    """Reads, and gathers what is wrong."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self.problems: list[Problem] = list(written.problems)

    def problem(self, what: str, hint: str, said: object, key: str | None = None) -> None:
        self.problems.append(Problem(what, hint, self._written.at(said, key)))

    def mapping(self, said: object, place: str, known: Iterable[str], near: Near = (None, None)) -> Table:
        """The mapping itself: its lines are known by it. `near`: in what, by which key, this stands."""
        if not isinstance(said, dict):
            # Not what it is: the address of a webhook may stand there.
            self.problem(f"{place} must be a mapping of keys", HINT, *near)
            return {}
        allowed = sorted(known)
        for key in said:
            if key not in allowed:
                what = f"{place} has the unknown key {key!r}"
                self.problem(what, f"it may have {', '.join(allowed)}", said, str(key))
        return said

    def choice(self, table: Table, key: str, otherwise: str, choices: Iterable[str], place: str) -> str:
        value, allowed = str(table.get(key, otherwise)), list(choices)
        if value not in allowed:
            self.problem(f"{place}: {key} is {value!r}", f"use one of {', '.join(allowed)}", table, key)
            return otherwise
        return value

    def severity(self, table: Table, key: str, place: str) -> Severity:
        words = [s.word for s in Severity]
        said = str(table.get(key, "warning"))
        if said.lower() not in words:
            self.problem(f"{place}: {key} is {said!r}", f"use one of {', '.join(words)}", table, key)
            return Severity.WARNING
        return Severity[said.upper()]

    def count(self, table: Table, key: str, otherwise: int, place: str, *, least: int = 0) -> int:
        value = table.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            what = f"{place}: {key} is {value!r}, but must be a whole number from {least} on"
            self.problem(what, f"{key}: {otherwise}", table, key)
            return otherwise
        return value

    def number(self, table: Table, key: str, otherwise: float, place: str) -> float:
        value = table.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.problem(f"{place}: {key} is {value!r}, but must be a number", f"{key}: 0.5", table, key)
            return otherwise
        return float(value)

    def seconds(self, table: Table, key: str, otherwise: float, place: str) -> float:
        if key not in table:
            return otherwise
        found = seconds(table[key])
        if found is None:
            self.problem(f"{place}: {key} is {table[key]!r}, which is no duration", f"{key}: 5m", table, key)
            return otherwise
        return found

"""How is a number remembered for two days in little room? In rings of ever wider buckets.

Each bucket keeps the least, the greatest and the last value of its time, so that no
peak is lost, however coarse it gets. Ten values a second for ten minutes (only where
numbers come that fast), one a second for two hours, one in ten seconds for 48 hours.
A number that comes once a second has one value in a bucket of a second: that one is all
that is kept of it, in a third of the room.
Pure; a bucket without values is NaN inside, and left out of what is given out.
"""

import math
from array import array
from collections.abc import Sequence

from paceline.plan.codec import Json

FINE = (0.1, 6_000)
USUAL = (1.0, 7_200)
COARSE = (10.0, 17_280)
Bucket = tuple[float, float, float, float]  # its beginning in seconds, least, greatest, last


class Ring:
    """Buckets of one width, one after the other without gaps; the oldest go."""

    def __init__(self, width_s: float, most: int, *, has_range: bool = True) -> None:
        """`has_range`: more than one value comes in a bucket's time."""
        self.width_s, self._most = width_s, most
        self._first = 0  # number of the oldest bucket that is kept
        self._last = array("f")
        self._low, self._high = (array("f"), array("f")) if has_range else (self._last, self._last)
        self._sides = (self._low, self._high, self._last) if has_range else (self._last,)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def begins_s(self) -> float:
        return self._first * self.width_s

    def add(self, at_s: float, value: float) -> None:
        number = math.floor(at_s / self.width_s + 1e-9)
        if not self._last or number - self._first >= len(self) + self._most:
            self._first = number
            self._cut(len(self))
        place = number - self._first
        if place < 0:
            return  # so late that its time is no longer kept
        missing = place + 1 - len(self)
        if missing > 0:
            for side in self._sides:
                side.extend([math.nan] * missing)
        if math.isnan(self._last[place]):
            self._low[place] = self._high[place] = value
        else:
            self._low[place] = min(self._low[place], value)
            self._high[place] = max(self._high[place], value)
        self._last[place] = value
        # Some more than is kept, so that the front is cut off now and then only.
        if len(self) > self._most * 17 // 16:
            cut = len(self) - self._most
            self._first += cut
            self._cut(cut)

    def _cut(self, count: int) -> None:
        for side in self._sides:
            del side[:count]

    def between(self, from_s: float, to_s: float) -> list[Bucket]:
        first = max(0, math.floor(from_s / self.width_s) - self._first)
        end = min(len(self), math.floor(to_s / self.width_s) - self._first + 1)
        return [
            ((self._first + i) * self.width_s, self._low[i], self._high[i], self._last[i])
            for i in range(first, end)
            if not math.isnan(self._last[i])
        ]


class Series:
    """One number over time."""

    def __init__(self, *, unit: str, group: str, is_fast: bool = False) -> None:
        self.unit, self.group = unit, group
        tiers = (FINE, USUAL, COARSE) if is_fast else (USUAL, COARSE)
        self._rings = [Ring(*tier, has_range=is_fast or tier is COARSE) for tier in tiers]
        self.last: float | None = None

    def add(self, at_s: float, value: float) -> None:
        if math.isfinite(value):
            self.last = value
            for ring in self._rings:
                ring.add(at_s, value)

    def read(self, from_s: float, to_s: float, points: int) -> list[Bucket]:
        """At most so many buckets, from the finest ring that still knows the beginning."""
        # What was there within the first wide bucket was there from the beginning.
        oldest_s = self._rings[-1].begins_s + self._rings[-1].width_s
        for ring in self._rings:
            if len(ring) and (ring.begins_s <= max(from_s, oldest_s) + ring.width_s):
                return thinned(ring.between(from_s, to_s), points)
        return thinned(self._rings[-1].between(from_s, to_s), points)


def thinned(buckets: Sequence[Bucket], points: int) -> list[Bucket]:
    """Neighbours become one, with the least of the least and the greatest of the greatest."""
    if len(buckets) <= points:
        return list(buckets)
    made = []
    for i in range(points):
        part = buckets[i * len(buckets) // points : (i + 1) * len(buckets) // points]
        made.append((part[0][0], min(b[1] for b in part), max(b[2] for b in part), part[-1][3]))
    return made


class SeriesTable:
    """All series of a run, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Series] = {}

    def add(
        self, name: str, at_s: float, value: float | None, *, unit: str, group: str, is_fast: bool = False
    ) -> None:
        if value is None:
            return
        if name not in self._all:
            self._all[name] = Series(unit=unit, group=group, is_fast=is_fast)
        self._all[name].add(at_s, value)

    def only(self, names: Sequence[str]) -> "SeriesTable":
        """A table of these series alone, which are not copied."""
        table = SeriesTable()
        table._all = {name: one for name, one in self._all.items() if name in names}
        return table

    def get(self, name: str) -> Series | None:
        return self._all.get(name)

    def told(self, names: Sequence[str] | None, from_s: float, to_s: float, points: int) -> dict[str, Json]:
        wanted = list(self._all) if names is None else [n for n in names if n in self._all]
        listed: list[Json] = [
            {"name": name, "unit": one.unit, "group": one.group} for name, one in self._all.items()
        ]
        data: dict[str, Json] = {
            name: [
                [round(t, 3), *map(_short, rest)] for t, *rest in self._all[name].read(from_s, to_s, points)
            ]
            for name in wanted
        }
        return {"names": listed, "data": data}


def _short(value: float) -> float:
    """Kept in single precision: more digits would be made up."""
    return float(f"{value:.7g}")

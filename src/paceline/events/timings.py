"""How are many durations told in a few numbers? By how many were at most so long, and their sum. Pure.

Whoever measures often (a coordinator's node, several thousand times a second) counts, and
tells the counts once a second. In a line of the log they are one word, with the empty
buckets left out: `0.52/3:10,7:2` is twelve durations of 0.52 s together, ten of them in
bucket 3.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class Timings:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))  # the last: still longer
    total_s: float = 0.0

    def add(self, took_s: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, took_s)] += times
        self.total_s += took_s * times

    @classmethod
    def of(cls, counts: Sequence[int], total_s: float) -> Self | None:
        """None where they were counted by other bounds, or not at all."""
        return cls(list(counts), total_s) if len(counts) == len(BOUNDS_S) + 1 else None

    @property
    def count(self) -> int:
        return sum(self.counts)

    def word(self) -> str:
        filled = ",".join(f"{place}:{count}" for place, count in enumerate(self.counts) if count)
        return f"{self.total_s:.6g}/{filled}"

    @classmethod
    def read(cls, word: str) -> Self:
        total, _, filled = word.partition("/")
        found = cls(total_s=float(total))
        for part in filled.split(",") if filled else ():
            place, _, count = part.partition(":")
            found.counts[int(place)] = int(count)
        return found

    def since(self, before: "Timings") -> "Timings":
        """What was added since then; all of it where counting began anew."""
        differs = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(differs) < 0:
            return self
        return Timings(differs, self.total_s - before.total_s)

    def quantile(self, share: float) -> float | None:
        """About, with a straight line through the bucket, as Prometheus does; None of nothing."""
        rank, so_far = share * self.count, 0
        if not self.count:
            return None
        for place, count in enumerate(self.counts[:-1]):
            if count and so_far + count >= rank:
                below = BOUNDS_S[place - 1] if place else 0.0
                return below + (BOUNDS_S[place] - below) * (rank - so_far) / count
            so_far += count
        return BOUNDS_S[-1]

"""How are thousands of steps kept in little room? As columns of plain numbers, not as objects.

A row of Python floats takes 400 bytes, and 64 workers make 640 of them a second. A lane
keeps the newest rows of one worker in 52 bytes each: moments in double precision,
durations and the loss in single. A batch is what one line of the log told, exactly. Pure.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import inf

# step, start_s, the eight phases in seconds, loss
LaneRow = tuple[int, float, float, float, float, float, float, float, float, float, float]
WIDTH = 11
SHORT = WIDTH - 2  # of these in single precision


class Lane:
    """The newest rows of one worker; the oldest go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 0  # where the next row goes, once there is no more room
        self._steps, self._starts, self._rest = array("q"), array("d"), array("f")

    def __len__(self) -> int:
        return len(self._steps)

    def extend(self, rows: Iterable[LaneRow]) -> None:
        for step, start_s, *rest in rows:
            if len(self) < self._most:
                self._steps.append(step)
                self._starts.append(start_s)
                self._rest.extend(rest)
                continue
            place = self._next
            self._steps[place], self._starts[place] = step, start_s
            self._rest[place * SHORT : (place + 1) * SHORT] = array("f", rest)
            self._next = (place + 1) % self._most

    def between(self, from_s: float, to_s: float, most: int) -> list[LaneRow]:
        """Those that touch this time, the oldest first; of more than `most`, the newest."""
        in_order = (*range(self._next, len(self)), *range(self._next))
        touching = [p for p in in_order if self._starts[p] <= to_s and self._ended_s(p) >= from_s]
        return [
            _row(self._steps[p], self._starts[p], map(_short, self._rest[p * SHORT : (p + 1) * SHORT]))
            for p in touching[-most:]
        ]

    def newest(self, most: int) -> list[LaneRow]:
        return self.between(-inf, inf, most)

    def _ended_s(self, place: int) -> float:
        return self._starts[place] + sum(self._rest[place * SHORT : (place + 1) * SHORT - 1])


class Batch:
    """The rows of one line of the log."""

    __slots__ = ("_flat", "seq", "worker")

    def __init__(self, seq: int, worker: str, rows: Sequence[LaneRow]) -> None:
        self.seq, self.worker = seq, worker
        self._flat = array("d", [number for row in rows for number in row])

    def __len__(self) -> int:
        return len(self._flat) // WIDTH

    def rows(self) -> Iterator[LaneRow]:
        for begin in range(0, len(self._flat), WIDTH):
            step, start_s, *rest = self._flat[begin : begin + WIDTH]
            yield _row(int(step), start_s, rest)


def _row(step: int, start_s: float, rest: Iterable[float]) -> LaneRow:
    data, forward, backward, delay, wait, codec, comm, apply, loss = rest
    return (step, start_s, data, forward, backward, delay, wait, codec, comm, apply, loss)


def _short(value: float) -> float:
    """Kept in single precision: more digits would be made up."""
    return float(f"{value:.7g}")

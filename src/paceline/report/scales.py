"""Where does a value lie on an axis, and which values are written beside it? Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    first: float  # where `low` lies, in the picture's units
    last: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, here = (
            map(math.log10, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        )
        return self.first + (here - low) / (high - low) * (self.last - self.first)

    def ticks(self, count: int = 5) -> list[float]:
        found = _log_ticks(self.low, self.high) if self.is_log else _ticks(self.low, self.high, count)
        return found or [self.low, self.high]


def scale_for(
    values: Sequence[float], first: float, last: float, *, from_zero: bool = False, is_log: bool = False
) -> Scale:
    """From the least to the most of these, with a little room."""
    low, high = min(values), max(values)
    if is_log:
        return Scale(low / 1.08, high * 1.08, first, last, is_log=True)
    low = min(0.0, low) if from_zero else low
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return Scale(low if low in (0.0, 1.0) else low - room, high + room, first, last)


def tick_text(value: float) -> str:
    if value and (abs(value) >= 10_000 or abs(value) < 0.001):
        return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.0e}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(1, count)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in _STEPS if s * unit >= rough * 0.999)
    begin = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(begin, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**k for k in powers for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return [t for t in found if math.log10(t).is_integer()] if len(found) > 7 else found

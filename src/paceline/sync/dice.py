"""The same random number for the same place, whoever asks and in whatever order.

Counter-based: a draw is a hash of (seed, *place), so a worker that restarts,
a replay and a simulator all see what the first run saw.
"""

_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def draw_u64(seed: int, *place: int) -> int:
    state = _mix((seed + 0x9E3779B97F4A7C15) & _MASK)
    for number in place:
        state = _mix((state ^ _mix((number + 0x9E3779B97F4A7C15) & _MASK)) + 0x9E3779B97F4A7C15 & _MASK)
    return state


def draw_uniform(seed: int, *place: int) -> float:
    """A number in [0, 1)."""
    return (draw_u64(seed, *place) >> 11) / (1 << 53)

"""The same random number for the same place, whoever asks and in whatever order.

Counter-based: a draw is a hash of (seed, *place), so a worker that restarts,
a replay and a simulator all see what the first run saw.
"""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def draw_u64(seed: int, *place: int) -> int:
    """Draw number `place` of the generator seeded with all that comes before it in the place."""
    state = _mix((seed + _GAMMA) & _MASK)
    for number in place:
        # A sum, not an exclusive or of two hashes: seed 1 of worker 0 must not be seed 0 of worker 1.
        state = _mix(state + (number + 1) * _GAMMA & _MASK)
    return state


def draw_uniform(seed: int, *place: int) -> float:
    """A number in [0, 1)."""
    return (draw_u64(seed, *place) >> 11) / (1 << 53)

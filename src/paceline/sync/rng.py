"""Counter-based random numbers: a draw is a hash of (seed, *place).

A draw does not depend on the order of draws or on the process, so a restarted
worker, a replay and a simulator see the same numbers as the first run.
"""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def draw_u64(seed: int, *place: int) -> int:
    """A 64-bit integer for this place; every number of the place starts a new stream."""
    state = _mix((seed + _GAMMA) & _MASK)
    for number in place:
        # A sum, not an exclusive or of two hashes: seed 1 of worker 0 must not be seed 0 of worker 1.
        state = _mix(state + (number + 1) * _GAMMA & _MASK)
    return state


def draw_uniform(seed: int, *place: int) -> float:
    """A number in [0, 1)."""
    return (draw_u64(seed, *place) >> 11) / (1 << 53)

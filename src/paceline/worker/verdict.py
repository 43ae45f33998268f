"""Did a replay agree with the record, bit by bit?"""

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    is_equal: bool
    updates: int
    gradients: int
    state_sha256: str
    parted: str | None  # where the replay and the record part; None when they never do


def same_bits(one: float, other: float) -> bool:
    """Equal as bits: two NaNs are equal, 0.0 and -0.0 are not."""
    return struct.pack("d", one) == struct.pack("d", other)

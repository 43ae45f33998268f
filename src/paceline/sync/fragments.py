"""Which part of the parameters is synced after which step? (streaming DiLoCo)

The vector is cut into stretches, each element in exactly one. Fragment p is
synced after steps o, o+H, o+2H … with o = p·H/P (H for the first), so each is
synced exactly once in every H steps, and they take turns.
"""

from itertools import pairwise

ALIGN = 16  # elements; a stretch begins on a cache line


def cut(size: int, pieces: int) -> list[tuple[int, int]]:
    """(start, end) of each stretch. Never more stretches than there are cache lines."""
    lines = -(-size // ALIGN)
    pieces = min(pieces, max(1, lines))
    marks = [min(size, lines * number // pieces * ALIGN) for number in range(pieces + 1)]
    return list(pairwise(marks))


def starts_after(finished: int, fragment: int, *, every: int, fragments: int) -> bool:
    """Is this fragment's sync begun once `finished` steps are done?"""
    return finished > 0 and (finished - fragment * every // fragments) % every == 0

"""What is a law? A sentence about a mode, and a proof that runs and says what it measured."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from paceline.laws.lab import Lab
from paceline.worker.participant import state_hash


@dataclass(frozen=True, slots=True)
class Finding:
    ok: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Law:
    id: str
    what: str
    modes: tuple[str, ...]  # the built-in modes it speaks of
    check: Callable[[Lab], Finding]
    per_mode: bool = False  # checked once for each of its modes, as `U3.asgd`
    starts_processes: bool = False  # checked on real worker processes, not in virtual time


def within(difference: float, limit: float) -> Finding:
    return Finding(difference <= limit, f"largest difference {difference:.2e}, limit {limit:.0e}")


def bit_equal(one: str, other: str, *, of: str) -> Finding:
    same = one == other
    return Finding(same, f"{of}: {one[:12]} {'=' if same else '≠'} {other[:12]}")


def equal_states(one: dict[str, Tensor], other: dict[str, Tensor], *, of: str) -> Finding:
    """Bit-equal; if not, also how far apart, because rounding is another matter than a mistake."""
    finding = bit_equal(state_hash(one), state_hash(other), of=of)
    if finding.ok:
        return finding
    apart = max(float((one[name] - other[name]).abs().max()) for name in one)
    return Finding(False, f"{finding.measured}; they differ by up to {apart:.1e}")

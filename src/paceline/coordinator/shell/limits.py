"""Has somebody asked too often? Token buckets, told the time.

A bucket of `burst` requests fills up by `per_s` every second; a request that finds it
empty is refused. A bucket that is full again is forgotten: it says nothing that a new
one would not say, so a stream of strangers does not fill the memory.
"""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    per_s: float
    burst: float

    def __post_init__(self) -> None:
        assert self.per_s > 0, "a rate lets something through"
        assert self.burst >= 1, "a burst lets at least one request through"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node takes from its clients; other nodes are not limited."""

    # Of one identity from one host: a whole machine full of workers that share one certificate.
    per_caller: Rate = Rate(10_000, 10_000)
    overall: Rate = Rate(20_000, 20_000)
    # Refusals for want of a good token, for one host.
    failures: Rate = Rate(10, 20)
    message_bytes: int = 4 << 20
    streams_per_connection: int = 4096
    calls_at_once: int = 16_384
    # A connection that does not greet, or that nothing is asked on, is closed: each is a file.
    greeting_ms: int = 5_000
    idle_ms: int = 30_000


class Buckets:
    """One bucket for each key, made when it is first asked for."""

    def __init__(self, rate: Rate, *, most: int = 4096) -> None:
        self.rate, self._most = rate, most
        self._left: dict[Hashable, tuple[float, float]] = {}  # requests left, and when that was true

    def __len__(self) -> int:
        return len(self._left)

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """Take one request out of the bucket and return 0, or say how long to wait until there is one."""
        per_s, burst = self.rate.per_s, self.rate.burst
        known = self._left.get(key)
        if known is None:
            if len(self._left) >= self._most:
                self._forget(now_s)
            left = burst
        else:
            left = min(burst, known[0] + (now_s - known[1]) * per_s)
        if left < 1:
            # Not stored: what was stored still says the same.
            return (1 - left) / per_s
        self._left[key] = (left - 1, now_s)
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Forget the buckets that are full again; if there are none, the older half.

        The older half is forgiven what it took: better than an unlimited memory.
        """
        per_s, burst = self.rate.per_s, self.rate.burst
        kept = [(k, v) for k, v in self._left.items() if v[0] + (now_s - v[1]) * per_s < burst]
        if len(kept) >= self._most:
            kept = sorted(kept, key=lambda item: item[1][1])[len(kept) // 2 :]
        self._left = dict(kept)

"""Leases of workers: silence of `lease_s` is a loss, and so is `grace_s` after a connection ended.

Signs of life stay on the leader; only losses enter the log. A lease is counted from the last sign of
life, from when the leader began to lead, or from the end of the leader's last standstill, whichever is
latest: a leader that did not run has received no signs, so after a gap every worker holds a whole lease
again before any is judged. Pure: the time is given.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    run: str
    worker: str
    incarnation: int


@dataclass(slots=True)
class Leases:
    lease_s: float
    grace_s: float
    _heard_s: dict[Holder, float] = field(default_factory=dict)
    _closed_s: dict[Holder, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._heard_s)

    def restart(self, holders: Iterable[Holder], now_s: float) -> None:
        """Leadership begins: every worker gets a whole lease."""
        self._heard_s = dict.fromkeys(holders, now_s)
        self._closed_s.clear()

    def heard(self, holder: Holder, now_s: float) -> None:
        self._heard_s[holder] = now_s
        self._closed_s.pop(holder, None)

    def holds(self, holder: Holder) -> bool:
        return holder in self._heard_s

    def closed(self, holder: Holder, now_s: float) -> None:
        """Its connection ended without a goodbye: it may come back, but soon."""
        if holder in self._heard_s:
            self._closed_s[holder] = now_s

    def end(self, holder: Holder) -> None:
        self._heard_s.pop(holder, None)
        self._closed_s.pop(holder, None)

    def clear(self) -> None:
        self._heard_s.clear()
        self._closed_s.clear()

    def take_expired(self, now_s: float, attentive_since_s: float = -math.inf) -> list[tuple[Holder, str]]:
        """The workers that are lost now, each with the reason; they hold nothing any more.

        `attentive_since_s`: when the last standstill of this process ended (`clock.Attention`).
        """
        found = sorted(
            holder for holder in self._heard_s if self._until_s(holder, attentive_since_s) <= now_s
        )
        lost = [(holder, self._reason(holder)) for holder in found]
        for holder in found:
            self.end(holder)
        return lost

    def _until_s(self, holder: Holder, attentive_since_s: float) -> float:
        until_s = max(self._heard_s[holder], attentive_since_s) + self.lease_s
        if holder not in self._closed_s:
            return until_s
        # Connections that broke during a standstill, or because of it, are found closed after it.
        grace_until_s = max(self._closed_s[holder] + self.grace_s, attentive_since_s + self.lease_s)
        return min(until_s, grace_until_s)

    def _reason(self, holder: Holder) -> str:
        if holder in self._closed_s:
            return f"its connection ended and it did not come back within {self.grace_s:g} s"
        return f"no sign of life for {self.lease_s:g} s"

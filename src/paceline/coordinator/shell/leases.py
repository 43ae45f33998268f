"""Which workers have been silent too long? Signs of life stay on the leader; only losses enter the log.

A lease is a promise to wait: `lease_s` after the last sign of life, or `grace_s`
after the worker's connection ended, if it did not come back. A new leader has
heard nobody yet, so it grants everybody one whole lease. Pure: told the time.
"""

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
    _until_s: dict[Holder, float] = field(default_factory=dict)
    _is_closing: set[Holder] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._until_s)

    def restart(self, holders: Iterable[Holder], now_s: float) -> None:
        """Leadership is new here: everybody gets a whole lease."""
        self._until_s = dict.fromkeys(holders, now_s + self.lease_s)
        self._is_closing.clear()

    def heard(self, holder: Holder, now_s: float) -> None:
        self._until_s[holder] = now_s + self.lease_s
        self._is_closing.discard(holder)

    def holds(self, holder: Holder) -> bool:
        return holder in self._until_s

    def closed(self, holder: Holder, now_s: float) -> None:
        """Its connection ended without a goodbye: it may come back, but soon."""
        if holder in self._until_s:
            self._until_s[holder] = min(self._until_s[holder], now_s + self.grace_s)
            self._is_closing.add(holder)

    def end(self, holder: Holder) -> None:
        self._until_s.pop(holder, None)
        self._is_closing.discard(holder)

    def clear(self) -> None:
        self._until_s.clear()
        self._is_closing.clear()

    def take_expired(self, now_s: float) -> list[tuple[Holder, str]]:
        """Those who are lost now, each with the reason; they hold nothing any more."""
        found = sorted(holder for holder, until_s in self._until_s.items() if until_s <= now_s)
        lost = [(holder, self._reason(holder)) for holder in found]
        for holder in found:
            self.end(holder)
        return lost

    def _reason(self, holder: Holder) -> str:
        if holder in self._is_closing:
            return f"its connection ended and it did not come back within {self.grace_s:g} s"
        return f"no sign of life for {self.lease_s:g} s"

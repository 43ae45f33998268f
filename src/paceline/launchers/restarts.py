"""A worker was lost: is it replaced, and when? Pure: told what happened and the time.

Each loss of the same worker makes it wait twice as long as the one before, up
to a limit, plus a part that differs from worker to worker, so that not all come
back at once. Losses that are long ago are forgiven. A worker that is lost again
and again is left out (quarantine); when all its chances are used up, the run gives up.
"""

from dataclasses import dataclass, field

FIRST_S = 0.1
FORGIVEN_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class Replace:
    who: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveOut:
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision = Replace | LeaveOut | GiveUp


@dataclass(slots=True)
class Restarts:
    """What a run has left of its patience."""

    budget: int
    min_workers: int
    longest_s: float = 30.0
    _losses_s: dict[str, list[float]] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)  # of each one's last loss
    _used: int = 0

    def lost(self, who: str, why: str, now_s: float, *, living: int, dice: float) -> Decision:
        """`living` are those who are left; `dice` is from 0 to 1."""
        recent = [at_s for at_s in self._losses_s.get(who, []) if now_s - at_s < FORGIVEN_AFTER_S]
        self._losses_s[who], self._reasons[who] = [*recent, now_s], why
        self._used += 1
        count = len(recent) + 1
        if self._used > self.budget:
            return self._without(who, f"{self.budget} replacements are used up", living)
        if count >= max(2, self.budget // 3):
            return self._without(who, f"{who} was lost {count} times in {FORGIVEN_AFTER_S:g} s", living)
        wait_s = min(self.longest_s, FIRST_S * 2 ** (count - 1)) * (1 + 0.25 * dice)
        reason = f"{who} was lost ({why}); it is replaced in {wait_s:.2f} s, for the {_th(count)} time"
        return Replace(who, now_s + wait_s, reason)

    def forgive(self, who: str) -> None:
        """Somebody wants it back."""
        self._losses_s.pop(who, None)

    def renew(self) -> None:
        """An operator has looked: replacements are counted from here on."""
        self._losses_s.clear()
        self._used = 0

    def in_words(self) -> str:
        """What is known: who was lost, how often, and why."""
        return "; ".join(
            f"{who} was lost {len(losses)} times, at last: {self._reasons[who]}"
            for who, losses in sorted(self._losses_s.items())
        )

    def _without(self, who: str, why: str, living: int) -> LeaveOut | GiveUp:
        if living >= self.min_workers:
            return LeaveOut(who, f"{why}: the run goes on with {living} workers")
        return GiveUp(f"{why}, and {living} workers are fewer than the {self.min_workers} that the run needs")


def _th(count: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(count, f"{count}th")

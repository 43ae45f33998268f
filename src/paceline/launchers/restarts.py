"""The rule that replaces lost workers: whether, and when. Pure: what happened and the time are given.

Each loss of the same worker makes it wait twice as long as the one before, up
to a limit, plus a part that differs from worker to worker, so that not all come
back at once. Losses that are long ago are forgiven. A worker that is lost again
and again is left out (quarantine). Within any hour at most `budget` workers are
replaced: the next one waits until the hour allows it, and a run that has too few
workers meanwhile gives up.
"""

from collections import deque
from dataclasses import dataclass, field

FIRST_S = 0.1
FORGIVEN_AFTER_S = 300.0
WINDOW_S = 3600.0


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
    """Losses so far, and how many replacements are left."""

    budget: int  # within WINDOW_S
    min_workers: int
    longest_s: float = 30.0
    _losses_s: dict[str, list[float]] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)  # of each one's last loss
    _replaced_s: deque[float] = field(default_factory=deque)  # when, within the last WINDOW_S

    def lost(self, who: str, why: str, now_s: float, *, living: int, dice: float) -> Decision:
        """`living` are those who are left; `dice` is from 0 to 1."""
        recent = [at_s for at_s in self._losses_s.get(who, []) if now_s - at_s < FORGIVEN_AFTER_S]
        self._losses_s[who], self._reasons[who] = [*recent, now_s], why
        count = len(recent) + 1
        if count >= max(2, self.budget // 3):
            return self._without(who, f"{who} was lost {count} times in {FORGIVEN_AFTER_S:g} s", living)
        while self._replaced_s and now_s - self._replaced_s[0] >= WINDOW_S:
            self._replaced_s.popleft()
        if len(self._replaced_s) >= self.budget:
            return self._over_budget(who, why, now_s, living)
        wait_s = min(self.longest_s, FIRST_S * 2 ** (count - 1)) * (1 + 0.25 * dice)
        self._replaced_s.append(now_s + wait_s)
        reason = f"{who} was lost ({why}); it is replaced in {wait_s:.2f} s, for the {_th(count)} time"
        return Replace(who, now_s + wait_s, reason)

    def _over_budget(self, who: str, why: str, now_s: float, living: int) -> Decision:
        spent = f"{self.budget} replacements within an hour, which --max-replacements allows, are used up"
        if not self.budget or living < self.min_workers:
            return self._without(who, spent, living)
        at_s = self._replaced_s.popleft() + WINDOW_S  # its place in the window becomes the new one's
        self._replaced_s.append(at_s)
        reason = f"{who} was lost ({why}); {spent}: it is replaced in {(at_s - now_s) / 60:.0f} minutes"
        return Replace(who, at_s, reason)

    def forgive(self, who: str) -> None:
        """Somebody wants it back."""
        self._losses_s.pop(who, None)

    def renew(self) -> None:
        """An operator has looked: replacements are counted from here on."""
        self._losses_s.clear()
        self._replaced_s.clear()

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

"""What does it mean for the run that a participant ended? Pure: facts in, verdict out.

A run is finished when every participant ended well. When one fails, the cause
is the first failure that is not itself the consequence of another: workers
that lost a peer only report that they lost it.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from paceline.core.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Failure:
    who: str
    what: str
    hint: str
    is_consequence: bool
    exit_code: ExitCode = ExitCode.TRAINING_FAILED
    by_signal: bool = False
    code: str = ""  # which kind of error it was there; empty: nobody knows


@dataclass(slots=True)
class Ledger:
    """What is known about each participant, in the order in which it became known."""

    failures: list[Failure] = field(default_factory=list)

    def error(self, failure: Failure) -> None:
        """A participant said itself what went wrong."""
        self.failures.append(failure)

    def end(self, who: str, *, log: str) -> None:
        """We ended a participant ourselves, as it did not end after another one had failed."""
        what = f"{who} did not answer any more and was ended"
        self.failures.append(Failure(who, what, f"its log is {log}", is_consequence=True))

    def exit(self, who: str, code: int, *, last_step: int | None, log: str) -> None:
        """A process ended. A negative code is a signal; it cannot have reported that itself."""
        if code == 0 or any(f.who == who for f in self.failures):
            return
        where = "" if last_step is None else f" after {last_step} steps"
        if code < 0:
            what = f"{who} was killed by signal {-code}{where}"
            hint = "signal 9 is often the kernel out of memory, or an operator; see dmesg"
        else:
            what = f"{who} ended with exit code {code}{where}"
            hint = f"its log is {log}"
        self.failures.append(Failure(who, what, hint, is_consequence=False, by_signal=code < 0))

    def cause(self) -> Failure | None:
        """What the user should hear about; None when all went well."""
        # A kill comes from outside, so whatever the others then ran into (torch's DDP calls it by many
        # names) is its consequence, even if they reported it first.
        killed = [f for f in self.failures if f.by_signal]
        own = [f for f in self.failures if not f.is_consequence]
        return next(iter([*killed, *own, *self.failures]), None)


# Each loss of the same worker makes it wait twice as long as the one before, up
# to a limit, plus a part that differs from worker to worker, so that not all come
# back at once. Losses that are long ago are forgiven. A worker that is lost again
# and again is left out (quarantine). Within any hour at most `budget` workers are
# replaced: the next one waits until the hour allows it, and a run that has too few
# workers meanwhile gives up.

FIRST_DELAY_S = 0.1
RESET_AFTER_S = 300.0
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
class RestartPolicy:
    """Losses so far, and how many replacements are left."""

    budget: int  # within WINDOW_S
    min_workers: int
    longest_s: float = 30.0
    _losses_s: dict[str, list[float]] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)  # of each one's last loss
    _replaced_s: deque[float] = field(default_factory=deque)  # when, within the last WINDOW_S

    def lost(self, who: str, why: str, now_s: float, *, living: int, dice: float) -> Decision:
        """`living` are those who are left; `dice` is from 0 to 1."""
        recent = [at_s for at_s in self._losses_s.get(who, []) if now_s - at_s < RESET_AFTER_S]
        self._losses_s[who], self._reasons[who] = [*recent, now_s], why
        count = len(recent) + 1
        if count >= max(2, self.budget // 3):
            return self._without(who, f"{who} was lost {count} times in {RESET_AFTER_S:g} s", living)
        while self._replaced_s and now_s - self._replaced_s[0] >= WINDOW_S:
            self._replaced_s.popleft()
        if len(self._replaced_s) >= self.budget:
            return self._over_budget(who, why, now_s, living)
        wait_s = min(self.longest_s, FIRST_DELAY_S * 2 ** (count - 1)) * (1 + 0.25 * dice)
        self._replaced_s.append(now_s + wait_s)
        reason = f"{who} was lost ({why}); it is replaced in {wait_s:.2f} s, for the {_ordinal(count)} time"
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


def _ordinal(count: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(count, f"{count}th")


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What somebody asked of the run."""

    number: int
    kind: str  # add, remove, checkpoint
    count: int = 1
    worker: str = ""  # remove: this one; empty: whoever is newest


@dataclass(frozen=True, slots=True)
class Granted:
    number: int
    start: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    reason: str = ""
    is_saving: bool = False  # nobody comes or goes: the run's log will say that it was saved


@dataclass(frozen=True, slots=True)
class Refused:
    number: int
    reason: str


OperatorResponse = Granted | Refused


@dataclass(frozen=True, slots=True)
class Workforce:
    """Who is there, and how many there may be."""

    here: Collection[str]  # who lives or is about to be replaced
    leaving: Collection[str]  # who was asked to leave and still lives
    fewest: int
    most: int
    names: int  # shards of the run: there is a name for each


def answer_request(wish: OperatorRequest, crew: Workforce) -> OperatorResponse:
    if wish.count < 1:
        return Refused(wish.number, f"{wish.count} workers were named, but it takes 1 or more")
    match wish.kind:
        case "add":
            return _add(wish, crew)
        case "remove":
            return _remove(wish, crew)
        case "checkpoint":
            return Granted(wish.number, reason="a checkpoint is written after the next step", is_saving=True)
        case _:
            return Refused(wish.number, f"this run knows no action {wish.kind!r}")


def _add(wish: OperatorRequest, crew: Workforce) -> OperatorResponse:
    after = len(crew.here) + wish.count
    if after > crew.most:
        cause = "it has no more shards" if crew.most == crew.names else "as --max-workers says"
        return Refused(wish.number, f"it would have {after} workers, and takes {crew.most} at most: {cause}")
    taken = {*crew.here, *crew.leaving}
    free = [name for index in range(crew.names) if (name := f"worker-{index}") not in taken]
    if len(free) < wish.count:
        return Refused(wish.number, f"{len(crew.leaving)} workers are still leaving; ask again in a moment")
    start = tuple(free[: wish.count])
    return Granted(wish.number, start=start, reason=f"{', '.join(start)} added: {after} workers are wanted")


def _remove(wish: OperatorRequest, crew: Workforce) -> OperatorResponse:
    if wish.worker and wish.worker not in crew.here:
        return Refused(wish.number, f"{wish.worker} is not there")
    newest = sorted(crew.here, key=_index, reverse=True)
    leave = (wish.worker,) if wish.worker else tuple(newest[: wish.count])
    after = len(crew.here) - max(len(leave), wish.count)
    if after < crew.fewest:
        return Refused(
            wish.number,
            f"it would have {max(after, 0)} workers, and needs {crew.fewest}, as --min-workers says",
        )
    return Granted(wish.number, leave=leave, reason=f"{', '.join(leave)} removed: {after} workers are wanted")


def _index(name: str) -> int:
    return int(name.removeprefix("worker-"))

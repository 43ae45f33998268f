"""Supervision policies, pure: the cause of a failed run, restarts of lost workers, and resizing.

`Ledger`: a run is finished when every participant ended well. When one fails, the cause is the first failure
that is not itself the consequence of another: workers that lost a peer only report that they lost it.
`RestartPolicy` decides about lost workers, `answer_request` about operators' requests.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from paceline.core.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Failure:
    who: str
    what: str
    hint: str
    is_consequence: bool
    exit_code: ExitCode = ExitCode.TRAINING_FAILED
    by_signal: bool = False
    code: str = ""  # the error code reported there; empty: unknown


@dataclass(slots=True)
class Ledger:
    """Failures of participants, in order of arrival."""

    failures: list[Failure] = field(default_factory=list)

    def error(self, failure: Failure) -> None:
        """A participant reported its own error."""
        self.failures.append(failure)

    def end(self, participant: str, *, log: str) -> None:
        """We ended a participant ourselves, as it did not end after another one had failed."""
        message = f"{participant} stopped responding and was killed"
        self.failures.append(Failure(participant, message, f"its log is {log}", is_consequence=True))

    def exit(self, participant: str, code: int, *, last_step: int | None, log: str) -> None:
        """A process ended. A negative code is a signal; it cannot have reported that itself."""
        if code == 0 or any(f.who == participant for f in self.failures):
            return
        where = "" if last_step is None else f" after {last_step} steps"
        if code < 0:
            message = f"{participant} was killed by signal {-code}{where}"
            hint = "signal 9 is often the kernel's OOM killer, or an operator; see dmesg"
        else:
            message = f"{participant} ended with exit code {code}{where}"
            hint = f"its log is {log}"
        self.failures.append(Failure(participant, message, hint, is_consequence=False, by_signal=code < 0))

    def cause(self) -> Failure | None:
        """The failure to report to the user; None when all went well."""
        # A kill has an external cause, so errors of the other participants (torch's DDP reports them under
        # many names) are its consequence, even if they were reported first.
        killed = [f for f in self.failures if f.by_signal]
        own = [f for f in self.failures if not f.is_consequence]
        return next(iter([*killed, *own, *self.failures]), None)


# Each loss of the same worker doubles its delay before the replacement, up to a
# limit, plus a part that differs from worker to worker, so that not all return at
# once. Old losses are forgiven. A worker that is lost repeatedly is quarantined.
# Within any hour at most `budget` workers are replaced: the next one waits until
# the hour allows it, and a run that has too few workers meanwhile gives up.

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
    _reasons: dict[str, str] = field(default_factory=dict)  # reason of each participant's last loss
    _replaced_s: deque[float] = field(default_factory=deque)  # when, within the last WINDOW_S

    def lost(self, participant: str, why: str, now_s: float, *, living: int, jitter: float) -> Decision:
        """`living` is the number of workers that are left; `jitter` is a random number from 0 to 1."""
        recent = [at_s for at_s in self._losses_s.get(participant, []) if now_s - at_s < RESET_AFTER_S]
        self._losses_s[participant] = [*recent, now_s]
        self._reasons[participant] = why
        count = len(recent) + 1
        if count >= max(2, self.budget // 3):
            return self._without(
                participant, f"{participant} was lost {count} times in {RESET_AFTER_S:g} s", living
            )
        while self._replaced_s and now_s - self._replaced_s[0] >= WINDOW_S:
            self._replaced_s.popleft()
        if len(self._replaced_s) >= self.budget:
            return self._over_budget(participant, why, now_s, living)
        wait_s = min(self.longest_s, FIRST_DELAY_S * 2 ** (count - 1)) * (1 + 0.25 * jitter)
        self._replaced_s.append(now_s + wait_s)
        time = _ordinal(count)
        reason = f"{participant} was lost ({why}); it is replaced in {wait_s:.2f} s, for the {time} time"
        return Replace(participant, now_s + wait_s, reason)

    def _over_budget(self, participant: str, why: str, now_s: float, living: int) -> Decision:
        spent = f"{self.budget} replacements per hour (--max-replacements) are used up"
        if not self.budget or living < self.min_workers:
            return self._without(participant, spent, living)
        at_s = self._replaced_s.popleft() + WINDOW_S  # its place in the window becomes the new one's
        self._replaced_s.append(at_s)
        reason = (
            f"{participant} was lost ({why}); {spent}: it is replaced in {(at_s - now_s) / 60:.0f} minutes"
        )
        return Replace(participant, at_s, reason)

    def forgive(self, participant: str) -> None:
        """Clear its losses, at an operator's request."""
        self._losses_s.pop(participant, None)

    def renew(self) -> None:
        """Restart the count of replacements, after an operator's intervention."""
        self._losses_s.clear()
        self._replaced_s.clear()

    def describe(self) -> str:
        """The losses so far: which worker, how often, and why."""
        return "; ".join(
            f"{participant} was lost {len(losses)} times, the last time because {self._reasons[participant]}"
            for participant, losses in sorted(self._losses_s.items())
        )

    def _without(self, participant: str, why: str, living: int) -> LeaveOut | GiveUp:
        if living >= self.min_workers:
            return LeaveOut(participant, f"{why}: the run continues with {living} workers")
        return GiveUp(f"{why}, and {living} workers are fewer than the {self.min_workers} that the run needs")


def _ordinal(count: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(count, f"{count}th")


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """Request of an operator to the run."""

    number: int
    kind: str  # add, remove, checkpoint, stop
    count: int = 1
    worker: str = ""  # remove: this one; empty: the newest


class Effect(Enum):
    """What shows that a granted request is done."""

    WORKERS = "workers"  # a generation has the requested workers
    CHECKPOINT = "checkpoint"  # a newer checkpoint is catalogued
    END = "end"  # the run has ended


@dataclass(frozen=True, slots=True)
class Granted:
    number: int
    start: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    reason: str = ""
    effect: Effect = Effect.WORKERS


@dataclass(frozen=True, slots=True)
class Refused:
    number: int
    reason: str


OperatorResponse = Granted | Refused


@dataclass(frozen=True, slots=True)
class Workforce:
    """The workers of a run, and its limits."""

    here: Collection[str]  # live participants, and those about to be replaced
    leaving: Collection[str]  # participants requested to leave and still alive
    fewest: int
    most: int
    names: int  # shards of the run: there is a name for each


def answer_request(request: OperatorRequest, workforce: Workforce) -> OperatorResponse:
    if request.count < 1:
        return Refused(request.number, f"{request.count} workers were requested, but it must be 1 or more")
    match request.kind:
        case "add":
            return _add(request, workforce)
        case "remove":
            return _remove(request, workforce)
        case "checkpoint":
            reason = "a checkpoint is written after the next step"
            return Granted(request.number, reason=reason, effect=Effect.CHECKPOINT)
        case "stop":
            reason = "the run stops after the current step, with a checkpoint"
            return Granted(request.number, reason=reason, effect=Effect.END)
        case _:
            return Refused(request.number, f"this run does not support the action {request.kind!r}")


def _add(request: OperatorRequest, workforce: Workforce) -> OperatorResponse:
    after = len(workforce.here) + request.count
    if after > workforce.most:
        cause = "it has no more shards" if workforce.most == workforce.names else "--max-workers"
        return Refused(
            request.number, f"it would have {after} workers, but the maximum is {workforce.most} ({cause})"
        )
    taken = {*workforce.here, *workforce.leaving}
    free = [name for index in range(workforce.names) if (name := f"worker-{index}") not in taken]
    if len(free) < request.count:
        return Refused(
            request.number, f"{len(workforce.leaving)} workers are still leaving; try again in a moment"
        )
    start = tuple(free[: request.count])
    return Granted(request.number, start=start, reason=f"{', '.join(start)} added: {after} workers desired")


def _remove(request: OperatorRequest, workforce: Workforce) -> OperatorResponse:
    if request.worker and request.worker not in workforce.here:
        return Refused(request.number, f"{request.worker} is not a worker of this run")
    newest = sorted(workforce.here, key=_index, reverse=True)
    leave = (request.worker,) if request.worker else tuple(newest[: request.count])
    after = len(workforce.here) - max(len(leave), request.count)
    if after < workforce.fewest:
        return Refused(
            request.number,
            f"it would have {max(after, 0)} workers, but the minimum is {workforce.fewest} (--min-workers)",
        )
    return Granted(request.number, leave=leave, reason=f"{', '.join(leave)} removed: {after} workers desired")


def _index(name: str) -> int:
    return int(name.removeprefix("worker-"))

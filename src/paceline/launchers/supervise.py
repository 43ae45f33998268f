"""What does it mean for the run that a participant ended? Pure: facts in, verdict out.

A run is finished when every participant ended well. When one fails, the cause
is the first failure that is not itself the consequence of another: workers
that lost a peer only report that they lost it.
"""

from dataclasses import dataclass, field

from paceline.errors import ExitCode


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

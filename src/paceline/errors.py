"""What went wrong, what to do about it, and which exit code says so.

Every error a user can cause or fix is a PacelineError with both parts: what
happened (with the value seen) and a hint (with a key or a command to paste).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit codes of `paceline`, documented in docs/reference/exit-codes.md."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    BAD_CONFIG = 3
    NOT_READY = 4
    TRAINING_FAILED = 5
    DEGRADED = 6
    UNREACHABLE = 7
    GATE_FAILED = 8
    NO_LOGIN = 9
    FORBIDDEN = 10
    TAG_TAKEN = 11
    WRONG_ACCOUNT = 12
    NO_REPOSITORY = 13
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what the user wrote, and where they wrote it."""

    what: str
    hint: str
    where: str | None = None


class PacelineError(Exception):
    """Something the user can fix. `what` holds the value seen, `hint` what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.TRAINING_FAILED

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (Problem(self.what, self.hint),)

    def told(self) -> list[dict[str, str]]:
        """The problems as a process of ours tells them to the command that started it, in JSON."""
        return [{"what": problem.what, "hint": problem.hint} for problem in self.problems]


class ConfigError(PacelineError):
    """Everything that is wrong with a configuration, reported at once."""

    exit_code = ExitCode.BAD_CONFIG

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a ConfigError needs at least one problem to report"
        super().__init__("; ".join(p.what for p in problems), problems[0].hint)
        self._problems = tuple(problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._problems


class NotReadyError(PacelineError):
    """This machine lacks something the command needs."""

    exit_code = ExitCode.NOT_READY


class TrainingError(PacelineError):
    """A run started and could not finish."""

    exit_code = ExitCode.TRAINING_FAILED


class HopelessError(TrainingError):
    """Whoever tries the same again meets the same: an elastic run ends, and replaces nobody."""


class PeerLostError(TrainingError):
    """Another participant of the run died or stopped answering within the timeout."""

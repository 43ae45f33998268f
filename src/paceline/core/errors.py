"""Errors with their hints, and the exit codes of commands.

Every error a user can cause or fix is a PacelineError with both parts: what
happened (with the value seen) and a hint (with a key or a command to paste).
Each kind of error has a code of its own that never changes its meaning; what a
code means, and what to do, is in `core/error_catalog` (`paceline explain E201`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import ClassVar, Self


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
    """One problem of the user's input, and its location."""

    what: str
    hint: str
    where: str | None = None
    # Error code; empty: that of the error which reports it. Not part of the problem's identity.
    code: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", without_secrets(self.what))
        object.__setattr__(self, "hint", without_secrets(self.hint))


def without_secrets(text: str) -> str:
    """Errors quote what a user, a server or a tool wrote, and end up in terminals, logs and events."""
    from paceline.core.redaction import redact  # many patterns, which only an error needs

    return redact(text)


class Mistake(StrEnum):
    """Kind of problem of one setting; several problems make one ConfigError."""

    UNKNOWN_KEY = "E101"
    VALUE = "E102"
    TWICE = "E103"
    FILE = "E104"
    CLASH = "E105"


def with_code(problems: Iterable[Problem], code: str) -> list[Problem]:
    """The same problems, with this code if they have none."""
    return [replace(p, code=code) if p.code in ("", ConfigError.code) else p for p in problems]


class PacelineError(Exception):
    """Something the user can fix. `what` holds the value seen, `hint` what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.TRAINING_FAILED
    code: ClassVar[str] = "E300"

    def __init__(self, what: str, hint: str) -> None:
        self.what = without_secrets(what)
        self.hint = without_secrets(hint)
        super().__init__(self.what)
        self._code = self.code

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (Problem(self.what, self.hint, code=self._code),)

    def known_as(self, code: str) -> Self:
        """The same with the code that it had in another process; an empty one changes nothing."""
        self._code = code or self._code
        return self

    def to_dicts(self) -> list[dict[str, str]]:
        """The problems as JSON, for the command that started this process."""
        return [
            {"what": problem.what, "hint": problem.hint, "code": problem.code} for problem in self.problems
        ]


class ConfigError(PacelineError):
    """Everything that is wrong with a configuration, reported at once."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E100"

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a ConfigError needs at least one problem to report"
        super().__init__("; ".join(p.what for p in problems), problems[0].hint)
        self._problems = tuple(p if p.code else replace(p, code=self.code) for p in problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._problems


class NotReadyError(PacelineError):
    """This machine lacks something the command needs."""

    exit_code = ExitCode.NOT_READY
    code = "E200"


class TrainingError(PacelineError):
    """A run started and could not finish."""

    exit_code = ExitCode.TRAINING_FAILED
    code = "E400"


class HopelessError(TrainingError):
    """A retry would fail the same way: an elastic run ends, and replaces no worker."""

    code = "E401"


class PeerLostError(TrainingError):
    """Another participant of the run died or stopped answering within the timeout."""

    code = "E402"
    is_in_step = False  # it was raised in a step whose gradient was computed


class RunFolderError(ConfigError):
    """A folder that was named cannot be the folder of this run."""

    code = "E106"


class OwnClassError(ConfigError):
    """A task, mode or function of the user cannot be used."""

    code = "E107"


class TaskDataError(ConfigError):
    """The data that was named is not what the task, or the command, reads."""

    code = "E108"


class ManifestError(ConfigError):
    """A job or a cluster object cannot be created from the given options."""

    code = "E109"


class RulesFileError(ConfigError):
    """A file of alert rules is invalid."""

    code = "E110"


class TorchrunError(ConfigError):
    """The launcher's variables are impossible, or differ between processes."""

    code = "E111"


class SearchError(ConfigError):
    """The options of a hyper-parameter search are invalid."""

    code = "E112"


class ImageOptionError(ConfigError):
    """The options of an image are invalid."""

    code = "E113"


class ClusterOptionError(ConfigError):
    """The options of nodes, addresses or a cluster are invalid."""

    code = "E114"


class ScriptError(ConfigError):
    """A training script does something that cannot be right with many workers."""

    code = "E120"


def script_error(code: str, what: str, hint: str) -> ScriptError:
    """Its kinds have codes of their own. The hint is in the traceback, too: of `python script.py`."""
    error = ScriptError([Problem(what, hint, code=code)])
    error.add_note(f"{code}: {error.hint}")
    return error


class MissingPackageError(NotReadyError):
    """A package or a tool that the command needs is not installed."""

    code = "E201"


class PortError(NotReadyError):
    """An address or a port cannot be listened on."""

    code = "E202"


class CannotWriteError(NotReadyError):
    """A file or a folder cannot be written."""

    code = "E203"


class InUseError(NotReadyError):
    """Another Paceline process is already using it."""

    code = "E204"


class FolderInUseError(NotReadyError):
    """Another command holds the lock of this folder."""

    code = "E209"


class NoGpuError(NotReadyError):
    """A GPU was requested, and torch can use none."""

    code = "E205"


class NoPageError(NotReadyError):
    """The dashboard's page was not built."""

    code = "E206"


class VersionsDifferError(NotReadyError):
    """Participants of one run do not have the same versions, or the same data."""

    code = "E207"


class NoSuchRunError(PacelineError):
    """The given path is not the folder of a run."""

    code = "E301"


class NotFinishedError(PacelineError):
    """The run has no result yet."""

    code = "E302"


class DamagedRecordError(PacelineError):
    """A file of a run or of a comparison cannot be read, or is of another version."""

    code = "E303"


class NothingRecordedError(PacelineError):
    """The run recorded nothing that the command could work on."""

    code = "E304"


class NotRepeatableError(PacelineError):
    """The run cannot be executed again bit by bit."""

    code = "E305"


class NotRecordedError(PacelineError):
    """The event log of this run lacks data that the command needs."""

    code = "E306"


class NoCheckpointError(PacelineError):
    """There is no checkpoint to work on."""

    code = "E307"


class DamagedCheckpointError(PacelineError):
    """A checkpoint is not what was written."""

    code = "E308"


class AlreadyThereError(PacelineError):
    """The output exists already, and is not overwritten."""

    code = "E309"


class UnreadableFileError(PacelineError):
    """A file that was named cannot be read."""

    code = "E310"


class MisfitError(PacelineError):
    """The model or task is incompatible with how it is trained."""

    code = "E311"


class NotFiniteError(HopelessError):
    """A gradient is not a number any more."""

    code = "E403"


class ProtocolError(PeerLostError):
    """Another process sent a message that this version does not expect."""

    code = "E404"


class SilenceError(PeerLostError):
    """No message arrived within the timeout."""

    code = "E405"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    code: str
    exit_code: ExitCode
    kind: str  # module:Class of the error; empty: no class of this package raises it
    why: str  # one line, shown under every such error
    causes: tuple[str, ...]  # the usual ones, the most frequent first
    do: tuple[str, ...]  # steps, in the order in which to try them
    example: str  # as it is printed

"""How is an error told that ends a participant? In full in its own log, in one message to its launcher."""

import sys
import traceback

from paceline.errors import ExitCode, HopelessError, PacelineError, PeerLostError

Fault = dict[str, str | int | bool]


def into_log(error: Exception) -> None:
    """stderr is the log. An error of ours explains itself; of any other, how it came about is needed."""
    if isinstance(error, PacelineError):
        print(f"error[{error.problems[0].code}]: {error.what}\n  fix: {error.hint}", file=sys.stderr)
    else:
        traceback.print_exception(error)


def fault_of(error: Exception, log: object) -> Fault:
    """What the launcher hears; `log` is where the rest is."""
    if isinstance(error, PacelineError):
        return {
            "what": error.what,
            "hint": error.hint,
            "exit_code": int(error.exit_code),
            "secondary": isinstance(error, PeerLostError),
            "hopeless": isinstance(error, HopelessError),
            "code": error.problems[0].code,
        }
    return {
        "what": f"{type(error).__name__}: {error}"[:500],
        "hint": f"the traceback is in {log}",
        "exit_code": int(ExitCode.TRAINING_FAILED),
        "secondary": False,
        "hopeless": False,
    }

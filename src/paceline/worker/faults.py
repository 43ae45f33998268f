"""How an error that ends a participant is reported: in full in its own log, in one message to its launcher.

An error of the user's task names the user's file and line. `sys.exit` in a task is such an error
too, whatever its code: the process that trains ends when its work is done, and not before.
"""

import sys
import traceback

from paceline.errors import ConfigError, ExitCode, HopelessError, PacelineError, PeerLostError
from paceline.tasks.load import in_one_line, raised_at, user_frames

Fault = dict[str, str | int | bool]
ENDS = (Exception, SystemExit)  # what a participant may end by


def into_log(error: BaseException) -> None:
    """stderr is the log. An error of ours explains itself; of any other, how it came about is needed."""
    if isinstance(error, PacelineError):
        print(f"error[{error.problems[0].code}]: {error.what}\n  fix: {error.hint}", file=sys.stderr)
    else:
        traceback.print_exception(error)


def fault_of(error: BaseException, log: object) -> Fault:
    """The message for the launcher; `log` is where the rest is."""
    if isinstance(error, PacelineError):
        return {
            "what": error.what,
            "hint": error.hint,
            "exit_code": int(error.exit_code),
            "secondary": isinstance(error, PeerLostError),
            "hopeless": isinstance(error, HopelessError | ConfigError),
            "code": error.problems[0].code,
        }
    where = f" ({raised_at(error)})" if user_frames(error) else ""
    return {
        "what": f"{in_one_line(error)}{where}",
        "hint": f"the traceback is in {log}",
        "exit_code": int(ExitCode.TRAINING_FAILED),
        "secondary": False,
        "hopeless": False,
    }

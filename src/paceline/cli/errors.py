"""Error handling of all commands: exceptions and signals become messages and exit codes.

A command's body raises; only `guard` catches.
"""

import errno
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from paceline.cli.output import emit_problems
from paceline.core import environ
from paceline.core.errors import ExitCode, PacelineError, Problem, without_secrets
from paceline.training.session import Session


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. As a KeyboardInterrupt, it stops a run in the same orderly way."""

    def __init__(self, by: str = "SIGTERM") -> None:
        super().__init__()
        self.by = by


def install_signal_handlers() -> None:
    """SIGTERM ends a command as Ctrl-C does, and so does the end of its terminal."""
    for number in environ.stop_signals():
        if number is not signal.SIGINT:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    if number == signal.SIGHUP:
        environ.leave_dead_terminal()
    raise Terminated(signal.Signals(number).name)


def guard(body: Callable[[], object], session: Session, args: Sequence[str]) -> int:
    """Run a command's body; report what it raises, and return the exit code."""
    try:
        outcome = body()
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else ExitCode.OK
    except click.exceptions.Exit as exit_:  # --help, --version
        return exit_.exit_code
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except BaseException as error:
        problems, exit_code = _problems_of(error, session, args)
        wants_json = session.common.json or "--json" in args
        emit_problems(session, problems, exit_code, as_json=wants_json)
        return exit_code


def _problems_of(
    error: BaseException, session: Session, args: Sequence[str]
) -> tuple[Sequence[Problem], ExitCode]:
    match error:
        case click.ClickException():
            return [_usage_problem(error, args)], ExitCode.USAGE
        case PacelineError():
            return error.problems, error.exit_code
        case Terminated():
            return [Problem(f"stopped by {error.by}", _hint_of(error), code="E005")], ExitCode.TERMINATED
        case KeyboardInterrupt() | click.Abort():
            return [Problem("stopped by Ctrl-C", _hint_of(error), code="E004")], ExitCode.INTERRUPTED
        case SystemExit() | GeneratorExit():
            raise error  # already reported
        case OSError() if _is_filesystem_error(error, args):
            return [_filesystem_problem(error)], ExitCode.NOT_READY
        case _:
            return [_internal_problem(error, session)], ExitCode.INTERNAL


_RETRY_HINT = "run the same command to start again"


def _hint_of(stopped: BaseException) -> str:
    """A stopped command may bring its own hint."""
    return str(stopped) or _RETRY_HINT


def _usage_problem(error: click.ClickException, args: Sequence[str]) -> Problem:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = _command_path(args) if context is None else context.command_path
    hint = f"see {path} --help"
    if isinstance(error, click.NoSuchOption | click.NoSuchCommand):
        if error.possibilities:
            hint = f"did you mean {' or '.join(error.possibilities)}? {hint}"
        message = error.message
        code = "E002"
    else:
        message = error.format_message()
        code = "E003"
    message = message.strip().rstrip(".")
    return Problem(message[:1].lower() + message[1:], hint, code=code)


def _command_path(args: Sequence[str]) -> str:
    """The command that was typed, as far as that is sure."""
    from paceline.cli.commands import COMMANDS

    return next((f"paceline {word}" for word in args if word in COMMANDS), "paceline")


# Errors of the file system that a path chosen by the user can cause.
_FILESYSTEM_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)


def _is_filesystem_error(error: OSError, args: Sequence[str]) -> bool:
    """Whether the path or the disk is at fault: no space, no permission, or an impossible path."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)  # raised for an open file
    if error.errno in _FILESYSTEM_ERRORS:
        return True
    named = [Path(word.rpartition("=")[2]).absolute() for word in args if os.sep in word]
    return error.errno == errno.ENOENT and Path(os.fsdecode(error.filename)).absolute() in named


def _filesystem_problem(error: OSError) -> Problem:
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    hint = "choose a location that is writable and has free space; check with ls -ld and df -h"
    return Problem(f"{place}{error.strerror}", hint, code="E208")


def _internal_problem(error: BaseException, session: Session) -> Problem:
    text = without_secrets("".join(traceback.format_exception(error)))
    if session.common.verbose:
        print(text, file=sys.stderr)
    message = f"internal error: {type(error).__name__}: {error}".splitlines()[0]
    try:
        report = _write_report(text)
    except OSError as failure:
        return Problem(
            message, f"run again with -v to see where (no report: {failure.strerror})", code="E001"
        )
    hint = f"this is a bug in paceline; the report is in {report}, or run again with -v"
    return Problem(message, hint, code="E001")


def _write_report(text: str) -> str:
    import tempfile

    from paceline import __version__

    handle, name = tempfile.mkstemp(prefix="paceline-report-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.write(
            f"paceline {__version__}, Python {sys.version}\n{without_secrets(shlex.join(sys.argv))}\n\n{text}"
        )
    return name

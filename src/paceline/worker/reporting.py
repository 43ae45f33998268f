"""Reports of a participant: news of its checkpoints, and errors as messages for the launcher.

The thread that writes checkpoints only queues its news. The training thread reports them, because an event
log has a single writer. A note is sent once when checkpoints begin to fail, and once when they succeed
again.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable

from paceline.checkpoints.writer import WriteReport
from paceline.core.errors import ConfigError, ExitCode, HopelessError, PacelineError, PeerLostError
from paceline.core.user_code import in_one_line, raised_at, user_frames
from paceline.events.log import Log
from paceline.events.schema import Scalar

Report = dict[str, Scalar | dict[str, float]]


def ignore_report(report: Report) -> None:
    """Report function of participants without a launcher."""


class CheckpointReporter:
    def __init__(self, log: Log, report: Callable[[Report], None] = ignore_report) -> None:
        self._log = log
        self._report = report
        self._is_failing = False
        self._noted: set[str] = set()  # topics of notes that are sent once

    def report(self, reports: Iterable[WriteReport]) -> None:
        for outcome in reports:
            if outcome.is_skipped:
                self._skipped(outcome)
            elif outcome.failure:
                self._failed(outcome)
            else:
                self._written(outcome)

    def _written(self, report: WriteReport) -> None:
        self._log.write(
            "checkpoint",
            path=report.name,
            step=report.step,
            snapshot_ns=report.pause_ns,
            write_s=report.write_s,
            bytes=report.nbytes,
            catalogued=report.is_catalogued,
        )
        removed = ",".join(map(str, report.removed))
        self._report({"ev": "checkpoint", "path": report.name, "removed": removed})
        if self._is_failing:
            self._is_failing = False
            self._note(f"checkpoints are written again: {report.name}")
        if report.trouble:
            self._once("catalogue", f"checkpoint {report.name} is not in the catalogue: {report.trouble}")

    def _failed(self, report: WriteReport) -> None:
        self._log.write("checkpoint_failed", path=report.name, step=report.step, reason=report.failure)
        if not self._is_failing:
            self._is_failing = True
            self._note(
                f"warning: checkpoint {report.name} could not be written: {report.failure}; "
                "training continues, and the previous checkpoint is kept"
            )

    def _skipped(self, report: WriteReport) -> None:
        self._log.write("checkpoint_skipped", path=report.name, step=report.step)
        self._once(
            "skipped",
            f"checkpoint {report.name} is skipped: earlier ones are still being written; use a larger "
            "--checkpoint-every",
        )

    def _once(self, topic: str, text: str) -> None:
        if topic not in self._noted:
            self._noted.add(topic)
            self._note(text)

    def _note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})


# An error of the user's task names the user's file and line. `sys.exit` in a task is such an error
# too, with any code: the training process must not end before its work is done.

Fault = dict[str, str | int | bool]
TERMINATING_ERRORS = (Exception, SystemExit)  # exceptions that end a participant


def log_error(error: BaseException) -> None:
    """Log to stderr: the message of a PacelineError, or the traceback of any other error."""
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


class ChildReports:
    """Reports of one child process, as whole lines; reading never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.has_ended = False
        self._rest = b""

    def lines(self) -> list[bytes]:
        try:
            while data := os.read(self.fd, 1 << 16):
                self._rest += data
            self.has_ended = True
        except BlockingIOError:
            pass  # no more data for now
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def close(self) -> None:
        os.close(self.fd)

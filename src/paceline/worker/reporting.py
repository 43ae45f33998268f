"""What does a participant say about its checkpoints? To the event log, to whoever watches, to the launcher.

News come from the thread that writes; they are told by the training thread,
because an event log has one pen. Whoever watches is told once when something
begins to go wrong, and once when it is well again.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable

from paceline.checkpoints.writer import WriteReport
from paceline.core.errors import ConfigError, ExitCode, HopelessError, PacelineError, PeerLostError
from paceline.events.log import Log
from paceline.events.schema import Scalar
from paceline.tasks.load import in_one_line, raised_at, user_frames

Report = dict[str, Scalar | dict[str, float]]


def ignore_report(report: Report) -> None:
    """For participants without a launcher."""


class CheckpointReporter:
    def __init__(self, log: Log, report: Callable[[Report], None] = ignore_report) -> None:
        self._log, self._report = log, report
        self._is_failing = False
        self._told: set[str] = set()  # what is said once

    def tell(self, news: Iterable[WriteReport]) -> None:
        for one in news:
            if one.is_skipped:
                self._skipped(one)
            elif one.failure:
                self._failed(one)
            else:
                self._written(one)

    def _written(self, news: WriteReport) -> None:
        self._log.write(
            "checkpoint",
            path=news.name,
            step=news.step,
            snapshot_ns=news.pause_ns,
            write_s=news.write_s,
            bytes=news.nbytes,
            catalogued=news.is_catalogued,
        )
        removed = ",".join(map(str, news.removed))
        self._report({"ev": "checkpoint", "path": news.name, "removed": removed})
        if self._is_failing:
            self._is_failing = False
            self._note(f"checkpoints are written again: {news.name}")
        if news.trouble:
            self._once("catalogue", f"checkpoint {news.name} is not in the catalogue: {news.trouble}")

    def _failed(self, news: WriteReport) -> None:
        self._log.write("checkpoint_failed", path=news.name, step=news.step, reason=news.failure)
        if not self._is_failing:
            self._is_failing = True
            self._note(
                f"warning: checkpoint {news.name} could not be written: {news.failure}; "
                "training goes on, and the checkpoint before it stays"
            )

    def _skipped(self, news: WriteReport) -> None:
        self._log.write("checkpoint_skipped", path=news.name, step=news.step)
        self._once(
            "skipped",
            f"checkpoint {news.name} is left out: those before it are still being written; "
            "a larger --checkpoint-every leaves out none",
        )

    def _once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._note(text)

    def _note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})


# An error of the user's task names the user's file and line. `sys.exit` in a task is such an error
# too, whatever its code: the process that trains ends when its work is done, and not before.

Fault = dict[str, str | int | bool]
TERMINATING_ERRORS = (Exception, SystemExit)  # what a participant may end by


def log_error(error: BaseException) -> None:
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


class ChildReports:
    """What one child says, as whole lines, without ever waiting for it."""

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
            pass  # nothing more for now
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def close(self) -> None:
        os.close(self.fd)

"""Keeps a long event log small and quick to read.

Started as `python -m paceline.monitoring.log_maintenance RUN`.

It compresses closed segments and saves the view of the run every few megabytes, so that a reader starts
near the end. The launcher starts it when the log is large enough for that to matter. It runs with the
lowest priority and shares nothing with the training: if it falls behind or dies, readers read more, and
nothing is lost. It ends when its stdin does: when the run is over, or when the launcher is gone.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.core import environ
from paceline.core.errors import DamagedRecordError, PacelineError
from paceline.events.segments import compress_closed, end_of_lines, head_of
from paceline.monitoring.view.feed import Feed, FeedPurpose
from paceline.monitoring.view.saved_view import save

MAINTAINED_BYTES = 16 << 20  # log size from which a separate process pays off
SAVE_BYTES = 4 << 20  # minimum log between two saved views: less than half a second to read
SAVE_TIMES = 4  # minimum ratio of the log between two saved views to the size of a view
EVERY_S = 1.0
FINISH_S = 10.0  # at the end of a run
LOG = "log-keeper.log"
_LOWEST_PRIORITY = 19


class LogMaintenance:
    """The launcher's side: starts the process once the log is large enough, and ends it."""

    def __init__(
        self,
        run_dir: Path,
        note: Callable[[str], None],
        kept_bytes: int = MAINTAINED_BYTES,
        finish_s: float = FINISH_S,
    ) -> None:
        self._run_dir = run_dir
        self._note = note
        self._kept_bytes = kept_bytes
        self._finish_s = finish_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def check(self) -> None:
        """Start the process if it is time for it, and notice its end. Called once a second.

        A log that is not kept is read in full by its readers; training continues.
        """
        if self._is_given_up:
            return
        path = self._run_dir / "events.jsonl"
        try:
            if self._process is not None:
                if self._process.poll() is not None:
                    log = self._run_dir / "logs" / LOG
                    self._give_up(f"its process ended with code {self._process.returncode}, see {log}")
            elif head_of(path).begins + path.stat().st_size >= self._kept_bytes:
                self._process = self._start()
        except (OSError, DamagedRecordError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        self._is_given_up = True
        self._note(f"warning: the event log is no longer compressed, so status is slower: {why}")

    def close(self) -> None:
        """End the process. The next session, or readers, do what is not compressed and saved by then."""
        if self._process is None:
            return
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(self._finish_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        log = self._run_dir / "logs" / LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "paceline.monitoring.log_maintenance", str(self._run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=file,
                process_group=0,  # Ctrl-C is for the run, whose end is still to be saved
                env=environ.for_child(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
            )


class MaintenanceTask:
    """The work of the process, a piece at a time."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / "events.jsonl"
        self._feed = Feed(run_dir, aim=FeedPurpose.SAVING)
        self._saved_at = self._feed.saved().offset  # offset of the newest saved view
        self._apart = SAVE_BYTES

    def run_once(self, *, is_over: bool) -> None:
        """Compress and save what there is; of the log that grows, only if it has grown enough."""
        compress_closed(self._path)
        if not is_over and end_of_lines(self._path) < self._saved_at + self._apart:
            return
        at = self._saved_at
        for at in self._feed.parts():
            if at >= self._saved_at + self._apart:
                self._save(at)
        if is_over and at > self._saved_at:
            self._save(at)

    def _save(self, at: int) -> None:
        size = save(self._run_dir, self._feed.saved())
        self._saved_at = at
        self._apart = max(SAVE_BYTES, SAVE_TIMES * size)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_LOWEST_PRIORITY)
    try:
        task = MaintenanceTask(Path(sys.argv[1]))
        while not _is_over():
            task.run_once(is_over=False)
        task.run_once(is_over=True)
    except (PacelineError, OSError) as error:
        print(f"the log is kept no longer: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def _is_over() -> bool:
    """Nothing is written to stdin: it becomes readable when it ends."""
    readable, _, _ = select.select([0], [], [], EVERY_S)
    return bool(readable)


if __name__ == "__main__":
    main()

"""Exporter processes of a run: one subprocess per target follows the event log.

The run neither waits for an exporter nor fails with it: the report of an exporter becomes a
note. At the end of the run exporters have FINISH_S to write the rest.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.config.environment import installed
from paceline.config.train_config import ExportKind, ExportTarget
from paceline.core.disk import exclusive
from paceline.core.errors import MissingPackageError
from paceline.events.segments import end_of_lines
from paceline.launchers.json_subprocess import json_lines
from paceline.plan.codec import Json, read
from paceline.plan.plan import Plan

MODULE = "paceline.export"
FINISH_S = 60.0  # how long the end of a run waits for what is still being written
_VIEW_COMMANDS = {
    ExportKind.TENSORBOARD: "tensorboard --logdir {}",
    # Files, for everything else has an address; the page comes with the whole of mlflow.
    ExportKind.MLFLOW: "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}",
    ExportKind.WANDB: "wandb sync {}",
}


@contextmanager
def exporting(plan: Plan, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Follow the log from where it stands now; what an earlier session wrote was exported by that one."""
    require_packages(plan.exports)
    since = end_of_lines(run_dir / "events.jsonl") if plan.exports else 0
    exports: list[_Export] = []
    try:
        exports += [_Export(target, run_dir, since, note) for target in plan.exports]
        yield
    finally:
        _finish(exports)


def export_run(run_dir: Path, target: ExportTarget) -> dict[str, Json]:
    """Write the record of a run that is over: where it is then, and how many points it has."""
    require_packages([target])
    read(run_dir / "plan.json")  # is it a run at all?
    answer: dict[str, Json] = {}
    with exclusive(run_dir):  # a run at work may have an exporter of its own, with the same memory of names
        for message in json_lines(MODULE, [str(run_dir), target.text, "once"]):
            answer = message
    place = str(answer["place"])
    return {
        "to": target.kind.value,
        "place": place,
        "points": answer["points"],
        "look": _view_command(target, place),
    }


def require_packages(targets: Iterable[ExportTarget]) -> None:
    """A package that is missing is said before anything starts."""
    for target in targets:
        missing = sorted(set(target.packages) - installed(target.packages))
        if missing:
            raise MissingPackageError(
                f"export {target.kind} needs {' and '.join(missing)}, which cannot be imported here",
                target.install,
            )


def _finish(exports: "Sequence[_Export]") -> None:
    for export in exports:
        export.say_it_is_over()
    try:
        for export in exports:
            export.wait(FINISH_S)
    finally:
        for export in exports:
            export.close()


class _Export:
    """One process that exports, and a thread that listens to it."""

    def __init__(self, target: ExportTarget, run_dir: Path, since: int, note: Callable[[str], None]) -> None:
        self._target, self._run_dir, self._note = target, run_dir, note
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(run_dir), target.text, "live", str(since)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run, whose end is still to be told
        )
        self._has_answered = False
        self._listener = threading.Thread(target=self._listen, name=f"export {target.kind}", daemon=True)
        self._listener.start()

    def say_it_is_over(self) -> None:
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.close()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            again = f"paceline export {self._run_dir} --to {self._target.text}"
            what = f"was still writing {timeout_s:g} s after the run, and was ended"
            self._note(f"warning: export {self._target.kind} {what}; again: {again}")
            return
        self._listener.join()
        if not self._has_answered:
            log = self._run_dir / "logs" / f"export-{self._target.kind}.log"
            code = self._process.returncode
            self._note(f"warning: export {self._target.kind} ended with exit code {code}; see {log}")

    def close(self) -> None:
        """Whatever it has started ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None, "stdout is a pipe"
        with self._process.stdout as lines:
            for line in lines:
                self._has_answered = True
                self._note(self._in_words(json.loads(line)))

    def _in_words(self, message: dict[str, Json]) -> str:
        match message:
            case {"error": [{"what": what, "hint": hint}, *_]}:
                return f"warning: the run goes on, but its export does not: {what}; {hint}"
            case _:
                place = str(message["place"])
                look = _view_command(self._target, place)
                return f"export {self._target.kind}: {message['points']} points in {place}; {look}"


def _view_command(target: ExportTarget, place: str) -> str:
    """What to type to see it."""
    if place.startswith(("http://", "https://")):
        return f"open {place}"
    return _VIEW_COMMANDS[target.kind].format(place)

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
FINISH_S = 60.0  # for exporters to finish at the end of a run
_VIEW_COMMANDS = {
    ExportKind.TENSORBOARD: "tensorboard --logdir {}",
    # For file stores; the UI needs the full mlflow package.
    ExportKind.MLFLOW: "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}",
    ExportKind.WANDB: "wandb sync {}",
}


@contextmanager
def exporting(plan: Plan, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Follow the log from its present end; an earlier session has exported its own part."""
    require_packages(plan.exports)
    since = end_of_lines(run_dir / "events.jsonl") if plan.exports else 0
    exports: list[_Export] = []
    try:
        exports += [_Export(target, run_dir, since, note) for target in plan.exports]
        yield
    finally:
        _finish(exports)


def export_run(run_dir: Path, target: ExportTarget) -> dict[str, Json]:
    """Export a finished run; return the destination and the number of points."""
    require_packages([target])
    read(run_dir / "plan.json")  # raises if it is not a run
    answer: dict[str, Json] = {}
    with exclusive(run_dir):  # a training run may have its own exporter, with the same run id file
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
    """Report missing packages before anything starts."""
    for target in targets:
        missing = sorted(set(target.packages) - installed(target.packages))
        if missing:
            raise MissingPackageError(
                f"export {target.kind} needs {' and '.join(missing)}, which cannot be imported here",
                target.install,
            )


def _finish(exports: "Sequence[_Export]") -> None:
    for export in exports:
        export.signal_end()
    try:
        for export in exports:
            export.wait(FINISH_S)
    finally:
        for export in exports:
            export.close()


class _Export:
    """An exporter process, and a thread that reads its reports."""

    def __init__(self, target: ExportTarget, run_dir: Path, since: int, note: Callable[[str], None]) -> None:
        self._target = target
        self._run_dir = run_dir
        self._note = note
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(run_dir), target.text, "live", str(since)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run, whose end is still to be exported
        )
        self._has_reported = False
        self._reader = threading.Thread(target=self._read_reports, name=f"export {target.kind}", daemon=True)
        self._reader.start()

    def signal_end(self) -> None:
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.close()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            again = f"paceline export {self._run_dir} --to {self._target.text}"
            reason = f"did not finish within {timeout_s:g} s after the run, and was stopped"
            self._note(f"warning: export {self._target.kind} {reason}; repeat it: {again}")
            return
        self._reader.join()
        if not self._has_reported:
            log = self._run_dir / "logs" / f"export-{self._target.kind}.log"
            code = self._process.returncode
            self._note(f"warning: export {self._target.kind} ended with exit code {code}; see {log}")

    def close(self) -> None:
        """Kill its whole process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def _read_reports(self) -> None:
        assert self._process.stdout is not None, "stdout is a pipe"
        with self._process.stdout as lines:
            for line in lines:
                self._has_reported = True
                self._note(self._describe(json.loads(line)))

    def _describe(self, message: dict[str, Json]) -> str:
        match message:
            case {"error": [{"what": what, "hint": hint}, *_]}:
                return f"warning: the export stopped, the run continues: {what}; {hint}"
            case _:
                place = str(message["place"])
                view_command = _view_command(self._target, place)
                return f"export {self._target.kind}: {message['points']} points in {place}; {view_command}"


def _view_command(target: ExportTarget, place: str) -> str:
    """The command that shows the exported run."""
    if place.startswith(("http://", "https://")):
        return f"open {place}"
    return _VIEW_COMMANDS[target.kind].format(place)

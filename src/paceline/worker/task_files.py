"""What does a task leave in the run folder besides numbers? What its `files` returns, each written whole."""

from collections.abc import Mapping
from pathlib import Path

from paceline.disk import write_durably
from paceline.errors import TrainingError
from paceline.tasks.port import LeavingFiles, Task

_REFUSED = frozenset({"", ".", "..", "plan.json", "result.json"})


def leave_files(task: Task, metrics: Mapping[str, float], run_dir: Path) -> None:
    """Called by whoever holds the final model, once."""
    if not isinstance(task, LeavingFiles):
        return
    for name, content in task.files(metrics).items():
        if Path(name).name != name or name in _REFUSED or name.startswith("events."):
            raise TrainingError(
                f"the task wants to leave a file {name!r}, which is no name for a file of its own",
                "let files() return plain names, such as confusion_matrix.json",
            )
        try:
            write_durably(run_dir / name, [content])
        except OSError as error:
            raise TrainingError(
                f"cannot write {run_dir / name}: {error.strerror}",
                f"make room; the trained weights are in {run_dir / 'checkpoints'}",
            ) from error

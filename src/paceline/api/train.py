"""`paceline.train` and `paceline.resume`: the commands as functions that return a `TrainResult`.

Workers are forked from a helper process, never from the caller's. So calls work in a notebook, in a thread,
next to a running event loop, and in a script without `if __name__ == "__main__"`. See
docs/guides/python-api.md.
"""

import signal
import sys
from pathlib import Path

from paceline.api.arguments import hints_in_traceback, import_name, parse_kwargs, session_for
from paceline.api.result import TrainResult, from_json
from paceline.checkpoints.catalog import Checkpoint
from paceline.launchers.local import LocalLauncher
from paceline.monitoring.metrics.server_process import MetricsEndpoint
from paceline.plan.codec import Json
from paceline.plan.describe import announce_lr_scaling
from paceline.plan.plan import Plan
from paceline.training import run
from paceline.training.progress import Watcher
from paceline.training.progress_display import open_watcher
from paceline.training.request import claimed_run_dir, read_request


class TrainStoppedError(KeyboardInterrupt):
    """Ctrl-C stopped the run after a complete step. `result` is the result so far; its checkpoint exists."""

    def __init__(self, result: TrainResult) -> None:
        super().__init__(f"stopped by Ctrl-C; resume with  paceline.resume({str(result.run_dir)!r})")
        self.result = result


def train(
    task: str | type = "xor",
    *,
    mode: str | type = "ssgd",
    workers: int | None = None,
    progress: bool = True,
    config: str | Path | None = None,
    **settings: object,
) -> TrainResult:
    """Train a task with many workers, to the end.

    Arguments:

    - `task`: a built-in name, `"module:Class"`, or a class that a module defines.
    - `mode`: the synchronization strategy, named like `task`.
    - `workers`: the number of workers; None: the setting `num_workers`, or its default.
    - `progress`: show the progress on stderr.
    - `config`: a YAML or TOML file with more settings.
    - `settings`: those of docs/reference/config.md, by the same names. Environment variables are ignored.

    Returns the result of the finished run.

    Raises ConfigError with every problem, TrainingError when the run could not finish, and
    TrainStoppedError (a KeyboardInterrupt) after Ctrl-C, with a checkpoint to resume from.
    """
    with hints_in_traceback(), LocalLauncher(import_from=sys.path) as launcher:
        named = {"task": import_name(task, "task"), "mode": import_name(mode, "mode")}
        flags = [*parse_kwargs("train", {**named, "num_workers": workers}), *parse_kwargs("train", settings)]
        session = session_for(progress, config)
        request = read_request(session, flags, launcher)
        plan = request.plan
        with (
            claimed_run_dir(request.first_dir.resolve(), is_named=request.is_named) as run_dir,
            open_watcher(session, plan.run) as watcher,
        ):
            if scaled := announce_lr_scaling(plan):
                watcher.note(scaled)
            result = train_with(launcher, plan, run_dir, watcher, metrics=request.metrics)
        return to_result(result, run_dir)


def resume(run_dir: str | Path, *, progress: bool = True) -> TrainResult:
    """Resume a run that was stopped or lost, from its newest complete checkpoint.

    Arguments:

    - `run_dir`: the folder of the run.
    - `progress`: show the progress on stderr.

    Returns the result of the finished run, and raises as `paceline.train` does.
    """
    with hints_in_traceback(), LocalLauncher(import_from=sys.path) as launcher:
        folder = Path(run_dir).resolve()
        with run.locked_run(folder):
            plan, checkpoint = run.load_resumable(folder)
            with open_watcher(session_for(progress, None), plan.run) as watcher:
                for text in _checkpoint_warnings(checkpoint):
                    watcher.note(text)
                result = train_with(launcher, plan, folder, watcher, resume_from=checkpoint)
        return to_result(result, folder)


def train_with(
    launcher: LocalLauncher,
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    *,
    resume_from: Checkpoint | None = None,
    metrics: MetricsEndpoint | None = None,
) -> dict[str, Json]:
    if plan.ray is not None:
        launcher.close()  # Ray starts the workers; the helper process would only take memory
    return run.train(plan, run_dir, watcher, warm=launcher, resume_from=resume_from, metrics=metrics)


def to_result(result: dict[str, Json], run_dir: Path) -> TrainResult:
    """The result; a signal that stopped the run is raised again, for the caller to stop as well."""
    outcome = from_json(result, run_dir)
    match outcome.stopped_by:
        case "SIGINT":
            raise TrainStoppedError(outcome)
        case "SIGTERM" | "SIGHUP" as name:
            signal.raise_signal(signal.Signals[name])  # to the previous handler
    return outcome


def _checkpoint_warnings(checkpoint: Checkpoint) -> list[str]:
    damaged = [
        f"checkpoint {n} is incomplete or damaged; using the previous one" for n in checkpoint.passed_over
    ]
    return [f"warning: {text}" for text in (*checkpoint.warnings, *damaged)]

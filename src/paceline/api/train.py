"""What do `paceline.train` and `paceline.resume` do? What the commands do, and answer with a TrainResult.

Workers are forked from a helper process of ours, never from this one: so it works
in a notebook, in a thread, beside a running event loop, and in a script without
`if __name__ == "__main__"`. See docs/guides/python-api.md.
"""

import signal
import sys
from pathlib import Path
from typing import NoReturn

from paceline.api.arguments import hints_shown, import_name, written
from paceline.api.result import TrainResult, from_json
from paceline.app.train import resumable
from paceline.app.train import train as carry_out
from paceline.checkpoints.catalog import Checkpoint
from paceline.cli.request import read_request
from paceline.cli.session import Common, Session
from paceline.cli.watch import open_watcher
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan


class TrainStoppedError(KeyboardInterrupt):
    """Ctrl-C stopped the run in good order; `result` says how far it came, and its checkpoint is written."""

    def __init__(self, result: TrainResult) -> None:
        super().__init__(f"stopped by Ctrl-C; go on with  paceline.resume({str(result.run_dir)!r})")
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

    `task` and `mode` are built-in names, `"module:Class"`, or classes that a module defines. `settings`
    are those of docs/reference/config.md, by the same names; `config` is a YAML or TOML file of more.
    Variables of the environment are not looked at. `progress` shows on stderr how it goes.

    Raises ConfigError with every problem, TrainingError when the run could not finish, and
    TrainStoppedError (a KeyboardInterrupt) after Ctrl-C, with a checkpoint to resume from.
    """
    with hints_shown():
        named = {"task": import_name(task, "task"), "mode": import_name(mode, "mode")}
        flags = [*written("train", {**named, "num_workers": workers}), *written("train", settings)]
        common = Common(quiet=not progress, config=None if config is None else Path(config))
        session = Session(common=common, folder=Path())
        request = read_request(session, flags)
        return _carried_out(request.plan, request.run_dir.resolve(), session)


def resume(run_dir: str | Path, *, progress: bool = True) -> TrainResult:
    """Go on with a run that was stopped or lost, from its newest complete checkpoint."""
    with hints_shown():
        folder = Path(run_dir).resolve()
        plan, checkpoint = resumable(folder)
        session = Session(common=Common(quiet=not progress), folder=Path())
        return _carried_out(plan, folder, session, checkpoint)


def _carried_out(
    plan: Plan, run_dir: Path, session: Session, checkpoint: Checkpoint | None = None
) -> TrainResult:
    # What this process can import, its workers can.
    with LocalLauncher(import_from=sys.path) as warm, open_watcher(session, plan.run) as watcher:
        for text in () if checkpoint is None else _passed_over(checkpoint):
            watcher.note(text)
        result = carry_out(plan, run_dir, watcher, warm=warm, resume_from=checkpoint)
    done = from_json(result, run_dir)
    if "stopped_by" in result:
        _stop(str(result["stopped_by"]), done)
    return done


def _passed_over(checkpoint: Checkpoint) -> list[str]:
    damaged = [
        f"checkpoint {n} is incomplete or damaged; the one before it is used" for n in checkpoint.passed_over
    ]
    return [f"warning: {text}" for text in (*checkpoint.warnings, *damaged)]


def _stop(by: str, result: TrainResult) -> NoReturn:
    """Whoever wanted to stop did not want only this call to end."""
    if by == "SIGTERM":
        signal.raise_signal(signal.SIGTERM)  # to whoever handled it before us
    raise TrainStoppedError(result)

"""How does `train --dashboard` show a run? By a process beside it, whose end harms nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import environ
from paceline.cli.output import say
from paceline.cli.session import Session
from paceline.cli.trainer import Trainer

if TYPE_CHECKING:
    from paceline.app.progress import Watcher
    from paceline.checkpoints.catalog import Checkpoint
    from paceline.config.train_config import TrainConfig
    from paceline.plan.codec import Json
    from paceline.plan.plan import Plan


def showing(session: Session) -> Callable[[], Trainer]:
    """What starts the trainer of this session, and a dashboard once the run's folder is known."""
    start = session.start_trainer

    def begin() -> Trainer:
        environ.set_unless_said(PACELINE_LIVE_LOG="1")  # before workers start: they inherit it
        return _Shown(start(), session)

    return begin


class _Shown:
    def __init__(self, inner: Trainer, session: Session) -> None:
        self._inner, self._session = inner, session

    def train(self, plan: "Plan", run_dir: Path, watcher: "Watcher") -> "dict[str, Json]":
        from paceline.app.dashboard_beside import beside

        with beside(run_dir, lambda text: say(self._session, text)):
            return self._inner.train(plan, run_dir, watcher)

    def resume(
        self, plan: "Plan", run_dir: Path, checkpoint: "Checkpoint", watcher: "Watcher"
    ) -> "dict[str, Json]":
        from paceline.app.dashboard_beside import beside

        with beside(run_dir, lambda text: say(self._session, text)):
            return self._inner.resume(plan, run_dir, checkpoint, watcher)

    def count_samples(self, config: "TrainConfig") -> int:
        return self._inner.count_samples(config)

    def close(self) -> None:
        self._inner.close()

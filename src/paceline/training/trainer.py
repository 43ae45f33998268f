"""By what does `train` train? The port, and the real one, which imports `app` only when it is made."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.checkpoints.catalog import Checkpoint
    from paceline.config.train_config import TrainConfig
    from paceline.plan.codec import Json
    from paceline.plan.plan import Plan
    from paceline.training.progress import Watcher


class Trainer(Protocol):
    """Making one starts it: workers warm up while the config is still being read."""

    def train(self, plan: "Plan", run_dir: Path, watcher: "Watcher") -> "dict[str, Json]":
        """Run the plan to its end; the contents of result.json."""
        ...

    def resume(
        self, plan: "Plan", run_dir: Path, checkpoint: "Checkpoint", watcher: "Watcher"
    ) -> "dict[str, Json]":
        """Go on with a run from a checkpoint."""
        ...

    def count_samples(self, config: "TrainConfig") -> int:
        """How many training samples the task has; its own error if it cannot be built."""
        ...

    def close(self) -> None: ...


class DefaultTrainer:
    def __init__(self) -> None:
        from paceline.training.run import warm_up

        self._warm = warm_up()

    def train(self, plan: "Plan", run_dir: Path, watcher: "Watcher") -> "dict[str, Json]":
        from paceline.training.run import train

        self._rest(plan)
        return train(plan, run_dir, watcher, warm=self._warm)

    def resume(
        self, plan: "Plan", run_dir: Path, checkpoint: "Checkpoint", watcher: "Watcher"
    ) -> "dict[str, Json]":
        from paceline.training.run import train

        self._rest(plan)
        return train(plan, run_dir, watcher, warm=self._warm, resume_from=checkpoint)

    def _rest(self, plan: "Plan") -> None:
        """Where others start the workers, the warm process would only take memory."""
        if plan.ray is not None:
            self._warm.close()

    def count_samples(self, config: "TrainConfig") -> int:
        from paceline.training.run import count_samples

        return count_samples(config, self._warm)

    def close(self) -> None:
        self._warm.close()

"""Weights & Biases writer: its SDK, offline by default, so that nothing leaves the machine.

`wandb sync FOLDER` uploads an offline run later. The SDK reads the API key from the environment
(WANDB_API_KEY) or from its own file.
"""

from collections.abc import Sequence

import wandb

from paceline.core import environ
from paceline.core.errors import PacelineError
from paceline.export.writer import Outcome, Point, RunInfo, VendorRunId

PROJECT = "paceline"
STEP = "step"


class WandbWriter:
    def __init__(self, run_info: RunInfo, where: str | None) -> None:
        self._is_online = where == "online"
        run_id_file = VendorRunId(run_info.folder, "wandb")
        run_id = run_id_file.read() if run_info.goes_on else None
        try:
            self._run = wandb.init(
                project=environ.wandb_project() or PROJECT,
                name=run_info.name,
                id=run_id,
                resume="allow" if run_id is not None else None,
                mode="online" if self._is_online else "offline",
                dir=str(run_info.folder),
                config=dict(run_info.parameters),
                settings=wandb.Settings(
                    silent=True,
                    console="off",  # the output of this process is not the run's
                    save_code=False,
                    disable_git=True,
                    x_disable_stats=True,  # of this process, which does not train
                    x_disable_meta=True,
                    x_disable_machine_info=True,
                ),
            )
        except wandb.errors.UsageError as error:
            raise PacelineError(
                f"W&B denied the login: {error}",
                "set WANDB_API_KEY, or write wandb=offline and send it later with  wandb sync",
            ) from error
        run_id_file.write(self._run.id)
        # Metrics of several kinds arrive at different times: each carries its step, in any order.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self._final: dict[str, float] = {}

    @property
    def place(self) -> str:
        return (
            self._run.url if self._is_online and self._run.url else str(self._run.dir).removesuffix("/files")
        )

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({STEP: point.step, **point.values})
            self._final |= {n: v for n, v in point.values.items() if n.startswith("final/")}

    def rewind(self, step: int) -> None:
        """A no-op: W&B removes nothing, and a repeated step is added to the earlier one."""

    def end(self, outcome: Outcome) -> None:
        self._run.summary.update({"outcome": outcome.value, **self._final})
        self._run.finish(exit_code=0 if outcome is Outcome.FINISHED else 1)

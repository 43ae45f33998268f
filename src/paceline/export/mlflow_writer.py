"""MLflow writer: its client, for a tracking server or for files on this machine."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from paceline.core import environ
from paceline.export.writer import Outcome, Point, RunInfo, VendorRunId

Item = TypeVar("Item")

EXPERIMENT = "paceline"
FOLDER = "mlruns"  # MLflow's own name for it, in the folder that the run was started from
METRIC_BATCH = 1000  # metrics in one request, the limit of a server
PARAMETER_BATCH = 100
MAX_PARAMETER_LENGTH = 6000
_STATUS = {Outcome.FINISHED: "FINISHED", Outcome.STOPPED: "KILLED", Outcome.FAILED: "FAILED"}


class MlflowWriter:
    def __init__(self, run_info: RunInfo, where: str | None) -> None:
        self._address = where or environ.mlflow_tracking_uri() or FOLDER
        if ":" not in self._address:
            self._address = Path(self._address).resolve().as_uri()
        self._client = MlflowClient(self._address)
        self._run_id_file = VendorRunId(run_info.folder, "mlflow")
        run_id = self._run_id_file.read() if run_info.goes_on else None
        self._run = run_id if run_id is not None else self._create(run_info)
        self._last_ms = int(run_info.started_unix_s * 1000)
        if run_id is not None:
            self._client.update_run(self._run, status="RUNNING")

    @property
    def place(self) -> str:
        parts = urlsplit(self._address)
        if not parts.hostname:
            return self._address
        # The address may come from the environment, with a password in it.
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    def write(self, points: Sequence[Point]) -> None:
        metrics: list[Metric] = []
        for point in points:
            self._last_ms = int(point.unix_s * 1000)
            metrics += [
                Metric(name, value, self._last_ms, point.step) for name, value in point.values.items()
            ]
        for batch in _chunks(metrics, METRIC_BATCH):
            self._client.log_batch(self._run, metrics=batch)

    def rewind(self, step: int) -> None:
        """A no-op: MLflow keeps a history, and a repeated step becomes its newer value."""

    def end(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._run, status=_STATUS[outcome], end_time=self._last_ms)

    def _create(self, run_info: RunInfo) -> str:
        run = self._client.create_run(
            self._experiment(), start_time=int(run_info.started_unix_s * 1000), run_name=run_info.name
        )
        run_id = str(run.info.run_id)
        self._run_id_file.write(run_id)
        params = [
            Param(name, str(value)[:MAX_PARAMETER_LENGTH]) for name, value in run_info.parameters.items()
        ]
        for batch in _chunks(params, PARAMETER_BATCH):
            self._client.log_batch(run_id, params=batch)
        self._client.log_batch(run_id, tags=[RunTag("paceline.run_folder", run_info.folder.name)])
        return run_id

    def _experiment(self) -> str:
        name = environ.mlflow_experiment() or EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another run has just created it
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                raise
            return str(experiment.experiment_id)


def _chunks(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])

"""`TrainResult`: the numbers of a finished run; losses and weights are read on demand."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import DamagedRecordError
from paceline.plan.codec import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Losses:
    """One entry for each step of the run, in order."""

    steps: "NDArray[np.int64]"  # numbers of the steps, from 0
    values: "NDArray[np.float64]"  # the training loss: the mean over the workers
    seconds: "NDArray[np.float64]"  # when the step was over, since the run began


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of the model during training (`evaluate_every`)."""

    step: int  # steps of the run done by then
    samples: int  # seen by then, by all workers
    seconds: float  # of training so far, without evaluations
    metrics: dict[str, float]  # without those that are not finite


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Result of a run. What needs the event log is None when the run was trained with events off."""

    run: str  # its name
    run_dir: Path  # its folder: plan.json, events.jsonl, result.json, logs, checkpoints
    task: str  # a built-in name, or module:Class
    mode: str  # the synchronization strategy
    workers: int  # how many there were; of an elastic run, its shards
    metrics: dict[str, float]  # of the final model, on data it was not trained on
    loss: float | None  # the training loss: the mean over each worker's last 20 steps
    steps: int | None  # gradients per worker, on average; of an elastic run, its steps
    samples_per_s: float | None  # over all workers, from the first step's start to the last one's end
    wall_s: float  # from the call to the end, with starting the workers
    bytes_out: int | None  # that all workers sent
    bytes_in: int | None  # that all workers received
    staleness: float | None  # updates between reading and applying, on average; None without a server
    stopped_early: bool  # before all steps were done; `paceline.resume(run_dir)` continues it
    stopped_by: str | None  # SIGINT, SIGTERM, SIGHUP, or why early stopping ended it
    evaluations: tuple[Evaluation, ...]  # in order; empty if none were requested
    details: dict[str, Json]  # the content of result.json

    def losses(self) -> Losses:
        """The training loss by step, read from the event log of the run."""
        import numpy as np

        from paceline.export.follower import points_of

        record = points_of(self.run_dir, every=1)
        points = [point for point in record.points if "train/loss" in point.values]
        return Losses(
            steps=np.array([point.step for point in points], dtype=np.int64),
            values=np.array([point.values["train/loss"] for point in points], dtype=np.float64),
            seconds=np.array([point.unix_s - record.started_unix_s for point in points], dtype=np.float64),
        )

    def weights(self) -> "dict[str, NDArray[np.generic]]":
        """The model's state_dict as arrays, from the newest checkpoint; `torch.from_numpy` makes tensors.

        With early stopping they are the best ones, as in `metrics`.
        """
        from safetensors.numpy import load_file

        from paceline.training.checkpoints import export_weights

        with tempfile.TemporaryDirectory(prefix="paceline-weights-") as folder:
            out = Path(folder) / "weights.safetensors"
            export_weights(self.run_dir, at=None, worker=0, kind="safetensors", out=out)
            return dict(load_file(out))

    def _repr_html_(self) -> str:
        rows = [("task", self.task), ("mode", self.mode), ("workers", str(self.workers))]
        rows += [(name, f"{value:.4g}") for name, value in self.metrics.items()]
        numbers = {"loss": self.loss, "samples/s": self.samples_per_s, "seconds": self.wall_s}
        rows += [(name, f"{value:.4g}") for name, value in numbers.items() if value is not None]
        if self.staleness is not None:
            rows.append(("staleness", f"{self.staleness:.3g}"))
        if self.stopped_early:
            rows.append(("stopped", self.stopped_by or "before the last step"))
        return html_table(f"run {self.run}", (), [*rows, ("run folder", str(self.run_dir))])


def read_result(run_dir: Path) -> TrainResult:
    """The result of the run in this folder, from its result.json. Raises DamagedRecordError."""
    path = run_dir / "result.json"
    try:
        return from_json(json.loads(path.read_bytes()), run_dir)
    except ValueError as error:
        raise DamagedRecordError(f"{path} cannot be read: {error}", "restore it from a backup") from error


def from_json(result: dict[str, Json], run_dir: Path) -> TrainResult:
    traffic = _object(result.get("bytes"))
    staleness = _object(result.get("staleness"))
    return TrainResult(
        run=str(result["run"]),
        run_dir=run_dir,
        task=str(result["task"]),
        mode=str(result["mode"]),
        workers=int(str(result["num_workers"])),
        metrics=_numbers(_object(result.get("metrics"))),
        loss=_number(result.get("loss")),
        steps=_integer(result.get("steps")),
        samples_per_s=_number(result.get("samples_per_s")),
        wall_s=float(str(result["wall_s"])),
        bytes_out=_integer(traffic.get("out")),
        bytes_in=_integer(traffic.get("in")),
        staleness=_number(staleness.get("mean")),
        stopped_early=bool(result["stopped_early"]),
        stopped_by=None if result.get("stopped_by") is None else str(result["stopped_by"]),
        evaluations=tuple(_evaluations(result.get("evaluations"))),
        details=result,
    )


def _evaluations(value: Json) -> Iterator[Evaluation]:
    for row in value if isinstance(value, list) else []:
        if isinstance(row, dict):
            yield Evaluation(
                step=int(str(row["step"])),
                samples=int(str(row["samples"])),
                seconds=float(str(row["seconds"])),
                metrics=_numbers(_object(row["metrics"])),
            )


def _numbers(values: dict[str, Json]) -> dict[str, float]:
    return {name: number for name, value in values.items() if (number := _number(value)) is not None}


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Json) -> int | None:
    return None if (number := _number(value)) is None else int(number)


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"<caption>{escape(title)}</caption>"]
    if heads:
        lines.append(_row(heads, "th"))
    lines += [_row(row, "td") for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

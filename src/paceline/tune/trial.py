"""Trial actor: one run of a trial inside a Ray actor, polled for its evaluations.

The caller polls `next`: it returns the next evaluation, or, when there is none within half a second, the
progress of the run. Workers stay warm from one trial to the next and end with this process, however it ends.
Only text and numbers cross the process boundary.
"""

import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.catalog import Checkpoint
from paceline.comparison.measurement import is_finished
from paceline.core.clock import monotonic_s
from paceline.core.disk import exclusive
from paceline.core.errors import PacelineError, TrainingError
from paceline.events.schema import EARLY_STOP
from paceline.launchers.local import LocalLauncher, Message, RunOutcome, Supervisor
from paceline.plan.codec import Json, loads, plan_hash, read
from paceline.plan.plan import Plan
from paceline.training.progress import Progress
from paceline.training.resume import newest_checkpoint
from paceline.training.run import train
from paceline.tune.experiment import rung_of

BEAT_S = 0.5
STOP_S = 8.0  # for an orderly stop; Ray allows ten
WORST = 1e300  # score of NaN: worse than any number, but still finite
Report = dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """One trial, as it is passed to the process that runs it."""

    number: int
    plan: str  # JSON
    run_dir: str
    folder: str  # from which the user's modules are imported, if it exists
    metric: tuple[str, ...]
    lower_is_better: bool


class TrialMaker:
    """Runs trials, one after another."""

    def __init__(self) -> None:
        self._launcher: LocalLauncher | None = None
        self._run: _Run | None = None

    def begin(self, text: str) -> None:
        fields = json.loads(text)
        order = TrialOrder(**{**fields, "metric": tuple(fields["metric"])})
        if self._launcher is None:
            if Path(order.folder).is_dir():
                os.chdir(order.folder)
            self._launcher = LocalLauncher()
        self._run = _Run(order, self._launcher)

    def next(self) -> Report:
        assert self._run is not None, "a trial has begun"
        return self._run.next()

    def end(self) -> None:
        """Stop the trial at its next step, with a checkpoint; kill it if it does not stop in time."""
        if self._run is None or self._launcher is None:
            return
        if not self._run.end(self._launcher):
            self._launcher.close()
            self._launcher = None
        self._run = None

    def close(self) -> None:
        self.end()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None


class _Run:
    """One trial that runs in its own thread."""

    def __init__(self, order: TrialOrder, launcher: LocalLauncher) -> None:
        self._order = order
        self._plan = loads(order.plan, where="the trial's plan")
        self._reports: queue.Queue[Report] = queue.Queue()
        self._began_s = monotonic_s()
        self._last = Report(step=0, steps=self._plan.steps)
        self._is_over = False
        self._is_stopped = False
        self._has_failed = False
        self._thread = threading.Thread(target=self._train, args=(launcher,), daemon=True)
        self._thread.start()

    def next(self) -> Report:
        common: Report = {"number": self._order.number, "seconds": monotonic_s() - self._began_s}
        try:
            self._last = self._reports.get(timeout=BEAT_S)
        except queue.Empty:
            return {**common, "step": self._last["step"], "steps": self._plan.steps}
        return {**common, **self._last}

    def end(self, launcher: LocalLauncher) -> bool:
        """Whether it ended in order, so that the launcher can run another trial."""
        if self._is_over:
            self._thread.join()
            return not self._has_failed
        try:
            launcher.stop()
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                launcher.kill()
                self._thread.join(STOP_S)
        except TrainingError:
            return False  # the launcher and the run have ended
        # A stop request that came too late would stop the next run.
        return self._is_stopped and not self._thread.is_alive()

    # Callbacks of the run, in its own thread.

    def progress(self, progress: Progress) -> None:
        if self._reports.empty():
            self._reports.put({"step": progress.step, "steps": progress.total_steps, "loss": progress.loss})

    def note(self, text: str) -> None: ...

    def evaluated(self, message: Message) -> None:
        step = int(str(message["step"]))
        metrics = json.loads(str(message["metrics"]))
        if step < self._plan.steps:  # no decision is needed at the end
            self._reports.put(
                {
                    "step": step,
                    "steps": self._plan.steps,
                    **value_report(metrics, step, self._plan, self._order),
                }
            )

    def _train(self, launcher: LocalLauncher) -> None:
        try:
            self._reports.put(self._ended(self._result(launcher)))
        except PacelineError as error:
            self._reports.put(self._failed(error.what))
        except Exception as error:  # a bug: reported as the failure of the trial
            self._reports.put(self._failed(f"{type(error).__name__}: {error}"))
        finally:
            self._is_over = True

    def _result(self, launcher: LocalLauncher) -> dict[str, Json]:
        run_dir = Path(self._order.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(run_dir):  # a trial that Ray counts as lost may still be training here
            if (result := finished_result(self._plan, run_dir)) is not None:
                return result
            checkpoint = resume_point(self._plan, run_dir)
            if checkpoint is None:
                shutil.rmtree(run_dir)  # a partial run without a checkpoint is of no use
            tap = _EvaluationTap(launcher, self.evaluated)
            return train(self._plan, run_dir, self, warm=tap, resume_from=checkpoint)

    def _ended(self, result: dict[str, Json]) -> Report:
        report: Report = {"steps": self._plan.steps, "done": True, "seconds": result["wall_s"]}
        if result["stopped_early"] and not _is_early_stop(result):
            self._is_stopped = True
            return {**report, "step": self._last["step"], "state": "interrupted"}
        return {**report, **final_report(result, self._plan, self._order)}

    def _failed(self, why: str) -> Report:
        self._has_failed = True
        return {**self._last, "steps": self._plan.steps, "done": True, "state": "failed", "why": why}


class _EvaluationTap:
    """A launcher that also reports every evaluation to a callback."""

    def __init__(self, launcher: LocalLauncher, evaluated: Callable[[Message], None]) -> None:
        self._launcher = launcher
        self._evaluated = evaluated
        self.stop = launcher.stop
        self.kill = launcher.kill
        self.close = launcher.close

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        def handle(message: Message) -> None:
            on_message(message)
            if message["ev"] == "evaluated":
                self._evaluated(message)

        return self._launcher.run(
            plan, run_dir, on_message=handle, resume_from=resume_from, supervisor=supervisor
        )


def value_report(metrics: dict[str, Json], step: int, plan: Plan, order: TrialOrder) -> Report:
    """The metric and its score; empty: the metric is missing."""
    name = next((name for name in order.metric if name in metrics), None)
    if name is None:
        return {}
    value = metrics[name]
    number = float(value) if isinstance(value, int | float) else None
    report: Report = {
        "metric": name,
        "has_value": number is not None,
        "value": 0.0 if number is None else number,
        "rung": rung_of(plan, step),
    }
    if plan.evaluation is None:
        return report  # at its end: ASHA would compare it with the first evaluation of others
    score = WORST
    if number is not None:
        score = number if order.lower_is_better else -number
    return {**report, "score": max(-WORST, min(WORST, score))}


def final_report(result: dict[str, Json], plan: Plan, order: TrialOrder) -> Report:
    """Report of a finished run, by its steps or by early stopping."""
    step = int(str(_last(result).get("step", plan.steps))) if _is_early_stop(result) else plan.steps
    value = value_report(_metrics_of(result, order.metric), step, plan, order)
    if not value:
        known = sorted({*_names(result.get("metrics")), *_names(_last(result).get("metrics"))})
        return {"step": step, "state": "unmeasured", "known": ", ".join(known)}
    return {"step": step, "state": "finished", **value}


def finished_result(plan: Plan, run_dir: Path) -> dict[str, Json] | None:
    """The result of a trial that finished before; None: it is resumed or repeated."""
    try:
        if not (run_dir / "plan.json").exists() or not is_finished(run_dir, plan):
            return None
    except PacelineError:
        return None  # an incomplete result: its writer was killed
    result: dict[str, Json] = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    return result


def resume_point(plan: Plan, run_dir: Path) -> Checkpoint | None:
    """The checkpoint to resume an interrupted trial from; None: it starts from the beginning."""
    try:
        if plan_hash(read(run_dir / "plan.json")) != plan_hash(plan):
            return None
    except PacelineError:
        return None  # no run there, or not readable
    return newest_checkpoint(plan, run_dir)


def _metrics_of(result: dict[str, Json], names: Sequence[str]) -> dict[str, Json]:
    """Metrics of the weights that the run keeps: the best, otherwise the last; else those of its end."""
    best = result.get("best")
    kept = best.get("metrics") if isinstance(best, dict) else _last(result).get("metrics")
    for metrics in (kept, result.get("metrics")):
        if isinstance(metrics, dict) and any(name in metrics for name in names):
            return metrics
    return {}


def _is_early_stop(result: dict[str, Json]) -> bool:
    return str(result.get("stopped_by", "")).startswith(EARLY_STOP)


def _last(result: dict[str, Json]) -> dict[str, Json]:
    """The last evaluation; empty: none."""
    evaluations = result.get("evaluations")
    last = evaluations[-1] if isinstance(evaluations, list) and evaluations else None
    return last if isinstance(last, dict) else {}


def _names(metrics: Json) -> list[str]:
    return list(metrics) if isinstance(metrics, dict) else []

"""When is a run evaluated while it trains, and does it go on afterwards?

Only after steps at which all workers hold the same parameters, so that all see
the same numbers and decide the same. An evaluation changes nothing that is
trained, and its time is no training time. What was seen so far, and the best
weights of a run that may stop early, are part of every checkpoint.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.checkpoints.nested import join, split
from paceline.checkpoints.store import Snapshot
from paceline.clock import Clock
from paceline.errors import TrainingError
from paceline.events.log import Log
from paceline.events.schema import EARLY_STOP
from paceline.ids import Clock as StepClock
from paceline.plan.epochs import next_evaluation
from paceline.plan.plan import Plan
from paceline.strategies.port import Outcome
from paceline.sync.early_stop import best_of, waited
from paceline.transport.arena import Arena
from paceline.worker.telling import Report
from paceline.worker.validation import Validation

FACT = "evaluation"  # the name under which it is in a checkpoint
USUAL_METRICS = ("valid_loss", "test_loss")


class Evaluates(Protocol):
    """What the loop asks."""

    def begins_at_end(self) -> bool:
        """The loop begins; is there nothing left to do, as the run has stopped early?"""
        ...

    def after_step(self, finished: StepClock, outcome: Outcome) -> Outcome:
        """The same outcome, or, if it is time to stop, one that says so."""
        ...

    def conclude(self, report: Report) -> None:
        """The loop is over: add what is to be told, and put the best weights in place."""
        ...


class _NoEvaluation:
    def begins_at_end(self) -> bool:
        return False

    def after_step(self, finished: StepClock, outcome: Outcome) -> Outcome:
        return outcome

    def conclude(self, report: Report) -> None: ...


NO_EVALUATION = _NoEvaluation()


class Evaluator:
    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        validation: Validation,
        *,
        clock: Clock,
        log: Log,
        report: Callable[[Report], None] | None,  # None: another worker tells what was seen
    ) -> None:
        assert plan.evaluation is not None, "made only where there are evaluations"
        self._plan, self._said, self._arena, self._validation = plan, plan.evaluation, arena, validation
        self._clock, self._log, self._report = clock, log, report
        self._due = next_evaluation(plan, 0)
        self._seen: list[dict[str, Any]] = []  # Any: JSON. As in result.json, one for each evaluation
        self._best: dict[str, Tensor] = {}
        self._before_s, self._spent_ns, self._began_ns = 0.0, 0, clock.now_ns()
        self._reason = ""

    def begins_at_end(self) -> bool:
        self._began_ns, self._spent_ns = self._clock.now_ns(), 0
        is_over = bool(self._seen) and self._seen[-1]["step"] >= self._plan.steps
        self._reason = "" if is_over else self._why_to_stop()
        return bool(self._reason)

    def after_step(self, finished: StepClock, outcome: Outcome) -> Outcome:
        at = finished if outcome.shares_done is None else outcome.shares_done // self._plan.num_workers
        is_due = at >= self._due or at == self._plan.steps
        if not outcome.synced or not is_due or (self._seen and self._seen[-1]["step"] == at):
            return outcome
        self._due = next_evaluation(self._plan, at)
        self._evaluate(at)
        if outcome.stop or at == self._plan.steps:
            return outcome  # it ends here anyway, and not because of this
        self._reason = self._why_to_stop()
        if not self._reason:
            return outcome
        if self._report is not None:
            self._log.write("early_stop", step=at, best_step=self._best_step(), reason=self._reason)
        return dataclasses.replace(outcome, stop=True)

    def conclude(self, report: Report) -> None:
        report["steps_s"] = float(str(report["steps_s"])) - self._spent_ns / 1e9
        if self._report is not None:
            report["evaluations"] = json.dumps(self._seen)
        if self._reason:
            report["stopped_by"] = self._reason
        if not self._best:
            return
        self._put_back()
        if self._report is not None:
            best = best_of(self._values(), lower_is_better=self._said.lower_is_better)
            assert best is not None, "weights are kept only of what was better"
            report["best"] = json.dumps({k: self._seen[best][k] for k in ("step", "metrics")})

    def live(self) -> Snapshot:
        """To be copied before anything changes it."""
        kept = {"seen": self._seen, "training_s": self._training_s(), "best": self._best}
        skeleton, tensors = split(kept, FACT, copy=False)
        return Snapshot(tensors, {FACT: skeleton})

    def restore(self, saved: Snapshot) -> None:
        kept = join(saved.facts[FACT], saved.tensors)
        self._seen, self._best, self._before_s = kept["seen"], kept["best"], kept["training_s"]
        self._due = next_evaluation(self._plan, saved.facts["at"])

    def _evaluate(self, at: int) -> None:
        started_ns, seconds = self._clock.now_ns(), self._training_s()
        found = self._validation.metrics()
        metrics = {name: value if math.isfinite(value) else None for name, value in found.items()}
        took_ns = self._clock.now_ns() - started_ns
        self._spent_ns += took_ns
        seen = {
            "step": at,
            "samples": at * self._plan.global_batch,
            "seconds": seconds,
            "took_s": took_ns / 1e9,
        }
        self._seen.append({**seen, "metrics": metrics})
        if self._said.patience is not None and not waited(
            self._values(), lower_is_better=self._said.lower_is_better
        ):
            self._best = self._arena.named_state()
        if self._report is not None:
            self._log.write("evaluated", **seen, metrics=json.dumps(metrics))
            self._report({"ev": "evaluated", **seen, "metrics": json.dumps(metrics)})

    def _training_s(self) -> float:
        return self._before_s + (self._clock.now_ns() - self._began_ns - self._spent_ns) / 1e9

    def _values(self) -> list[float | None]:
        """What early stopping looks at, of every evaluation."""
        if not self._seen:
            return []
        names = self._seen[-1]["metrics"]
        wanted = USUAL_METRICS if self._said.metric is None else (self._said.metric,)
        name = next((name for name in wanted if name in names), None)
        if name is None:
            raise TrainingError(
                f"early stopping looks at {' or '.join(wanted)}, but the task only has {', '.join(names)}",
                f"set early_stop_metric to {next(iter(names), 'one of the task')}, for example",
            )
        return [one["metrics"][name] for one in self._seen]

    def _why_to_stop(self) -> str:
        """Empty: it goes on."""
        if self._said.patience is None or not self._seen:
            return ""
        values = self._values()
        since = waited(values, lower_is_better=self._said.lower_is_better)
        if since < self._said.patience:
            return ""
        times = "1 evaluation" if since == 1 else f"{since} evaluations"
        best = best_of(values, lower_is_better=self._said.lower_is_better)
        name = self._said.metric or next(n for n in USUAL_METRICS if n in self._seen[-1]["metrics"])
        if best is None:
            return f"{EARLY_STOP}: {name} was no number in {times}"
        than = f"than {values[best]:.6g} after step {self._best_step()}"
        return f"{EARLY_STOP}: {name} was no better {than} in {times}"

    def _best_step(self) -> int | None:
        best = best_of(self._values(), lower_is_better=self._said.lower_is_better)
        return None if best is None else int(self._seen[best]["step"])

    def _put_back(self) -> None:
        with torch.no_grad():
            for name, tensor in self._arena.module.state_dict().items():
                tensor.copy_(self._best[name])


def best_weights(saved: Snapshot) -> dict[str, Tensor]:
    """Those that a checkpoint holds beside the newest ones; none if its run keeps none."""
    kept = saved.facts.get(FACT)
    best: dict[str, Tensor] = {} if kept is None else join(kept, saved.tensors)["best"]
    return best

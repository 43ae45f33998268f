"""Evaluations of a run while it trains, and the decision to stop early.

An evaluation belongs to one step of the run and to one state of the parameters: that of a step after which
all workers hold the same, or that of a parameter server when so many gradients are applied. It changes
nothing that is trained, and its time is no training time.

`Evaluations` is what a run remembers of them: the measured values, the best weights of a run that may stop
early, and whether it stops. It is part of every checkpoint, of the state that one worker takes over from
another, and of the state of a server's backup, so that no lost process loses or repeats a decision.
`Evaluator` adds to it between two steps of the loop, `ServerEvaluator` between two updates of a server.

The order is: measure, write to the event log, agree, remember. A process that is lost before all have agreed
leaves at most an event that is written again for the same step, with the same metrics; readers keep one for
each step.
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
Entry = dict[str, Any]  # Any: JSON. One evaluation, as in result.json


class Evaluates(Protocol):
    """What the training loop asks."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """The events of an evaluation."""

    evaluated: dict[str, Any]  # Any: JSON
    early_stop: dict[str, Any] | None  # Any: JSON

    def write(self, log: Log) -> None:
        """On the disk when this returns."""
        log.write("evaluated", **self.evaluated)
        if self.early_stop is not None:
            log.write("early_stop", **self.early_stop)
        log.flush()

    def report(self) -> Report:
        return {"ev": "evaluated", **self.evaluated}


class Evaluations:
    """What a run remembers of its evaluations."""

    def __init__(self, plan: Plan, arena: Arena, clock: Clock) -> None:
        assert plan.evaluation is not None, "made only where there are evaluations"
        self._plan, self._settings, self._arena, self._clock = plan, plan.evaluation, arena, clock
        self._seen: list[Entry] = []
        self._best: dict[str, Tensor] = {}
        self.reason = ""  # why the run stops early; empty: it does not
        self._has_begun = False
        self._before_s, self._spent_ns, self._began_ns = 0.0, 0, 0
        self._own_ns = 0  # of this process

    @property
    def count(self) -> int:
        return len(self._seen)

    def begin(self) -> None:
        """Training begins, or continues in another generation of workers."""
        if not self._has_begun:
            self._began_ns, self._spent_ns, self._has_begun = self._clock.now_ns(), 0, True
        self.reason = self._why_to_stop(self._seen)

    def is_due(self, at: int) -> bool:
        """After so many steps of the run. Not of what was under way when the run was stopped."""
        if self.reason:
            return False
        last = self._seen[-1]["step"] if self._seen else 0
        return at > last and (at >= next_evaluation(self._plan, last) or at == self._plan.steps)

    def measure(self, at: int, validation: Validation) -> Entry:
        """Evaluate the parameters as they are; remembers nothing."""
        started_ns, seconds = self._clock.now_ns(), self._training_s()
        found = validation.metrics()
        metrics = {name: value if math.isfinite(value) else None for name, value in found.items()}
        return {
            "step": at,
            "samples": at * self._plan.global_batch,
            "seconds": seconds,
            "took_s": (self._clock.now_ns() - started_ns) / 1e9,
            "metrics": metrics,
        }

    def take(self, entry: Entry, *, is_ending: bool = False) -> None:
        """Remember it, with the parameters as they are. `is_ending`: the run ends here for another reason."""
        self._seen.append(entry)
        took_ns = round(entry["took_s"] * 1e9)
        self._spent_ns += took_ns
        self._own_ns += took_ns
        if self._settings.patience is not None and not waited(
            self._values(self._seen), lower_is_better=self._settings.lower_is_better
        ):
            self._best = self._arena.named_state()
        if not is_ending:
            self.reason = self._why_to_stop(self._seen)

    def row(self, entry: Entry, *, is_ending: bool = False) -> "EvaluatedRow":
        """What is recorded of an evaluation that is not remembered yet."""
        seen = [*self._seen, entry]
        reason = "" if is_ending else self._why_to_stop(seen)
        if not reason:
            return EvaluatedRow(_flat(entry), None)
        stop = {"step": entry["step"], "best_step": self._best_step(seen), "reason": reason}
        return EvaluatedRow(_flat(entry), stop)

    def conclude(self, report: Report, *, tells: bool = True) -> None:
        if "steps_s" in report:
            report["steps_s"] = float(str(report["steps_s"])) - self._own_ns / 1e9
        else:
            report["evaluating_s"] = self._own_ns / 1e9  # the workers of a server waited meanwhile
        if tells:
            report["evaluations"] = json.dumps(self._seen)
        if self.reason:
            report["stopped_by"] = self.reason
        if not self._best:
            return
        self._put_back()
        if tells:
            best = best_of(self._values(self._seen), lower_is_better=self._settings.lower_is_better)
            assert best is not None, "weights are kept only of what was better"
            report["best"] = json.dumps({k: self._seen[best][k] for k in ("step", "metrics")})

    def live(self) -> Snapshot:
        """To be copied before anything changes it."""
        kept = {"seen": self._seen, "training_s": self._training_s(), "best": self._best}
        skeleton, tensors = split(kept, FACT, copy=False)
        return Snapshot(tensors, {FACT: skeleton})

    def restore(self, saved: Snapshot) -> None:
        """Continue from a checkpoint or from what another process has."""
        kept = join(saved.facts[FACT], saved.tensors)
        self._seen, self._best, self._before_s = kept["seen"], kept["best"], kept["training_s"]
        self._began_ns, self._spent_ns = self._clock.now_ns(), 0
        self.reason = self._why_to_stop(self._seen)

    def _training_s(self) -> float:
        return self._before_s + (self._clock.now_ns() - self._began_ns - self._spent_ns) / 1e9

    def _values(self, seen: list[Entry]) -> list[float | None]:
        """What early stopping looks at, of every evaluation."""
        if not seen:
            return []
        names = seen[-1]["metrics"]
        wanted = USUAL_METRICS if self._settings.metric is None else (self._settings.metric,)
        name = next((name for name in wanted if name in names), None)
        if name is None:
            raise TrainingError(
                f"early stopping looks at {' or '.join(wanted)}, but the task only has {', '.join(names)}",
                f"set early_stop_metric to {next(iter(names), 'one of the task')}, for example",
            )
        return [entry["metrics"][name] for entry in seen]

    def _why_to_stop(self, seen: list[Entry]) -> str:
        """Empty: training continues."""
        if self._settings.patience is None or not seen or seen[-1]["step"] >= self._plan.steps:
            return ""
        values = self._values(seen)
        since = waited(values, lower_is_better=self._settings.lower_is_better)
        if since < self._settings.patience:
            return ""
        times = "1 evaluation" if since == 1 else f"{since} evaluations"
        best = best_of(values, lower_is_better=self._settings.lower_is_better)
        name = self._settings.metric or next(n for n in USUAL_METRICS if n in seen[-1]["metrics"])
        if best is None:
            return f"{EARLY_STOP}: {name} was no number in {times}"
        than = f"than {values[best]:.6g} after step {self._best_step(seen)}"
        return f"{EARLY_STOP}: {name} was no better {than} in {times}"

    def _best_step(self, seen: list[Entry]) -> int | None:
        best = best_of(self._values(seen), lower_is_better=self._settings.lower_is_better)
        return None if best is None else int(seen[best]["step"])

    def _put_back(self) -> None:
        with torch.no_grad():
            for name, tensor in self._arena.module.state_dict().items():
                tensor.copy_(self._best[name])


class Evaluator:
    """Evaluates between two steps of the training loop. All workers do it after the same step."""

    def __init__(
        self,
        plan: Plan,
        record: Evaluations,
        validation: Validation,
        *,
        log: Log,
        report: Callable[[Report], None] | None,  # None: another worker tells what was seen
        steps: Callable[[], int] | None = None,  # of the run that are committed, where workers come and go
    ) -> None:
        self.record = record
        self._num_workers, self._validation = plan.num_workers, validation
        self._log, self._report, self._steps = log, report, steps

    def begins_at_end(self) -> bool:
        self.record.begin()
        # A generation may have ended after a step was committed and before it was evaluated.
        if self._steps is not None and self.record.is_due(self._steps()):
            self._evaluate(self._steps(), is_ending=False)
        return bool(self.record.reason)

    def after_step(self, finished: StepClock, outcome: Outcome) -> Outcome:
        at = self._steps_done(finished, outcome)
        if not outcome.synced or not self.record.is_due(at):
            return outcome
        self._evaluate(at, is_ending=outcome.stop)
        return dataclasses.replace(outcome, stop=outcome.stop or bool(self.record.reason))

    def conclude(self, report: Report) -> None:
        self.record.conclude(report, tells=self._report is not None)

    def _steps_done(self, finished: StepClock, outcome: Outcome) -> int:
        if self._steps is not None:
            return self._steps()
        return finished if outcome.shares_done is None else outcome.shares_done // self._num_workers

    def _evaluate(self, at: int, *, is_ending: bool) -> None:
        entry = self.record.measure(at, self._validation)
        if self._report is not None:
            row = self.record.row(entry, is_ending=is_ending)
            row.write(self._log)
            self._report(row.report())
        # All remember the same times, those of the worker that writes, and not before they are written.
        seconds, took_s = self._validation.agreed([entry["seconds"], entry["took_s"]])
        self.record.take({**entry, "seconds": seconds, "took_s": took_s}, is_ending=is_ending)


class Served(Protocol):
    """A parameter server whose parameters can be evaluated."""

    @property
    def evaluations(self) -> Evaluations | None: ...

    @property
    def steps_done(self) -> int:
        """Applied gradients, in steps of the run."""
        ...

    def take_evaluation(self, entry: Entry) -> None:
        """Remember it, and stop if it says so."""
        ...


class ServerEvaluator:
    """Evaluates the parameters of a server between two updates."""

    def __init__(
        self,
        server: Served,
        validation: Validation,
        *,
        log: Log,
        report: Callable[[Report], None],
    ) -> None:
        assert server.evaluations is not None, "made only where there are evaluations"
        self._server, self._record, self._validation = server, server.evaluations, validation
        self._log, self._report = log, report

    def after_update(self) -> None:
        """No worker is answered meanwhile, so that this version is the one that is evaluated."""
        at = self._server.steps_done
        if not self._record.is_due(at):
            return
        entry = self._record.measure(at, self._validation)
        row = self._record.row(entry)
        row.write(self._log)
        self._report(row.report())
        self._server.take_evaluation(entry)


def best_weights(saved: Snapshot) -> dict[str, Tensor]:
    """Those that a checkpoint holds beside the newest ones; none if its run keeps none."""
    kept = saved.facts.get(FACT)
    best: dict[str, Tensor] = {} if kept is None else join(kept, saved.tensors)["best"]
    return best


def _flat(entry: Entry) -> dict[str, Any]:  # Any: JSON
    """As the fields of an event."""
    return {**entry, "metrics": json.dumps(entry["metrics"])}

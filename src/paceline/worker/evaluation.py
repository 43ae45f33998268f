"""Evaluations of a run while it trains, and the decision to stop early.

An evaluation belongs to one step of the run and to one state of the parameters: that of a step after which
all workers hold the same, or that of a parameter server after a number of applied gradients. It changes
no trained state, and its time does not count as training time.

`Evaluations` is the state that a run keeps of them: the results, the best weights of a run that may stop
early, and whether it stops. It is part of every checkpoint, of the state that one worker takes over from
another, and of the state of a server's backup, so that no lost process loses or repeats a decision.
`Evaluator` adds to it between two steps of the loop, `ServerEvaluator` between two updates of a server.

The order is: measure, write to the event log, agree, store. A process that is lost before all have agreed
leaves at most an event that is written again for the same step, with the same metrics; readers keep one for
each step.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.checkpoints.snapshot import Snapshot, join_tensors, split_tensors
from paceline.core.clock import Clock
from paceline.core.errors import TrainingError
from paceline.core.ids import Clock as StepClock
from paceline.events.log import Log
from paceline.events.schema import EARLY_STOP
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.plan.schedule import next_evaluation
from paceline.strategies.port import Outcome
from paceline.sync.schedule import best_index, evaluations_since_best
from paceline.tasks.port import Scoring, Task, Validating
from paceline.transport.arena import Arena
from paceline.transport.ports import Collective
from paceline.worker.reporting import Report

# The rows are cut into pieces whose size depends on the data alone. Each piece is
# summed by one worker, and the sums are added in the order of pieces: so the result
# has the same bits for any number of workers. The model, its mode and the random
# generators are restored afterwards in every case.

MAX_ROWS = 256  # rows of a piece, which is one forward pass
PIECES = 64  # at least, where there are as many rows: enough to share out evenly


def pieces_of(num_rows: int) -> list[range]:
    size = min(MAX_ROWS, max(1, -(-num_rows // PIECES)))
    return [range(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


class Validation:
    def __init__(
        self, task: Task, arena: Arena, *, seed: int, collective: Collective | None, channel: Channel
    ) -> None:
        self._task = task
        self._arena = arena
        self._seed = seed
        self._collective = None if collective is None or collective.world_size == 1 else collective
        # In plain DDP the buffers of the ranks diverge; not in mode ddp here, but maybe in a user's strategy.
        self._takes_buffers = channel is Channel.TORCH
        self._vectors: dict[int, Tensor] = {}  # to be shown to the others, by length

    def metrics(self) -> dict[str, float]:
        """The same at every worker. All call it at the same step."""
        with self._buffers_of_rank_0():
            if isinstance(self._task, Validating):
                return self._shared(self._task)
            with _eval_mode(self._arena.module, self._seed):
                metrics = {name: float(v) for name, v in self._task.metrics(self._arena.module).items()}
            # On a GPU two workers need not compute the same bits.
            return dict(zip(metrics, self.agreed(list(metrics.values())), strict=True))

    def _shared(self, task: Validating) -> dict[str, float]:
        num_rows = task.validation_size()
        if num_rows < 1:
            raise TrainingError(
                "the task has no validation rows, so it cannot be evaluated",
                "leave evaluate_every out, or let validation_size() be more than 0",
            )
        pieces = pieces_of(num_rows)
        rank, world = (
            (0, 1) if self._collective is None else (self._collective.rank, self._collective.world_size)
        )
        own_pieces = range(rank, len(pieces), world)
        seen: dict[int, dict[str, float]] = {}
        for i in own_pieces or range(
            1
        ):  # a worker without a piece gets the names of the metrics from the first
            with _eval_mode(self._arena.module, self._seed + i), torch.no_grad():
                seen[i] = task.validate(self._arena.module, pieces[i])
        names = list(next(iter(seen.values())))
        table = torch.zeros(len(pieces), len(names), dtype=torch.float64)
        for i in own_pieces:
            table[i] = torch.tensor([float(seen[i][name]) for name in names], dtype=torch.float64)
        total = self._in_order(table)
        sums = {name: sum(column) for name, column in zip(names, total.T.tolist(), strict=True)}
        if isinstance(task, Scoring):
            return task.scores(sums, num_rows)
        return {name: value / num_rows for name, value in sums.items()}

    def _in_order(self, table: Tensor) -> Tensor:
        """The rows of all workers, each computed by one of them."""
        if self._collective is None:
            return table
        vector = self._vector(table.numel())
        vector.copy_(table.view(-1))
        vectors, _ = self._collective.gather(vector)
        whole = torch.zeros_like(table)
        for rank, other in enumerate(vectors):
            part = slice(rank, None, self._collective.world_size)
            whole[part] = other.view(table.shape)[part].to(whole.device)
        return whole

    def agreed(self, values: list[float]) -> list[float]:
        """Rank 0's, for all. No worker returns before rank 0 has called this."""
        if self._collective is None:
            return values
        vector = self._vector(len(values))
        vector.copy_(torch.tensor(values, dtype=torch.float64))
        self._collective.broadcast(vector)
        agreed: list[float] = vector.tolist()
        return agreed

    def _vector(self, numel: int) -> Tensor:
        assert self._collective is not None, "asked only where there are others"
        if numel not in self._vectors:
            self._vectors[numel] = self._collective.allocate(numel, torch.float64)
        return self._vectors[numel]

    @contextmanager
    def _buffers_of_rank_0(self) -> Iterator[None]:
        layout = self._arena.layout
        state = self._arena.state
        buffers = state[layout.buffers_start : layout.tail_start]
        if self._collective is None or not self._takes_buffers or not layout.buffers:
            yield
            return
        own = buffers.clone()
        common = buffers.clone()
        self._collective.broadcast(common)
        buffers.copy_(common)
        try:
            yield
        finally:
            buffers.copy_(own)


@contextmanager
def _eval_mode(module: nn.Module, seed: int) -> Iterator[None]:
    """Eval mode with a separate seed; mode and generators are restored."""
    modes = [(part, part.training) for part in module.modules()]
    on_gpu: Sequence[int] = sorted({p.device.index for p in module.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        module.eval()
        try:
            yield
        finally:
            for part, was_training in modes:
                part.training = was_training


FACT = "evaluation"  # the name under which it is in a checkpoint
DEFAULT_METRICS = ("valid_loss", "test_loss")
Entry = dict[str, Any]  # Any: JSON. One evaluation, as in result.json


class EvaluationHook(Protocol):
    """Evaluation as the training loop uses it."""

    def begins_at_end(self) -> bool:
        """Whether the run has already stopped early when the loop begins."""
        ...

    def after_step(self, finished: StepClock, outcome: Outcome) -> Outcome:
        """The same outcome, with `stop` set if the run stops early."""
        ...

    def conclude(self, report: Report) -> None:
        """The loop is over: complete the report, and put the best weights in place."""
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
    """Evaluations of a run so far, with its best weights and the decision to stop."""

    def __init__(self, plan: Plan, arena: Arena, clock: Clock) -> None:
        assert plan.evaluation is not None, "made only where there are evaluations"
        self._plan = plan
        self._settings = plan.evaluation
        self._arena = arena
        self._clock = clock
        self._seen: list[Entry] = []
        self._best: dict[str, Tensor] = {}
        self.reason = ""  # why the run stops early; empty: it does not
        self._has_begun = False
        self._before_s = 0.0
        self._spent_ns = 0
        self._began_ns = 0
        self._own_ns = 0  # of this process

    @property
    def count(self) -> int:
        return len(self._seen)

    def begin(self) -> None:
        """Training begins, or continues in another generation of workers."""
        if not self._has_begun:
            self._began_ns = self._clock.now_ns()
            self._spent_ns = 0
            self._has_begun = True
        self.reason = self._why_to_stop(self._seen)

    def is_due(self, at: int) -> bool:
        """Whether an evaluation is due after `at` steps of the run; none is due once the run was stopped."""
        if self.reason:
            return False
        last = self._seen[-1]["step"] if self._seen else 0
        return at > last and (at >= next_evaluation(self._plan, last) or at == self._plan.steps)

    def measure(self, at: int, validation: Validation) -> Entry:
        """Evaluate the current parameters; stores no result."""
        started_ns = self._clock.now_ns()
        seconds = self._training_s()
        measured = validation.metrics()
        metrics = {name: value if math.isfinite(value) else None for name, value in measured.items()}
        return {
            "step": at,
            "samples": at * self._plan.global_batch,
            "seconds": seconds,
            "took_s": (self._clock.now_ns() - started_ns) / 1e9,
            "metrics": metrics,
        }

    def take(self, entry: Entry, *, is_ending: bool = False) -> None:
        """Store an evaluation of the current parameters. `is_ending`: the run ends here anyway."""
        self._seen.append(entry)
        took_ns = round(entry["took_s"] * 1e9)
        self._spent_ns += took_ns
        self._own_ns += took_ns
        if self._settings.patience is not None and not evaluations_since_best(
            self._values(self._seen), lower_is_better=self._settings.lower_is_better
        ):
            self._best = self._arena.named_state()
        if not is_ending:
            self.reason = self._why_to_stop(self._seen)

    def row(self, entry: Entry, *, is_ending: bool = False) -> "EvaluatedRow":
        """Event of an evaluation that is not stored yet."""
        seen = [*self._seen, entry]
        reason = "" if is_ending else self._why_to_stop(seen)
        if not reason:
            return EvaluatedRow(_flat(entry), None)
        stop = {"step": entry["step"], "best_step": self._best_step(seen), "reason": reason}
        return EvaluatedRow(_flat(entry), stop)

    def conclude(self, report: Report, *, reports: bool = True) -> None:
        if "steps_s" in report:
            report["steps_s"] = float(str(report["steps_s"])) - self._own_ns / 1e9
        else:
            report["evaluating_s"] = self._own_ns / 1e9  # the workers of a server waited meanwhile
        if reports:
            report["evaluations"] = json.dumps(self._seen)
        if self.reason:
            report["stopped_by"] = self.reason
        if not self._best:
            return
        self._put_back()
        if reports:
            best = best_index(self._values(self._seen), lower_is_better=self._settings.lower_is_better)
            assert best is not None, "weights are kept only of what was better"
            report["best"] = json.dumps({k: self._seen[best][k] for k in ("step", "metrics")})

    def live(self) -> Snapshot:
        """References to the live state; copy them before the next change."""
        kept = {"seen": self._seen, "training_s": self._training_s(), "best": self._best}
        skeleton, tensors = split_tensors(kept, FACT, copy=False)
        return Snapshot(tensors, {FACT: skeleton})

    def restore(self, saved: Snapshot) -> None:
        """Continue from a checkpoint or from what another process has."""
        kept = join_tensors(saved.facts[FACT], saved.tensors)
        self._seen = kept["seen"]
        self._best = kept["best"]
        self._before_s = kept["training_s"]
        self._began_ns = self._clock.now_ns()
        self._spent_ns = 0
        self.reason = self._why_to_stop(self._seen)

    def _training_s(self) -> float:
        return self._before_s + (self._clock.now_ns() - self._began_ns - self._spent_ns) / 1e9

    def _values(self, seen: list[Entry]) -> list[float | None]:
        """The early-stopping metric of every evaluation."""
        if not seen:
            return []
        names = seen[-1]["metrics"]
        candidates = DEFAULT_METRICS if self._settings.metric is None else (self._settings.metric,)
        name = next((name for name in candidates if name in names), None)
        if name is None:
            raise TrainingError(
                f"early stopping needs {' or '.join(candidates)}, but the task has only {', '.join(names)}",
                f"set early_stop_metric to {next(iter(names), 'one of the task')}, for example",
            )
        return [entry["metrics"][name] for entry in seen]

    def _why_to_stop(self, seen: list[Entry]) -> str:
        """Empty: training continues."""
        if self._settings.patience is None or not seen or seen[-1]["step"] >= self._plan.steps:
            return ""
        values = self._values(seen)
        since = evaluations_since_best(values, lower_is_better=self._settings.lower_is_better)
        if since < self._settings.patience:
            return ""
        times = "1 evaluation" if since == 1 else f"{since} evaluations"
        best = best_index(values, lower_is_better=self._settings.lower_is_better)
        name = self._settings.metric or next(n for n in DEFAULT_METRICS if n in seen[-1]["metrics"])
        if best is None:
            return f"{EARLY_STOP}: {name} was not finite in {times}"
        than = f"on {values[best]:.6g} after step {self._best_step(seen)}"
        return f"{EARLY_STOP}: {name} did not improve {than} in {times}"

    def _best_step(self, seen: list[Entry]) -> int | None:
        best = best_index(self._values(seen), lower_is_better=self._settings.lower_is_better)
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
        report: Callable[[Report], None] | None,  # None: another worker reports
        steps: Callable[[], int] | None = None,  # committed steps of the run, if elastic
    ) -> None:
        self.record = record
        self._num_workers = plan.num_workers
        self._validation = validation
        self._log = log
        self._report = report
        self._steps = steps

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
        self.record.conclude(report, reports=self._report is not None)

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
        # All workers store the times of the worker that writes, and only after they are written.
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
        """Store the evaluation, and stop if it decides so."""
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
        self._server = server
        self._record = server.evaluations
        self._validation = validation
        self._log = log
        self._report = report

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
    """Best weights in a checkpoint, stored in addition to the newest; empty if its run keeps none."""
    kept = saved.facts.get(FACT)
    best: dict[str, Tensor] = {} if kept is None else join_tensors(kept, saved.tensors)["best"]
    return best


def _flat(entry: Entry) -> dict[str, Any]:  # Any: JSON
    """The evaluation as fields of an event."""
    return {**entry, "metrics": json.dumps(entry["metrics"])}

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
# summed by one worker, and the sums are added in the order of pieces: so the
# answer has the same bits whatever the number of workers. Whatever the task
# does, the model, its mode and the dice are afterwards as they were.

MAX_ROWS = 256  # of a piece: what one forward pass holds at once
PIECES = 64  # at least, where there are as many rows: enough to share out evenly


def pieces_of(num_rows: int) -> list[range]:
    size = min(MAX_ROWS, max(1, -(-num_rows // PIECES)))
    return [range(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


class Validation:
    def __init__(
        self, task: Task, arena: Arena, *, seed: int, collective: Collective | None, channel: Channel
    ) -> None:
        self._task, self._arena, self._seed = task, arena, seed
        self._collective = None if collective is None or collective.world_size == 1 else collective
        # Plain DDP lets every rank's buffers go their own way; ours does not, but a strategy of yours may.
        self._takes_buffers = channel is Channel.TORCH
        self._vectors: dict[int, Tensor] = {}  # to be shown to the others, by length

    def metrics(self) -> dict[str, float]:
        """The same at every worker. All call it at the same step."""
        with self._buffers_of_rank_0():
            if isinstance(self._task, Validating):
                return self._shared(self._task)
            with _eval_mode(self._arena.module, self._seed):
                found = {name: float(v) for name, v in self._task.metrics(self._arena.module).items()}
            # On a GPU two workers need not compute the same bits.
            return dict(zip(found, self.agreed(list(found.values())), strict=True))

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
        mine = range(rank, len(pieces), world)
        seen: dict[int, dict[str, float]] = {}
        for i in mine or range(1):  # whoever has no piece learns from the first which numbers there are
            with _eval_mode(self._arena.module, self._seed + i), torch.no_grad():
                seen[i] = task.validate(self._arena.module, pieces[i])
        names = list(next(iter(seen.values())))
        table = torch.zeros(len(pieces), len(names), dtype=torch.float64)
        for i in mine:
            table[i] = torch.tensor([float(seen[i][name]) for name in names], dtype=torch.float64)
        total = self._in_order(table)
        sums = {name: sum(column) for name, column in zip(names, total.T.tolist(), strict=True)}
        if isinstance(task, Scoring):
            return task.scores(sums, num_rows)
        return {name: value / num_rows for name, value in sums.items()}

    def _in_order(self, table: Tensor) -> Tensor:
        """What all workers have found, each row by one of them."""
        if self._collective is None:
            return table
        vector = self._vector(table.numel())
        vector.copy_(table.view(-1))
        everybody, _ = self._collective.gather(vector)
        whole = torch.zeros_like(table)
        for rank, other in enumerate(everybody):
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
        found: list[float] = vector.tolist()
        return found

    def _vector(self, numel: int) -> Tensor:
        assert self._collective is not None, "asked only where there are others"
        if numel not in self._vectors:
            self._vectors[numel] = self._collective.allocate(numel, torch.float64)
        return self._vectors[numel]

    @contextmanager
    def _buffers_of_rank_0(self) -> Iterator[None]:
        layout, state = self._arena.layout, self._arena.state
        buffers = state[layout.buffers_start : layout.tail_start]
        if self._collective is None or not self._takes_buffers or not layout.buffers:
            yield
            return
        own, common = buffers.clone(), buffers.clone()
        self._collective.broadcast(common)
        buffers.copy_(common)
        try:
            yield
        finally:
            buffers.copy_(own)


@contextmanager
def _eval_mode(module: nn.Module, seed: int) -> Iterator[None]:
    """In eval mode, with dice of its own; both are put back."""
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
        if self._settings.patience is not None and not evaluations_since_best(
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
            best = best_index(self._values(self._seen), lower_is_better=self._settings.lower_is_better)
            assert best is not None, "weights are kept only of what was better"
            report["best"] = json.dumps({k: self._seen[best][k] for k in ("step", "metrics")})

    def live(self) -> Snapshot:
        """To be copied before anything changes it."""
        kept = {"seen": self._seen, "training_s": self._training_s(), "best": self._best}
        skeleton, tensors = split_tensors(kept, FACT, copy=False)
        return Snapshot(tensors, {FACT: skeleton})

    def restore(self, saved: Snapshot) -> None:
        """Continue from a checkpoint or from what another process has."""
        kept = join_tensors(saved.facts[FACT], saved.tensors)
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
        wanted = DEFAULT_METRICS if self._settings.metric is None else (self._settings.metric,)
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
        since = evaluations_since_best(values, lower_is_better=self._settings.lower_is_better)
        if since < self._settings.patience:
            return ""
        times = "1 evaluation" if since == 1 else f"{since} evaluations"
        best = best_index(values, lower_is_better=self._settings.lower_is_better)
        name = self._settings.metric or next(n for n in DEFAULT_METRICS if n in seen[-1]["metrics"])
        if best is None:
            return f"{EARLY_STOP}: {name} was no number in {times}"
        than = f"than {values[best]:.6g} after step {self._best_step(seen)}"
        return f"{EARLY_STOP}: {name} was no better {than} in {times}"

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
    best: dict[str, Tensor] = {} if kept is None else join_tensors(kept, saved.tensors)["best"]
    return best


def _flat(entry: Entry) -> dict[str, Any]:  # Any: JSON
    """As the fields of an event."""
    return {**entry, "metrics": json.dumps(entry["metrics"])}

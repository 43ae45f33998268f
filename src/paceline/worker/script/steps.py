"""Step of a training script: its calls move the training loop from one yield to the next.

Between a Computation and the StepEnd that follows it the script is *in a step*: it takes the batches of a
share, computes, and calls `optimizer.step()`, which ends the step. A step that had no effect (abandoned)
leaves the parameters unchanged, and the next batch is of another share. With optimizers that step in turn,
the next batch ends the step.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.core.errors import script_error
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Outcome
from paceline.sync.assignment import WorkUnit
from paceline.tasks.port import Batch
from paceline.worker.gradient import Times
from paceline.worker.loop import Computation, StepAbandonedError, StepEnd, Steps
from paceline.worker.script.checks import StepChecks
from paceline.worker.script.kept import KeptState
from paceline.worker.script.optimizer import ScalerParts, ScriptOptimizer
from paceline.worker.script.port import OpenLoop, ScriptHost
from paceline.worker.script.prepared import Prepared, parameters_of
from paceline.worker.script.suited import (
    refuse_changed_gradients,
    refuse_changed_parameters,
    refuse_changed_state,
    refuse_rates,
)


class ScriptSteps:
    def __init__(self, host: ScriptHost) -> None:
        self.host = host
        self.kept = KeptState()
        self.commit_calls: list[Callable[[int], object]] = []  # run.on_commit
        self.committed = False  # whether the last optimizer.step() had an effect
        self.is_over = False  # the run has no more work for this worker
        self.is_stopped = False  # by an agreement of all workers
        self._is_saved = False  # the state at the stop
        self._is_applied = False  # the last optimizer.step() has made its update, or the server has
        self._prepared = Prepared()
        self._owns: list[ScriptOptimizer] = []  # one for each turn
        self._loop: OpenLoop | None = None
        self._checks: StepChecks | None = None
        self._scaler: ScalerParts | None = None
        self._computation: Computation | None = None  # the step that the script is in
        self._share = WorkUnit(0, 0)  # of the present step, or of the last one
        self._finished = WorkUnit(0, 0)  # of the last optimizer.step(); the next step may have begun
        self._stepped: set[int] = set()  # the optimizers that stepped in the present, or last, step
        self._batches_left: Iterator[Batch] | None = None
        self._taken = 0  # micro-batches of this step
        self._drawn = 0  # samples of this step that run.share gave out
        self._losses = 0
        self._may_abandon = False  # the script is in a block of run.turn
        self._weights: list[float] = []  # that the script gave to the losses of this step
        self._skipped = 0  # micro-batches of this step without a gradient
        self._loss = 0.0
        self._started_ns = 0
        self._data_end_ns = 0
        self._forward_end_ns = 0
        self._backward_end_ns = 0
        self._steps_done = 0  # by this process
        self.changes_gradients = False  # the script changed gradients between backward and step
        self.sets_rates = False  # the script set the learning rate without a scheduler

    def _open(self) -> OpenLoop:
        """The loop, before the first step."""
        raise NotImplementedError

    def _before_step(self) -> None:
        """The next step is about to begin."""

    def begin(self) -> bool:
        """Be in a step: the present one, or the next; False when the run has no more work."""
        if self.is_stepping:
            return True
        if self._computation is not None:  # the next batch ends a step whose optimizers step in turn
            self._end_step()
        if self._scaler is not None:
            self._scaler.settle()  # before the state is saved, and before the next loss is scaled
        if self.is_over:
            return False
        if self.is_stopped:
            self._save_at_stop()
            return False
        loop = self._loop or self._open()
        self._before_step()
        self._check_parameters()
        self._watch(is_on=True)
        try:
            event = next(loop.steps)
            while isinstance(event, StepEnd):  # the others made a step
                self._report_commit(event.outcome)
                event = next(loop.steps)
        except StopIteration:
            self.is_over = True
            return False
        self._begin_share(event)
        return True

    def _save_at_stop(self) -> None:
        """What the script does after a stop is not part of the run, but the other workers are still there."""
        if not self._is_saved:
            self._is_saved = True
            event = next(self._opened.steps)
            assert event == StepEnd(None), "a run that stops has no next step"

    def _finish(self) -> None:
        """The script has ended, and all of its steps were made."""
        if self.is_stopped:
            self._save_at_stop()
        for event in self._opened.steps:
            raise AssertionError(f"the run goes on after its last step: {event}")
        self.is_over = True

    def _begin_share(self, event: Computation) -> None:
        loop = self._opened
        self._computation = event
        self._share = event.begun.share
        for own in self._owns:
            own.begin_share()
        self._started_ns = loop.clock.now_ns()
        event.replica.step = self._share.step
        self._stepped = set()
        self._batches_left = None
        self._taken = 0
        self._drawn = 0
        self._losses = 0
        self._weights = []
        self._skipped = 0
        self._loss = 0.0
        self._opened_checks.forget_gradients()
        event.replica.arena.expect_backward()

    def take_batch(self) -> Batch:
        """The next micro-batch of the step that the script is in."""
        loop = self._opened
        if self._taken == self._prepared.accumulate:
            raise script_error(
                "E135",
                f"{self._taken + 1} batches were taken before optimizer.step()",
                f"for gradient accumulation:  run.prepare(…, accumulate={self._taken + 1}); for a batch "
                "without a "
                "gradient:  run.skip()",
            )
        if self._batches_left is None:
            self._batches_left = loop.source.batches(self._share)
        batch = next(self._batches_left)
        if self._taken == 0:
            loop.source.seed_step(self._share)
        self._taken += 1
        self._data_end_ns = loop.clock.now_ns()
        return batch

    def backward(self, loss: Tensor, own_weight: float | None) -> None:
        """Backward of a loss of the step that the script is in; `own_weight`: in the mean of all losses."""
        computation = self._computation
        if computation is None:
            raise script_error(
                "E135",
                "run.backward was called without a batch",
                "take a batch of the prepared loader first, and call optimizer.step() after it",
            )
        if self._may_abandon:
            computation.check()
        self._opened_checks.before_backward(loss)
        self._forward_end_ns = self._opened.clock.now_ns()
        weight = computation.replica.loss_weight
        if own_weight is not None:
            self._weights.append(self._checked(own_weight))
            weight *= own_weight
        weighted = loss if weight == 1.0 else loss * weight
        weighted.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        value = float(loss.detach()) * (1.0 if own_weight is None else own_weight)
        self._loss += value if self._scaler is None else self._scaler.unscaled(value)
        self._losses += 1
        self._backward_end_ns = self._opened.clock.now_ns()
        self._opened_checks.after_backward()

    def _checked(self, weight: float) -> float:
        if not 0 <= weight < math.inf:
            raise script_error(
                "E120",
                f"run.backward got the weight {weight}",
                "a weight is 0 or more, such as the number of tokens of the batch",
            )
        if self._opened.in_turn is not None:
            raise script_error(
                "E121",
                "run.backward got a weight, and optimizers step in turn",
                "leave the weight out, or prepare the optimizers as a list if they step together",
            )
        if not self._has_equal_shares:
            raise script_error(
                "E129",
                f"a loss has a weight, and the shares of {self._opened.plan.mode} are not of equal size",
                "use another mode than adaptive, and as many samples for every worker",
            )
        return weight

    @property
    def needs_weights(self) -> bool:
        """Whether a step has several workers, so that their losses may count unequally."""
        return self._has_equal_shares and self._opened.plan.num_workers > 1

    @property
    def _has_equal_shares(self) -> bool:
        """Whether losses may have weights: the gradients of shares of unequal size are weighted already."""
        plan = self._opened.plan
        return len(set(plan.batch_sizes)) == 1 and plan.mode != "adaptive"

    @contextmanager
    def turn(self) -> Iterator[None]:
        """End the block, and the step without effect, as soon as it is known to come too late."""
        hooks = [module.register_forward_pre_hook(self._check_turn) for module in self._prepared.modules]
        self._may_abandon = True
        try:
            yield
        except StepAbandonedError:
            assert self._computation is not None, "a check belongs to a step"
            self._computation.replica.arena.expect_backward()
            self._end_step()
        finally:
            self._may_abandon = False
            for hook in hooks:
                hook.remove()

    def _check_turn(self, *_: object) -> None:
        if self._computation is not None:
            self._computation.check()

    def skip(self) -> None:
        """The present micro-batch counts as a gradient of zero; the last one ends the step."""
        if self._computation is None or self._stepped:
            hint = "call it instead of run.backward and optimizer.step()"
            raise script_error("E135", "run.skip was called without a batch", hint)
        self._skipped += 1
        if self._taken == self._prepared.accumulate or self._prepared.loader is None:
            self._end_step()

    def _optimizer_step(self, turn: int, optimizer: torch.optim.Optimizer, closure: object = None) -> None:
        """What `optimizer.step()` of the script does."""
        if closure is not None:
            raise script_error(
                "E123", "optimizer.step got a closure", "compute the loss before, and call step()"
            )
        others = {id(each) for each in self._prepared.turns[turn]}
        if self._stepped & others and id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))  # the first optimizer of the turn has made the update of all
            return
        if self._computation is None or id(optimizer) in self._stepped:
            raise script_error(
                "E135",
                "optimizer.step() was called without a batch",
                "take one batch of the prepared loader for each optimizer.step()",
            )
        self._check_step(turn)
        self._stepped.add(id(optimizer))
        in_turn = self._opened.in_turn
        if in_turn is None:
            self._end_step()
            return
        own = self._owns[turn]
        updates = own.updates
        outcome = in_turn.end_turn(turn)
        self._finished = self._share
        self._took_effect(outcome, is_updated=own.updates > updates)

    def _end_step(self) -> None:
        computation = self._computation
        assert computation is not None, "the script is in a step"
        loop = self._opened
        arena = computation.replica.arena
        if loop.in_turn is None:
            arena.collect_gradients(absent_are_zero=self._skipped > 0, loss_weight=self._total_weight)
        loop.source.times_ns = Times(
            self._started_ns,
            self._data_end_ns,
            max(self._forward_end_ns, self._data_end_ns),
            max(self._backward_end_ns, self._data_end_ns),
        )
        updates = self._owns[0].updates
        event = self._sent(loop.steps, computation)
        for own in self._owns:
            own.end_share()
        self._computation = None
        self._finished = self._share
        self._steps_done += 1
        if loop.in_turn is None:
            self._took_effect(event.outcome, is_updated=self._owns[0].updates > updates)
        self.is_stopped = event.outcome is not None and event.outcome.stop
        self._report_commit(event.outcome)
        arena.expect_backward()  # the vector may be another worker's by now: nothing may write to it
        checks = self._opened_checks
        checks.after_step()
        if checks.are_on and not self.kept.is_empty:
            checks.kept = self.kept.fingerprint()

    def _took_effect(self, outcome: Outcome | None, *, is_updated: bool) -> None:
        """Whether the step counts, and whether its update is made: elsewhere, or by this worker."""
        is_done = outcome is not None and outcome.skipped is None
        if self._is_served():
            self._is_applied = self.committed = is_done
            return
        self._is_applied = is_done and is_updated
        # Elastic: a share is lost with its generation until all shares of the step, or round, are done.
        is_agreed = self._opened.plan.elastic is None or (outcome is not None and outcome.synced)
        self.committed = is_done and is_agreed

    def _report_commit(self, outcome: Outcome | None) -> None:
        """Tell the script about a step that no loss of a worker can undo."""
        if outcome is None or outcome.skipped is not None:
            return
        if self._opened.plan.elastic is None or self._is_served() or outcome.synced:
            plan = self._opened.plan
            done = self._share.step + 1
            if outcome.shares_done is not None and plan.elastic is not None:
                done = outcome.shares_done // plan.num_workers
            if self.kept.stream is not None:
                self.kept.stream.commit(done)
            for call in self.commit_calls:
                call(done)

    def _sent(self, steps: Steps[object], computation: Computation) -> StepEnd:
        try:
            computation.check()
        except StepAbandonedError as error:
            event = steps.throw(error)
        else:
            event = steps.send(self._loss / (self._total_weight or 1.0))
        assert isinstance(event, StepEnd), "a computation is followed by the end of its step"
        return event

    @property
    def _total_weight(self) -> float:
        """Of the losses of this step; 1 if the script gives them none."""
        return sum(self._weights) if self._weights else 1.0

    def _check_step(self, turn: int) -> None:
        if self._losses == 0 and self._skipped == 0:
            raise script_error(
                "E136",
                "optimizer.step() was called, but run.backward was not",
                "write  run.backward(loss)  instead of  loss.backward()",
            )
        if any(hasattr(optimizer, "found_inf") for optimizer in self._prepared.turns[turn]):
            raise script_error(
                "E122",
                "a GradScaler that was not prepared makes the step: it would scale each worker's gradient "
                "by its own "
                "factor",
                "prepare it:  run.prepare(model, optimizer, loader, scaler)",
            )
        if self._prepared.loader is not None and self._taken == 0:
            raise script_error(
                "E135",
                "optimizer.step() was called, but no batch of the prepared loader was taken",
                "iterate over the loader that it returned:  model, optimizer, loader = run.prepare(…)",
            )
        if self._prepared.loader is not None and self._taken < self._prepared.accumulate:
            raise script_error(
                "E135",
                f"optimizer.step() was called after {self._taken} of {self._prepared.accumulate} batches",
                f"call it after every {self._prepared.accumulate} batches, as run.prepare(accumulate=…) says",
            )
        if self._owns[turn].rates_were_set():
            self.sets_rates = True
            if self._is_served():
                raise refuse_rates(self._opened.plan.mode)
        trained = [p for optimizer in self._prepared.turns[turn] for p in parameters_of(optimizer)]
        changed = self._opened_checks.changed_gradients(trained)
        if changed:
            self.changes_gradients = True
            if self._opened.plan.num_workers > 1:
                raise refuse_changed_gradients(changed)

    def _check_parameters(self) -> None:
        """What the script may not change itself where other workers make some of the steps."""
        checks = self._opened_checks
        plan = self._opened.plan
        if not self._is_served():  # else the server writes newer parameters at any time: only the probe looks
            checks.before_step()
        if checks.changes_parameters and plan.elastic is not None:
            raise refuse_changed_parameters(plan.mode)
        if checks.kept and checks.kept != self.kept.fingerprint():
            checks.changes_state = True
            if plan.elastic is not None:
                raise refuse_changed_state()
        checks.kept = ""

    def _is_served(self) -> bool:
        mode = MODES.get(self._opened.plan.mode)
        return mode is not None and mode.channel is Channel.STORE

    def _watch(self, *, is_on: bool) -> None:
        if self._checks is not None:
            self._checks.watch(is_on=is_on)

    @property
    def _opened_checks(self) -> StepChecks:
        assert self._checks is not None, "a step was begun"
        return self._checks

    @property
    def _opened(self) -> OpenLoop:
        assert self._loop is not None, "a step was begun"
        return self._loop

    @property
    def plan(self) -> Plan | None:
        """None before the first batch of a script without a launcher."""
        return self.host.plan if self._loop is None else self._loop.plan

    def epoch_of(self, share: WorkUnit) -> int:
        """The epoch of the first sample of a step: an epoch ends with the step that has its last sample."""
        if self.plan is None or self._prepared.loader is None:
            return 0
        return share.step * self.plan.global_batch // self._prepared.epoch_samples

    @property
    def is_stepping(self) -> bool:
        """Whether the script is in a step. An optimizer that steps in turn may follow after another's."""
        return self._computation is not None and not self._stepped

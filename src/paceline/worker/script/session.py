"""Session of a training script: its calls move the step loop from one yield to the next.

State: before the first batch the session only records what the script prepares. `_open_loop` then asks the
host for the loop. Between a Computation and the StepEnd that follows it the script is *in a step*: it takes
the batches of a share, computes, and calls `optimizer.step()`, which ends the step. A step that had no effect
(abandoned) leaves the parameters unchanged, and the next batch is of another share.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from paceline.core.clock import Clock
from paceline.core.errors import PacelineError, script_error
from paceline.events import custom_metrics
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Plan
from paceline.sync.assignment import WorkUnit
from paceline.tasks.port import Batch
from paceline.tasks.script import ScriptParts
from paceline.worker.gradient import Times
from paceline.worker.loop import Computation, StepAbandonedError, StepEnd, Steps
from paceline.worker.script.data import PreparedLoader, ScriptSource, used_samples
from paceline.worker.script.facts import EPOCH_SCHEDULE, STEP_SCHEDULE, ScriptFacts, split
from paceline.worker.script.optimizer import Clip, ScriptOptimizer, replace_step
from paceline.worker.script.prepared import Prepared

Parameters: TypeAlias = "Iterable[nn.Parameter] | nn.Parameter"
CHECKED_STEPS = 3  # at the beginning, in which gradients are watched for changes by the script


class ScriptDoneError(BaseException):
    """Ends a script that has served its purpose. Not an Exception: no handler of the script is to see it."""


class OpenLoop(NamedTuple):
    plan: Plan
    steps: Steps[object]
    source: ScriptSource
    clock: Clock


class ScriptHost(Protocol):
    """What a script runs in: a plain process, a worker of a run, or a probe."""

    seed: int
    device: torch.device
    name: str  # of the participant, for messages
    plan: Plan | None  # None: it is built from the first batch on
    schedule: str  # facts.schedule; empty: not known yet, or there is no scheduler
    limits: ScriptFacts | None  # whose clipping is that of an update for which no gradient was computed here

    @property
    def rank(self) -> int:
        """0: the main worker. It may change in an elastic run."""
        ...

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        """The step loop over what the script prepared. A server serves here, and does not return."""
        ...

    def run_dir(self) -> Path: ...

    def request_stop(self, reason: str) -> None:
        """All workers stop after the same step."""
        ...


class ScriptSession:
    def __init__(self, host: ScriptHost) -> None:
        self.host = host
        self.committed = False  # whether the last optimizer.step() had an effect
        self._is_applied = False  # the last optimizer.step() has made its update, or the server has
        self.is_over = False  # the run has no more work for this worker
        self.was_stopped = False  # the run ended early, after the last optimizer.step()
        self.loop_epoch: int | None = None  # that run.epochs gave out last
        self._prepared = Prepared()
        self._own: ScriptOptimizer | None = None
        self._length: dict[str, int] = {}
        self._loop: OpenLoop | None = None
        self._computation: Computation | None = None  # the step that the script is in
        self._share = WorkUnit(0, 0)  # of the present step, or of the last one
        self._finished = WorkUnit(0, 0)  # of the last optimizer.step(); the next step may have begun
        self._batches_left: Iterator[Batch] | None = None
        self._taken = 0  # micro-batches of this step
        self._drawn = 0  # samples of this step that run.share gave out
        self._losses = 0
        self._loss = 0.0
        self._started_ns = 0
        self._data_end_ns = 0
        self._forward_end_ns = 0
        self._backward_end_ns = 0
        self._steps_done = 0  # by this process
        self._schedule = host.schedule
        self._has_scheduled = False  # the script has called scheduler.step()
        self._watched: dict[nn.Parameter, int] = {}  # version of each gradient after backward
        self._clipped: list[Clip] = []
        self.changes_gradients = False  # the script changed gradients between backward and step
        self.sets_rates = False  # the script set the learning rate without a scheduler

    def prepare(self, objects: Iterable[object], *, accumulate: int, batch: str) -> tuple[object, ...]:
        if self._loop is not None:
            message = "run.prepare was called after the first batch"
            raise script_error("E120", message, "prepare everything before the loop")
        return self._prepared.add(
            objects, accumulate=accumulate, batch=batch, wrap=lambda loader: PreparedLoader(self, loader)
        )

    def facts_so_far(self) -> ScriptFacts:
        """What is known after a step: also how the schedule and the limits are used."""
        prepared = self._prepared
        facts = prepared.facts(self._length, "" if prepared.scheduler is None else self._seen_schedule())
        if prepared.loader is None:
            facts = replace(facts, batch_size=max(1, self._drawn // prepared.accumulate))
        everything = _trainable(prepared.parameters)
        for clip in self._clipped:
            clips_some = facts.clips_some or _trainable(clip.parameters) != everything
            facts = replace(facts, clips_some=clips_some)
            if clip.by_norm:
                facts = replace(facts, clip_norm=clip.limit)
            else:
                facts = replace(facts, clip_value=clip.limit)
        return facts

    # The loop

    def _open_loop(self) -> OpenLoop:
        prepared = self._prepared
        module = prepared.close()
        own = ScriptOptimizer(prepared.optimizer, prepared.scheduler, self._count_at)
        if self.host.limits is not None:
            own.usual_clips = _limits(self.host.limits, prepared.parameters)
        self._own = own
        replace_step(prepared.optimizer, self._optimizer_step)
        # So that a GradScaler calls every step, and says so (`found_inf`), instead of leaving some out.
        prepared.optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # torch looks for it
        if prepared.scheduler is not None:
            replace_step(prepared.scheduler, self._scheduler_step)
        parts = ScriptParts(module, own.started, prepared.samples(self.host.seed))
        self._loop = self.host.open_loop(parts, prepared.facts(self._length, self._schedule))
        return self._loop

    def begin(self) -> bool:
        """Be in a step: the present one, or the next; False when the run has no more work."""
        if self._computation is not None:
            return True
        if self.is_over:
            return False
        loop = self._loop or self._open_loop()
        if self._steps_done == 1 and not self._schedule and self._prepared.scheduler is not None:
            self._schedule = self._seen_schedule()
        try:
            event = next(loop.steps)
        except StopIteration:
            self.is_over = True
            return False
        assert isinstance(event, Computation), "a step ends before the next one begins"
        self._computation = event
        self._share = event.begun.share
        assert self._own is not None, "the loop is open"
        self._own.begin_share()
        self._started_ns = loop.clock.now_ns()
        event.replica.step = self._share.step
        self._batches_left = None
        self._taken = 0
        self._drawn = 0
        self._losses = 0
        self._loss = 0.0
        self._watched = {}
        event.replica.arena.expect_backward()
        return True

    def take_batch(self) -> Batch:
        """The next micro-batch of the step that the script is in."""
        loop = self._loop
        assert loop is not None, "a step was begun"
        if self._taken == self._prepared.accumulate:
            raise script_error(
                "E135",
                f"{self._taken + 1} batches were taken before optimizer.step()",
                f"for gradient accumulation:  run.prepare(…, accumulate={self._taken + 1})",
            )
        if self._batches_left is None:
            self._batches_left = loop.source.batches(self._share)
        batch = next(self._batches_left)
        if self._taken == 0:
            loop.source.seed_step(self._share)
        self._taken += 1
        self._data_end_ns = loop.clock.now_ns()
        return batch

    def backward(self, loss: Tensor) -> None:
        """Backward of a loss of the step that the script is in."""
        computation = self._computation
        if computation is None:
            raise script_error(
                "E135",
                "run.backward was called without a batch",
                "take a batch of the prepared loader first, and call optimizer.step() after it",
            )
        self._forward_end_ns = self._opened.clock.now_ns()
        weight = computation.replica.loss_weight
        weighted = loss if weight == 1.0 else loss * weight
        weighted.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._loss += float(loss.detach())
        self._losses += 1
        self._backward_end_ns = self._opened.clock.now_ns()
        if self._steps_done < CHECKED_STEPS:
            self._watched = {
                p: p.grad._version
                for p in computation.replica.arena.module.parameters()
                if p.grad is not None
            }

    def _optimizer_step(self, closure: object = None) -> None:
        """What `optimizer.step()` of the script does."""
        if closure is not None:
            raise script_error(
                "E123", "optimizer.step got a closure", "compute the loss before, and call step()"
            )
        computation = self._computation
        loop = self._loop
        if computation is None or loop is None or self._own is None:
            raise script_error(
                "E135",
                "optimizer.step() was called without a batch",
                "take one batch of the prepared loader for each optimizer.step()",
            )
        self._check_step()
        arena = computation.replica.arena
        arena.collect_gradients()
        loop.source.times_ns = Times(
            self._started_ns, self._data_end_ns, self._forward_end_ns, self._backward_end_ns
        )
        updates = self._own.updates
        event = self._sent(loop.steps, computation)
        self._own.end_share()
        self._computation = None
        self._finished = self._share
        self._steps_done += 1
        self._took_effect(event, is_updated=self._own.updates > updates)
        arena.expect_backward()  # the vector may be another worker's by now: nothing may write to it

    def _took_effect(self, event: StepEnd, *, is_updated: bool) -> None:
        """Whether the step counts, and whether its update is made: elsewhere, or by this worker."""
        is_done = event.outcome is not None and event.outcome.skipped is None
        self.was_stopped = event.outcome is not None and event.outcome.stop
        if self._is_served():
            self._is_applied = self.committed = is_done
            return
        self._is_applied = is_done and is_updated
        # Elastic: a share is lost with its generation until all shares of the step, or round, are done.
        is_agreed = self._opened.plan.elastic is None or (event.outcome is not None and event.outcome.synced)
        self.committed = is_done and is_agreed

    def _sent(self, steps: Steps[object], computation: Computation) -> StepEnd:
        try:
            computation.check()
        except StepAbandonedError as error:
            event = steps.throw(error)
        else:
            event = steps.send(self._loss)
        assert isinstance(event, StepEnd), "a computation is followed by the end of its step"
        return event

    def _check_step(self) -> None:
        if self._losses == 0:
            raise script_error(
                "E136",
                "optimizer.step() was called, but run.backward was not",
                "write  run.backward(loss)  instead of  loss.backward()",
            )
        if hasattr(self._prepared.optimizer, "found_inf"):
            raise script_error(
                "E122",
                "a GradScaler makes the step: it would scale each worker's gradient by its own factor",
                "use bf16, and leave the GradScaler out, or create it with enabled=False",
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
        if self._own is not None and self._own.rates_were_set():
            self.sets_rates = True
            if self._is_served():
                raise refuse_rates(self._opened.plan.mode)
        changed = [p for p, version in self._watched.items() if p.grad is None or p.grad._version != version]
        if not changed:
            return
        self.changes_gradients = True
        assert self._loop is not None, "the script is in a step"
        if self._loop.plan.num_workers > 1:
            raise refuse_changed_gradients(len(changed))

    def _is_served(self) -> bool:
        mode = MODES.get(self._opened.plan.mode)
        return mode is not None and mode.channel is Channel.STORE

    def _scheduler_step(self, *_: object, **__: object) -> None:
        """What `scheduler.step()` of the script does: the rate follows the steps of the run."""
        if self._loop is None or self._own is None or not self._is_applied:
            return
        self._has_scheduled = True
        if self._schedule == EPOCH_SCHEDULE:
            self._own.advance_to(self.epoch_of(self._finished) + 1)
        elif self._schedule == STEP_SCHEDULE:
            self._own.advance_to(self._finished.step + 1)
        else:
            self._own.advance_to(1)  # after the very first step, or the first epoch

    def _seen_schedule(self) -> str:
        """Asked when the second step begins."""
        return STEP_SCHEDULE if self._has_scheduled else EPOCH_SCHEDULE

    def _count_at(self, step: int) -> int:
        return self.epoch_of(WorkUnit(0, step)) if self._schedule == EPOCH_SCHEDULE else step

    # Where the run stands

    def epochs(self, count: int) -> Iterator[int]:
        self._length = {"epochs": count}
        if not self.begin():
            return
        for epoch in range(self.epoch_of(self._share), count):
            self.loop_epoch = epoch
            yield epoch

    def steps(self, count: int) -> Iterator[int]:
        self._length = {"steps": count}
        while True:
            if self._computation is not None and self._taken + self._losses:
                raise script_error(
                    "E135",
                    f"step {self._share.step} ended without optimizer.step()",
                    "call optimizer.step() once in every step",
                )
            if not self.begin():
                return
            if self._prepared.loader is None:
                self._opened.source.seed_step(self._share)
                self._data_end_ns = self._opened.clock.now_ns()
            yield self._share.step

    def share(self, count: int) -> int:
        """This worker's part of `count` samples."""
        if not self.begin():
            return 0
        part = split(count, self._opened.plan.num_workers)[self._share.rank]
        self._drawn += part
        self._data_end_ns = self._opened.clock.now_ns()
        return part

    @property
    def _opened(self) -> OpenLoop:
        assert self._loop is not None, "a step was begun"
        return self._loop

    @property
    def plan(self) -> Plan | None:
        """None before the first batch of a script without a launcher."""
        return self.host.plan if self._loop is None else self._loop.plan

    @property
    def step(self) -> int:
        return self._share.step

    @property
    def epoch(self) -> int:
        """That run.epochs gave out; else that of the present step, which may be the next one's first."""
        return self.epoch_of(self._share) if self.loop_epoch is None else self.loop_epoch

    @property
    def present_share(self) -> WorkUnit:
        return self._share

    def epoch_of(self, share: WorkUnit) -> int:
        """The epoch of the first sample of a step: an epoch ends with the step that has its last sample."""
        if self.plan is None or self._prepared.loader is None:
            return 0
        return share.step * self.plan.global_batch // used_samples(self._prepared.loader)

    @property
    def is_stepping(self) -> bool:
        return self._computation is not None

    # Clipping and records

    def clip(
        self, parameters: Iterable[nn.Parameter] | nn.Parameter, limit: float, *, by_norm: bool
    ) -> Tensor:
        """Limit the agreed gradient of this step; the norm is known after optimizer.step()."""
        if self._computation is None or self._own is None:
            raise script_error(
                "E135",
                "gradients were clipped without a batch",
                "call run.clip_grad_norm_ between run.backward and optimizer.step()",
            )
        chosen = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
        clip = Clip(chosen, limit, by_norm, torch.zeros(()))
        self._own.clips.append(clip)
        self._clipped = [clip] if self._steps_done == 0 else self._clipped
        return clip.norm

    def log(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            custom_metrics.metric(name, value)

    def close(self, error: BaseException | None) -> None:
        """The script has ended; an error if the run has work left for it."""
        if self._loop is None:
            if error is None:
                raise script_error(
                    "E120",
                    "the script ended without a batch of a prepared loader",
                    "call  run = paceline.join()  and  run.prepare(…)  before the training loop",
                )
            return
        if self.is_over or error is not None:
            self._loop.steps.close()
            return
        if self._computation is None and not self.begin():
            return  # the step loop had only its end left
        self._loop.steps.close()
        raise script_error(
            "E133",
            f"{self.host.name} left its loop at step {self._share.step}, and the run has "
            f"{self._loop.plan.steps} steps",
            "let the loop end by itself, or call run.stop() to end it in all workers",
        )


def _limits(facts: ScriptFacts, parameters: tuple[nn.Parameter, ...]) -> list[Clip]:
    """The limits of every update, for all parameters."""
    limits = [(facts.clip_norm, True), (facts.clip_value, False)]
    return [Clip(parameters, limit, by_norm, torch.zeros(())) for limit, by_norm in limits if limit]


def _trainable(parameters: Iterable[nn.Parameter]) -> set[int]:
    """Identities of those that have a gradient; frozen ones are in model.parameters(), too."""
    return {id(parameter) for parameter in parameters if parameter.requires_grad}


def refuse_rates(mode: str) -> PacelineError:
    return script_error(
        "E134",
        f"the script sets the learning rate by hand, and the server of {mode} has its own",
        "use a scheduler of torch and prepare it: LambdaLR(optimizer, fn); or use --mode ssgd",
    )


def refuse_changed_gradients(count: int) -> PacelineError:
    return script_error(
        "E122",
        f"the gradients of {count} parameters were changed after backward (clip_grad_norm_?): that "
        "would change each worker's own",
        "use run.clip_grad_norm_ or run.clip_grad_value_, which act on the agreed gradient",
    )

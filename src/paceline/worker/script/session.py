"""Session of a training script: its calls move the step loop from one yield to the next.

Before the first batch the session only records what the script prepares. `_open` then asks the host for the
loop, and the steps follow (steps.py).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from paceline.core.errors import script_error
from paceline.events import custom_metrics
from paceline.sync.assignment import WorkUnit
from paceline.tasks.port import Batch
from paceline.tasks.script import ScriptParts, Turn
from paceline.worker.script.checks import PREPARED, StepChecks
from paceline.worker.script.data import PreparedLoader
from paceline.worker.script.facts import EPOCH_SCHEDULE, STEP_SCHEDULE, ScriptFacts, split
from paceline.worker.script.kept import Stateful
from paceline.worker.script.meeting import Meeting, meets
from paceline.worker.script.optimizer import Clip, ScalerParts, ScriptOptimizer, replace_step
from paceline.worker.script.port import OpenLoop, ScriptHost
from paceline.worker.script.prepared import parameters_of
from paceline.worker.script.steps import ScriptSteps
from paceline.worker.script.stream import StreamSamples
from paceline.worker.script.suited import require_suited

Parameters: TypeAlias = "Iterable[nn.Parameter] | nn.Parameter"


class ScriptSession(ScriptSteps):
    def __init__(self, host: ScriptHost) -> None:
        super().__init__(host)
        self.logged: dict[str, float] = {}  # by run.log: the last number of each name
        self.loop_epoch: int | None = None  # that run.epochs gave out last
        self._length: dict[str, int] = {}
        self._meeting: Meeting | None = None
        self._has_met = False  # run.mean, run.gather or run.split was called
        self._schedule = host.schedule
        self._has_scheduled = False  # the script has called scheduler.step()
        self._clipped: list[Clip] = []

    def prepare(
        self,
        objects: Iterable[object],
        *,
        accumulate: int,
        batch: str,
        after_update: Callable[[], object] | None,
    ) -> tuple[object, ...]:
        self._require_closed("run.prepare")
        return self._prepared.add(
            objects,
            accumulate=accumulate,
            batch=batch,
            wrap=lambda loader: PreparedLoader(self, loader),
            after_update=after_update,
        )

    def keep(self, name: str, kept: Stateful) -> None:
        self._require_closed("run.keep")
        self.kept.keep(name, kept)

    def _require_closed(self, call: str) -> None:
        if self._loop is not None:
            message = f"{call} was called after the first batch"
            raise script_error("E120", message, "prepare everything before the loop")

    def facts_so_far(self) -> ScriptFacts:
        """What is known after a step: also how the schedule and the limits are used."""
        prepared = self._prepared
        facts = prepared.facts(self._length, self._seen_schedule() if self._has_counted_schedule else "")
        facts = replace(facts, keeps_state=not self.kept.is_empty, meets=self._has_met)
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

    @property
    def habits(self) -> dict[str, bool]:
        """What the script does in its body that some modes cannot follow."""
        checks = self._opened_checks
        return {
            "changes_gradients": self.changes_gradients,
            "changes_parameters": checks.changes_parameters,
            "changes_state": checks.changes_state,
            "sets_rates": self.sets_rates,
        }

    # The loop

    def _open(self) -> OpenLoop:
        prepared = self._prepared
        module = prepared.close()
        self._checks = StepChecks(module.parameters())
        every = self._optimizer_of(prepared.optimizers)
        turns = [every] if len(prepared.turns) == 1 else [self._optimizer_of(turn) for turn in prepared.turns]
        self._owns = turns
        if self.host.limits is not None:
            every.usual_clips = _limits(self.host.limits, prepared.parameters)
        self._replace_calls()
        facts = replace(prepared.facts(self._length, self._schedule), keeps_state=not self.kept.is_empty)
        if self.host.plan is not None:
            require_suited(facts, self.host.plan)
        samples = prepared.samples(self.host.seed)
        if isinstance(samples, StreamSamples):
            self.kept.stream = samples
        parts = ScriptParts(
            module,
            every.started,
            samples,
            self.kept,
            tuple(
                Turn(prepared.modules_of(optimizers), own.started)
                for optimizers, own in zip(prepared.turns, turns, strict=True)
            ),
        )
        loop = self._loop = self.host.open_loop(parts, facts)
        self._meeting = Meeting(loop.plan, max(0, self.host.rank), loop.collective)
        return loop

    def _optimizer_of(self, optimizers: Iterable[torch.optim.Optimizer]) -> ScriptOptimizer:
        prepared = self._prepared
        in_turn = len(prepared.turns) > 1
        own = ScriptOptimizer(list(optimizers), prepared.schedulers, self._count_at, in_turn=in_turn)
        own.after_update = prepared.after_update
        return own

    def _replace_calls(self) -> None:
        """From here on the script's own calls reach this session."""
        prepared = self._prepared
        for number, turn in enumerate(prepared.turns):
            for optimizer in turn:
                setattr(optimizer, PREPARED, True)
                replace_step(optimizer, partial(self._optimizer_step, number, optimizer))
                # So that a GradScaler calls every step, and says so (`found_inf`), instead of leaving some
                # out.
                optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # torch looks for it
                if (scheduler := prepared.schedulers.get(id(optimizer))) is not None:
                    replace_step(scheduler, partial(self._scheduler_step, self._owns[number], scheduler))
        if prepared.scaler is not None:
            self._scaler = ScalerParts(prepared.scaler)
            self.kept.keep("the GradScaler", prepared.scaler)
            for own in self._owns:
                own.scaler = self._scaler

    def _scheduler_step(self, own: ScriptOptimizer, scheduler: LRScheduler, *values: object) -> None:
        """What `scheduler.step()` of the script does: the rate follows the steps of the run."""
        if self._loop is None:
            return
        if isinstance(scheduler, ReduceLROnPlateau):
            own.schedule_by_hand(scheduler, self.meeting_for("ReduceLROnPlateau.step").agreed(values[0]))
            return
        if not self._is_applied:
            return
        if not own.is_counted(scheduler):
            own.schedule_by_hand(scheduler)
            return
        self._has_scheduled = True
        if self._schedule == EPOCH_SCHEDULE:
            own.advance_to(self.epoch_of(self._finished) + 1)
        elif self._schedule == STEP_SCHEDULE:
            own.advance_to(self._finished.step + 1)
        else:
            own.advance_to(1)  # after the very first step, or the first epoch

    def _before_step(self) -> None:
        if self._steps_done == 1 and not self._schedule and self._has_counted_schedule:
            self._schedule = self._seen_schedule()

    @property
    def _has_counted_schedule(self) -> bool:
        schedulers = self._prepared.schedulers.values()
        in_turn = len(self._prepared.turns) > 1
        return not in_turn and any(not isinstance(each, ReduceLROnPlateau) for each in schedulers)

    def _seen_schedule(self) -> str:
        """Asked when the second step begins."""
        return STEP_SCHEDULE if self._has_scheduled else EPOCH_SCHEDULE

    def _count_at(self, step: int) -> int:
        return self.epoch_of(WorkUnit(0, step)) if self._schedule == EPOCH_SCHEDULE else step

    # Values of all workers

    def meeting_for(self, call: str) -> Meeting:
        self._has_met = True
        if self._meeting is None:
            raise script_error(
                "E135",
                f"{call} was called before the first batch",
                "call it within the training loop, or after it",
            )
        self._meeting.require(call)
        return self._meeting

    def evaluate(self, fn: Callable[[Batch], object], loader: Iterable[Batch]) -> object:
        meeting = self._meeting or Meeting(None, 0, None)
        return meeting.evaluate(fn, loader, self._prepared.modules)

    # Where the run stands

    def epochs(self, count: int) -> Iterator[int]:
        self._length = {"epochs": count}
        try:
            if not self.begin():
                if self._has_no_share:
                    self.loop_epoch = count - 1
                    yield self.loop_epoch  # what the script does at the end of an epoch is done once at least
                return
            for epoch in range(self.epoch_of(self._share), count):
                if self.is_stopped:
                    return
                self.loop_epoch = epoch
                yield epoch
        finally:
            self._watch(is_on=False)

    @property
    def _has_no_share(self) -> bool:
        """Whether the other workers made all steps of a run in which each takes the next that is left."""
        return not self.is_stopped and not self._steps_done and not meets(self._opened.plan)

    @property
    def has_every_step(self) -> bool:
        return meets(self._opened.plan)

    def steps(self, count: int) -> Iterator[int]:
        self._length = {"steps": count}
        try:
            while not self.is_known_to_end(count):
                if self.is_stepping and self._taken + self._losses:
                    raise script_error(
                        "E135",
                        f"step {self._share.step} ended without optimizer.step()",
                        "call optimizer.step() once in every step, or run.skip() for a step without a "
                        "gradient",
                    )
                if not self.begin():
                    return
                if self._prepared.loader is None:
                    self._opened.source.seed_step(self._share)
                    self._data_end_ns = self._opened.clock.now_ns()
                yield self._share.step
        finally:
            self._watch(is_on=False)

    def is_known_to_end(self, epoch: int) -> bool:
        """Whether the next step belongs to a later epoch, or there is none.

        Where a worker makes all steps of the run in their order this is known before the next step begins, so
        what the script does at the end of an epoch belongs to the checkpoint before it.
        """
        if self._loop is None or self.is_stepping or not self._steps_done + len(self._stepped):
            return False
        if not meets(self._loop.plan):
            return False
        after = self._share.step + 1
        return after >= self._loop.plan.steps or self.epoch_of(WorkUnit(0, after)) > epoch

    def share(self, count: int) -> int:
        """This worker's part of `count` samples."""
        if self._computation is None and not self.begin():
            return 0
        part = split(count, self._opened.plan.num_workers)[self._share.rank]
        if torch.is_grad_enabled():  # else the samples are for an evaluation
            self._drawn += part
        self._data_end_ns = self._opened.clock.now_ns()
        return part

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

    # Clipping and records

    def clip(
        self, parameters: Iterable[nn.Parameter] | nn.Parameter, limit: float, *, by_norm: bool
    ) -> Tensor:
        """Limit the agreed gradient of this step; the norm is known after optimizer.step()."""
        if self._computation is None:
            raise script_error(
                "E135",
                "gradients were clipped without a batch",
                "call run.clip_grad_norm_ between run.backward and optimizer.step()",
            )
        chosen = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
        clip = Clip(chosen, limit, by_norm, torch.zeros(()))
        self._owner_of(chosen).clips.append(clip)
        self._clipped = [clip] if self._steps_done == 0 else self._clipped
        return clip.norm

    def _owner_of(self, parameters: Iterable[nn.Parameter]) -> ScriptOptimizer:
        """The turn that trains the first of these; other turns must not train the rest."""
        chosen = set(map(id, parameters))
        for turn, own in zip(self._prepared.turns, self._owns, strict=True):
            if chosen & {id(p) for optimizer in turn for p in parameters_of(optimizer)}:
                return own
        raise script_error(
            "E120",
            "gradients were clipped of parameters that no prepared optimizer trains",
            "clip the parameters of a prepared module",
        )

    def log(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            custom_metrics.metric(name, value)
            self.logged[name] = float(value)

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
        if not self.is_stepping and not self.begin():
            if not self.is_over:
                self._finish()
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

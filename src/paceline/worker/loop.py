"""Training loop: the only one. Every mode, launcher and transport runs exactly this.

begin_step   the strategy makes the parameters ready (and may wait), and returns the work unit
compute      samples → forward → backward, the gradient lands in the arena (and is tampered with, if planned)
delay        injected slowness, if the plan has any
finish_step  gradients are exchanged, workers synchronize, the update is applied

`Worker.steps` is the loop as a generator, which yields wherever a gradient is to be computed and where a
step has ended. A task's loss is computed by `drive`; the training loop of a user's script drives the
generator itself (worker/script), so both have the same loop.

Under some modes the other workers may continue without a late step. Then the step is abandoned
where it is, and the next attempt begins (`StepGuard`).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from paceline.core.clock import Clock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Step
from paceline.events import custom_metrics
from paceline.events.log import Log
from paceline.events.schema import AbandonedRow, StepRow
from paceline.plan.catalog import server_names
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Interruptible, Outcome, Strategy
from paceline.sync.adaptive_setting import Adapted
from paceline.sync.assignment import WorkUnit
from paceline.sync.fault_rules import Slowness, Stragglers
from paceline.transport.ports import Collective
from paceline.worker.byzantine import tamper
from paceline.worker.evaluation import NO_EVALUATION, EvaluationHook
from paceline.worker.gradient import Source
from paceline.worker.replica import Replica


class StepAbandonedError(Exception):
    """Ends a step in the middle: the other workers have continued without it."""


class StepGuard:
    """Ends a step that the server has made obsolete. Only an `Interruptible` strategy has such steps."""

    def __init__(self, strategy: Strategy, clock: Clock) -> None:
        self._strategy = strategy if isinstance(strategy, Interruptible) else None
        self._clock = clock

    def check(self) -> None:
        if self._strategy is not None and self._strategy.is_obsolete():
            raise StepAbandonedError

    def sleep(self, duration_s: float) -> None:
        if self._strategy is None:
            self._clock.sleep(duration_s)
        elif self._strategy.wait_unless_obsolete(duration_s):
            raise StepAbandonedError

    def abandon_step(self) -> None:
        assert self._strategy is not None, "only an interruptible strategy has obsolete steps"
        self._strategy.abandon_step()


class Control(Protocol):
    """Link to the supervisor: progress and notes out, stop requests in."""

    def wants_stop(self) -> bool: ...

    def finished_step(self, steps: int, loss: float) -> None: ...

    def note(self, text: str) -> None:
        """One line for the terminal and the event log."""
        ...


class Saver(Protocol):
    def maybe_save(self, finished: StepClock, outcome: Outcome) -> None: ...


class LoopResult(NamedTuple):
    finished: StepClock
    was_stopped: bool


class Computation(NamedTuple):
    """A step has begun: its gradient is to be computed in this replica, and its loss sent back."""

    replica: Replica
    begun: Begun
    check: Callable[[], None]  # raises StepAbandonedError if the gradient is no longer needed


class StepEnd(NamedTuple):
    """A step has ended; without a Computation before it, the other workers made it without this one."""

    # None: it was abandoned, or lost with a generation, and had no effect; or there is no next step.
    outcome: Outcome | None


Result = TypeVar("Result")
# Receives the loss of each Computation; what is sent after a StepEnd is ignored.
Steps: TypeAlias = Generator[Computation | StepEnd, float, Result]


def drive(steps: Steps[Result], source: Source) -> Result:
    """Run the loop to its end with gradients of `source`."""
    try:
        event = next(steps)
        while True:
            if isinstance(event, StepEnd):
                event = next(steps)
                continue
            try:
                loss = source.compute(event.replica, event.begun.share, event.check)
            except BaseException as error:
                event = steps.throw(error)  # raised where the loop waits for the gradient
            else:
                event = steps.send(loss)
    except StopIteration as end:
        result: Result = end.value
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Everything one worker has; `steps` is the loop."""

    plan: Plan
    rank: Rank
    replica: Replica
    strategy: Strategy
    source: Source
    clock: Clock
    log: Log
    control: Control
    saver: Saver
    evaluator: EvaluationHook = NO_EVALUATION
    collective: Collective | None = None  # that of the strategy, for values between its steps

    def run(self, first: StepClock) -> LoopResult:
        """Do this worker's steps from `first` on, until nothing is left or all agree to stop."""
        return drive(self.steps(first), self.source)

    def steps(self, first: StepClock) -> Steps[LoopResult]:
        """The same as a generator: its driver computes the gradients."""
        stragglers = Stragglers(self.plan.stragglers, seed=self.plan.seed)
        # In runs whose workers share the shards of a step, a worker's number of shards per step varies.
        by_steps_of_the_run = self.plan.elastic is not None and not server_names(self.plan)
        guard = StepGuard(self.strategy, self.clock)
        if self.evaluator.begins_at_end():  # a run that has stopped early is over, also when it is resumed
            return LoopResult(first, was_stopped=True)
        finished = first
        abandoned = 0
        started_ns = self.clock.now_ns()
        while True:
            start = self.strategy.begin_step(Step(finished))
            if start is None:
                return LoopResult(finished, was_stopped=False)
            if isinstance(start, Outcome):  # the others made steps, and we agreed with them
                start = self.evaluator.after_step(finished, start)
                yield StepEnd(start)
                self.saver.maybe_save(finished, start)
                if start.stop:
                    return LoopResult(finished, was_stopped=True)
                continue
            # Counted by attempts: the delay that made a step late must not hit every repetition of it.
            at = start.share.step if by_steps_of_the_run else finished + abandoned
            slowness = stragglers.at(self.rank, at)
            try:
                loss = yield Computation(self.replica, start, guard.check)
                outcome = self._finish(Step(finished), start, slowness, started_ns, guard, loss)
            except StepAbandonedError:
                abandoned += 1
                self._abandon(Step(finished), start, started_ns, guard)
                yield StepEnd(None)
                started_ns = self.clock.now_ns()
                continue
            except PeerLostError as error:
                error.is_in_step = True  # elastic: the driver still waits for the end of this step
                raise
            finished = StepClock(finished + 1)
            outcome = self.evaluator.after_step(finished, outcome)
            yield StepEnd(outcome)  # until its next batch, a script changes the state that it keeps
            self.saver.maybe_save(finished, outcome)
            if outcome.stop:
                yield StepEnd(None)  # the workers are still there for what a script does at its end
                return LoopResult(finished, was_stopped=True)
            started_ns = self.clock.now_ns()

    def _abandon(self, step: Step, start: Begun, started_ns: int, guard: StepGuard) -> None:
        guard.abandon_step()
        if self.log.is_on:
            lasted_ns = self.clock.now_ns() - started_ns
            position = start.share.position(self.plan.num_workers)
            traffic = start.traffic
            self.log.add_abandoned(
                AbandonedRow(
                    step, position, started_ns, lasted_ns, traffic.wait_ns, traffic.bytes_in, start.version
                )
            )

    def _finish(
        self, step: Step, start: Begun, slowness: Slowness, started_ns: int, guard: StepGuard, loss: float
    ) -> Outcome:
        """Everything of a step that follows its gradient."""
        now = self.clock.now_ns
        self._tamper(step, start.share)
        own_norm = self._own_norm(step)
        times = self.source.times_ns
        compute_s = (times.backward_end - times.start) / 1e9
        guard.sleep(slowness.duration_s(compute_s, self._pace_s(start.share)) - compute_s)
        delayed_ns = now()
        outcome = self.strategy.finish_step(step, wants_stop=self.control.wants_stop())
        if self.log.is_on:
            self._record(step, start, outcome, (started_ns, delayed_ns, now()), loss, own_norm)
        if outcome.adapted is not None and self.rank == 0:  # all decided the same; one reports it
            self._report_adapted(outcome.adapted)
        if outcome.skipped is not None:
            self._report_skipped(start.share.step, outcome.skipped)
        self.control.finished_step(step + 1, loss)
        return outcome

    def _record(
        self,
        step: Step,
        start: Begun,
        outcome: Outcome,
        at_ns: tuple[int, int, int],  # when it started, when it began to agree, when it had agreed
        loss: float,
        own_norm: float | None,
    ) -> None:
        started_ns, delayed_ns, agreed_ns = at_ns
        times = self.source.times_ns
        traffic = start.traffic + outcome.traffic
        agreeing_ns = times.start - started_ns + agreed_ns - delayed_ns
        comm_ns = max(0, agreeing_ns - traffic.wait_ns - traffic.codec_ns - outcome.apply_ns)
        # In the order of StepRow's fields: by name it would take twice as long, at every step.
        self.log.add_step(
            StepRow(
                step,
                start.share.position(self.plan.num_workers),
                started_ns,
                times.data_end - times.start,
                times.forward_end - times.data_end,
                times.backward_end - times.forward_end,
                delayed_ns - times.backward_end,
                traffic.wait_ns,
                traffic.codec_ns,
                comm_ns,
                outcome.apply_ns,
                loss,
                start.share.size(self.plan.batch_sizes),
                traffic.bytes_out,
                traffic.bytes_in,
                outcome.version,
                outcome.synced,
                traffic.bytes_saved,
                outcome.peer,
                outcome.exchange,
                self.replica.gradient_norm,
                own_norm,
            )
        )
        if custom_metrics.recorded:
            self.log.add_custom(custom_metrics.rows_of_step(step, agreed_ns))

    def _own_norm(self, step: Step) -> float | None:
        """Only every `gradient_norm_every` steps, because it takes a pass over the gradient."""
        every = self.plan.gradient_norm_every
        return self.replica.own_norm() if every and step % every == 0 and self.log.is_on else None

    def _tamper(self, step: Step, share: WorkUnit) -> None:
        if self.plan.elastic is None:
            tamper(self.plan, self.replica.arena, worker=self.rank, step=step)
        else:  # the shard is faulty in any worker, and at each attempt
            tamper(self.plan, self.replica.arena, worker=share.rank, step=share.step)

    def _pace_s(self, share: WorkUnit) -> float:
        """A step of fewer samples than planned takes less."""
        if share.cut is None:
            return self.plan.pace_s
        return self.plan.pace_s * share.cut.count / self.plan.batch_sizes[share.rank]

    def _report_skipped(self, step: int, shards: str) -> None:
        self.log.write("step_skipped", step=step, shards=shards)
        if self.rank == 0:  # all decided the same; one reports it
            self.control.note(f"step {step} was skipped: the gradient of shard {shards} is not finite")

    def _report_adapted(self, adapted: Adapted) -> None:
        self.log.write("adapted", **adapted.fields())
        policies = adapted.was.value
        if adapted.now.policy is not adapted.was:
            policies += f" → {adapted.now.policy.value}"
        self.control.note(f"after step {adapted.step}: {policies}, because {adapted.reason}")

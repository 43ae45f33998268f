"""The one training loop. Every mode, launcher and transport runs exactly this.

begin_step   the strategy makes the parameters ready (and may wait)
compute      samples → forward → backward, the gradient lands in the arena
delay        injected slowness, if the plan has any
finish_step  the gradients travel, the workers agree, the update happens
"""

from dataclasses import dataclass
from typing import Protocol

from paceline.clock import Clock
from paceline.events.log import Log
from paceline.events.schema import StepRow
from paceline.ids import Clock as StepClock
from paceline.ids import Rank, Step
from paceline.plan.plan import Plan
from paceline.strategies.port import Outcome, Strategy
from paceline.sync.stragglers import Slowness, Stragglers
from paceline.worker.gradient import GradientSource
from paceline.worker.replica import Replica


class Control(Protocol):
    """What the loop tells its supervisor, and is told."""

    def wants_stop(self) -> bool: ...

    def finished_step(self, steps: int, loss: float) -> None: ...


class Saver(Protocol):
    def maybe_save(self, finished: StepClock, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Everything one worker has; `run` is the loop."""

    plan: Plan
    rank: Rank
    replica: Replica
    strategy: Strategy
    source: GradientSource
    clock: Clock
    log: Log
    control: Control
    saver: Saver

    def run(self, first: StepClock) -> StepClock:
        """Do this worker's steps from `first` on; how many are finished at the end."""
        stragglers = Stragglers(self.plan.stragglers, seed=self.plan.seed)
        for number in range(first, self.plan.steps):
            slowness = stragglers.at(self.rank, number)
            outcome = self._one_step(Step(number), slowness)
            self.saver.maybe_save(StepClock(number + 1), outcome)
            if outcome.stop:
                return StepClock(number + 1)
        return StepClock(self.plan.steps)

    def _one_step(self, step: Step, slowness: Slowness) -> Outcome:
        now = self.clock.now_ns
        started_ns = now()
        before = self.strategy.begin_step(step)
        loss = self.source.compute(self.replica, step)
        times = self.source.times_ns
        compute_s = (times.backward_end - times.start) / 1e9
        self.clock.sleep(slowness.duration_s(compute_s, self.plan.pace_s) - compute_s)
        delayed_ns = now()
        outcome = self.strategy.finish_step(step, wants_stop=self.control.wants_stop())
        if self.log.is_on:
            traffic = before + outcome.traffic
            agreeing_ns = times.start - started_ns + now() - delayed_ns
            comm_ns = max(0, agreeing_ns - traffic.wait_ns - outcome.apply_ns)
            # In the order of StepRow's fields: by name it would take twice as long, at every step.
            self.log.add_step(
                StepRow(
                    step,
                    started_ns,
                    times.data_end - times.start,
                    times.forward_end - times.data_end,
                    times.backward_end - times.forward_end,
                    delayed_ns - times.backward_end,
                    traffic.wait_ns,
                    comm_ns,
                    outcome.apply_ns,
                    loss,
                    self.plan.batch_sizes[self.rank],
                    traffic.bytes_out,
                    traffic.bytes_in,
                    outcome.version,
                    outcome.synced,
                )
            )
        self.control.finished_step(step + 1, loss)
        return outcome

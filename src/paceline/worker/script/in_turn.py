"""Optimizers of a script that step in turn, such as those of a GAN: one strategy for each.

`InTurn` is a strategy to the training loop. Each turn has an arena and a strategy of its own over its
modules, and all use the same collective in the same order. `optimizer.step()` of the script ends the turn of
its optimizer. The step ends with the next batch: a turn that had no `optimizer.step()` in it is then ended
with a gradient of zero and without an update, so every strategy sees every step and averages at the same
ones.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from torch import Tensor, nn

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Strategy
from paceline.strategies.port import Replica as ReplicaPort
from paceline.tasks.port import Optimizer, Task
from paceline.tasks.script import ScriptTask, Turn
from paceline.transport.ports import NO_TRAFFIC
from paceline.worker.replica import Replica

StrategyFactory: TypeAlias = Callable[[Plan, Links], Strategy]


def strategy_of(plan: Plan, task: Task, links: Links, kind: StrategyFactory) -> Strategy:
    """The plan's strategy; one for each optimizer, if a script has several that step in turn."""
    if isinstance(task, ScriptTask) and len(task.turns()) > 1:
        return InTurn(plan, links, kind, task.turns())
    return kind(plan, links)


class _TurnTask(ScriptTask):
    """A turn, as the task of its replica."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(seed=0)
        self._turn = turn

    def model(self) -> nn.Module:
        return self._turn.module

    def optimizer(self, parameters: object) -> Optimizer:
        return self._turn.optimizer()


class _TurnReplica(Replica):
    """The replica of one turn."""

    is_idle = False

    def update(self, rate_factor: float = 1.0) -> int:
        return 0 if self.is_idle else super().update(rate_factor)


class InTurn:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, kind: StrategyFactory, turns: Sequence[Turn]) -> None:
        self.wants_stop: Callable[[], bool] = lambda: False
        self.replicas: list[_TurnReplica] = []
        self._plan = plan
        self._links = links
        self._turns = turns
        self._strategies = [kind(plan, links) for _ in turns]
        self._ended: dict[int, Outcome] = {}  # by turn, of the present step
        self._step = Step(0)
        self._stops: bool | None = None  # all turns of a step request the same; None: not looked yet

    def prepare(self, replica: ReplicaPort, clock: Clock) -> None:
        device = replica.arena.state.device
        for turn, strategy in zip(self._turns, self._strategies, strict=True):
            own = _TurnReplica(self._plan, _TurnTask(turn), device, self._links.clock)
            own.prepare_optimizer()
            strategy.prepare(own, clock)
            self.replicas.append(own)

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        begun = [strategy.begin_step(step) for strategy in self._strategies]
        self._ended = {}
        self._step = step
        self._stops = None
        return begun[0]

    def expect_backward(self) -> None:
        for replica in self.replicas:
            replica.arena.expect_backward()

    @property
    def has_ended_turns(self) -> bool:
        return bool(self._ended)

    def end_turn(self, number: int) -> Outcome:
        """Agree on the gradients of this turn, and update its modules."""
        return self._end(number, wants_stop=self.wants_stop, is_idle=False)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        for number in range(len(self._turns)):
            if number not in self._ended:
                self._end(number, wants_stop=lambda: wants_stop, is_idle=True)
        outcomes = [self._ended[number] for number in sorted(self._ended)]
        first = outcomes[0]
        return Outcome(
            traffic=sum((outcome.traffic for outcome in outcomes), NO_TRAFFIC),
            apply_ns=sum(outcome.apply_ns for outcome in outcomes),
            version=first.version,
            synced=all(outcome.synced for outcome in outcomes),
            resumable=all(outcome.resumable or outcome.synced for outcome in outcomes),
            stop=any(outcome.stop for outcome in outcomes),
            shares_done=first.shares_done,
            skipped=next((outcome.skipped for outcome in outcomes if outcome.skipped is not None), None),
        )

    def _end(self, number: int, *, wants_stop: Callable[[], bool], is_idle: bool) -> Outcome:
        if self._stops is None:
            self._stops = wants_stop()
        replica = self.replicas[number]
        arena = replica.arena
        if is_idle:
            arena.expect_backward()
        arena.collect_gradients(absent_are_zero=is_idle)
        replica.is_idle = is_idle
        replica.step = self._step
        outcome = self._strategies[number].finish_step(self._step, wants_stop=self._stops)
        self._ended[number] = outcome
        arena.expect_backward()
        return outcome

    def snapshot(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": tensor
            for number, strategy in enumerate(self._strategies)
            for name, tensor in strategy.snapshot().items()
        }

    def restore(self, saved: dict[str, Tensor]) -> None:
        for number, strategy in enumerate(self._strategies):
            prefix = f"{number}."
            strategy.restore(
                {name.removeprefix(prefix): t for name, t in saved.items() if name.startswith(prefix)}
            )

    def close(self) -> None:
        for strategy in self._strategies:
            strategy.close()

"""The brain of a parameter server: admit, apply, answer; the same behind every adapter.

A pushed gradient waits in its worker's slot until the rule admits it. Then the
group it was admitted with is averaged (a group of one stays as it is), the
optimizer makes one step, and the version goes up by one. A worker is answered
by copying the state into its slot, so what it reads is one version, whole.
"""

from collections.abc import Callable, Sequence

import torch

from paceline.checkpoints.store import Snapshot
from paceline.clock import Clock
from paceline.events.log import Log
from paceline.events.schema import ServerRow
from paceline.ids import Clock as StepClock
from paceline.ids import Rank, Step, Version
from paceline.plan.plan import Plan
from paceline.sync.admission import Admission, Held, Release, Rule
from paceline.sync.averaging import mean_weight
from paceline.transport.ports import Answer, Slots
from paceline.worker.replica import Replica


class ParameterServer:
    def __init__(self, plan: Plan, replica: Replica, rule: Rule, *, log: Log, clock: Clock) -> None:
        self.version = Version(0)
        # Gradients applied, by worker, also after it left.
        self.clocks = {Rank(rank): StepClock(0) for rank in range(plan.num_workers)}
        self.replica = replica
        self._plan, self._log, self._clock = plan, log, clock
        self._admission = Admission(rule, dict(self.clocks))
        self._slots: dict[Rank, Slots] = {}
        self._read: dict[Rank, tuple[Version, int]] = {}  # what each worker last read, and when
        self._mean = torch.empty(0)
        self.on_applied: Callable[[], None] = lambda: None  # told after updates, before answers

    def attach(self, rank: Rank, slots: Slots) -> None:
        self._slots[rank] = slots

    def join(self, rank: Rank, clock: StepClock) -> Sequence[Answer]:
        return self._carry_out(self._admission.join(rank, clock))

    def push(self, rank: Rank, *, leaving: bool) -> Sequence[Answer]:
        return self._carry_out(self._admission.push(rank, leaving=leaving))

    def leave(self, rank: Rank) -> Sequence[Answer]:
        return self._carry_out(self._admission.leave(rank))

    def snapshot(self) -> Snapshot:
        saved = self.replica.snapshot()
        clocks = {str(rank): clock for rank, clock in self.clocks.items()}
        return Snapshot(saved.tensors, {**saved.facts, "version": self.version, "clocks": clocks})

    def restore(self, saved: Snapshot) -> None:
        self.replica.restore(saved)
        self.version = Version(saved.facts["version"])
        self.clocks = {Rank(int(r)): StepClock(c) for r, c in saved.facts["clocks"].items()}
        self._admission.clocks = dict(self.clocks)

    def _carry_out(self, release: Release) -> list[Answer]:
        for group in release.groups:
            self.apply(group)
        if release.groups:
            self.on_applied()
        return [self.answer(rank, Step(self._admission.clocks[rank])) for rank in release.readers]

    def apply(self, group: tuple[Held, ...]) -> None:
        """One update from the mean of these pushed gradients."""
        arena = self.replica.arena
        arena.place_gradients(self._combined(group))
        arena.buffers_from_gradients()
        arena.bind_gradients()
        self.replica.update()
        before, self.version = self.version, Version(self.version + 1)
        now_ns = self._clock.now_ns()
        for held in group:
            self.clocks[held.rank] = StepClock(held.index + 1)
            read_version, read_ns = self._read[held.rank]
            self._note("apply", held.rank, held.index, read_version, before - read_version, now_ns - read_ns)

    def _combined(self, group: tuple[Held, ...]) -> torch.Tensor:
        """The gradient to apply: the batch-weighted mean over the group."""
        pushed = [self._slots[held.rank].gradients for held in group]
        end = self.replica.arena.layout.buffers_start
        for held, vector in zip(group, pushed, strict=True):
            weight = mean_weight(held.rank, self._plan.batch_sizes)
            if weight != 1.0:
                vector[:end].mul_(weight)
        if len(pushed) == 1:
            return pushed[0]
        if self._mean.shape != pushed[0].shape:
            self._mean = torch.empty_like(pushed[0])
        torch.add(pushed[0], pushed[1], out=self._mean)
        for vector in pushed[2:]:
            self._mean.add_(vector)
        return self._mean.div_(len(pushed))

    def answer(self, rank: Rank, step: Step) -> Answer:
        """Give this worker the parameters for its `step`."""
        self._slots[rank].parameters.copy_(self.replica.arena.state)
        self._read[rank] = (self.version, self._clock.now_ns())
        self._note("read", rank, step, self.version, 0, 0)
        return Answer(rank, self.version)

    def _note(
        self, op: str, rank: Rank, step: Step, read_version: Version, staleness: int, age_ns: int
    ) -> None:
        if self._log.is_on:
            gap = self._admission.gap(step)
            now_ns = self._clock.now_ns()
            self._log.add_server(
                ServerRow(op, now_ns, rank, step, self.version, read_version, staleness, gap, age_ns)
            )

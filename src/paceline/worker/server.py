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
from paceline.strategies.port import ServerSide
from paceline.sync.admission import Admission, Held, Release
from paceline.sync.assignment import as_ranges, from_ranges
from paceline.sync.averaging import mean_weight
from paceline.transport.ports import Answer, Slots
from paceline.worker.replica import Replica


class ParameterServer:
    def __init__(
        self, plan: Plan, replica: Replica, side: type[ServerSide], *, log: Log, clock: Clock
    ) -> None:
        self.version = Version(0)
        # Gradients applied, by worker, also after it left.
        self.clocks = {Rank(rank): StepClock(0) for rank in range(plan.num_workers)}
        self.replica = replica
        self._plan, self._log, self._clock = plan, log, clock
        self.applied: set[int] = set()  # shares of the work that are in the parameters
        self._weights = [mean_weight(rank, plan.batch_sizes) for rank in range(plan.num_workers)]
        self._side = side
        self._admission = Admission(side.rule(plan), dict(self.clocks))
        self._assignment = side.assignment(plan, frozenset())
        self._doing: dict[Rank, int] = {}  # the share each worker was last given
        self._slots: dict[Rank, Slots] = {}
        self._read: dict[Rank, tuple[Version, int]] = {}  # what each worker last read, and when
        self._mean = torch.empty(0)
        self.on_applied: Callable[[], None] = lambda: None  # told after updates, before answers

    def attach(self, rank: Rank, slots: Slots) -> None:
        self._slots[rank] = slots

    def join(self, rank: Rank, clock: StepClock) -> Sequence[Answer]:
        return self._carry_out(self._admission.join(rank, clock))

    def push(self, rank: Rank, *, wants_stop: bool) -> Sequence[Answer]:
        step = Step(self._admission.clocks[rank])
        read_version, read_ns = self._read[rank]
        age_ns = self._clock.now_ns() - read_ns
        self._note("push", rank, step, read_version, self.version - read_version, age_ns)
        release = self._admission.push(rank)
        if wants_stop:
            self._assignment.stop(self._admission.furthest())
        return self._carry_out(release)

    def leave(self, rank: Rank) -> Sequence[Answer]:
        return self._carry_out(self._admission.leave(rank))

    def snapshot(self) -> Snapshot:
        saved = self.replica.snapshot()
        facts = {
            "version": self.version,
            "clocks": {str(rank): clock for rank, clock in self.clocks.items()},
            "applied": as_ranges(self.applied),
        }
        return Snapshot(saved.tensors, {**saved.facts, **facts})

    def restore(self, saved: Snapshot) -> None:
        self.replica.restore(saved)
        self.version = Version(saved.facts["version"])
        self.clocks = {Rank(int(r)): StepClock(c) for r, c in saved.facts["clocks"].items()}
        self.applied = set(from_ranges(saved.facts["applied"]))
        self._admission.clocks = dict(self.clocks)
        self._assignment = self._side.assignment(self._plan, frozenset(self.applied))

    def _carry_out(self, release: Release) -> list[Answer]:
        for group in release.groups:
            self.apply(group)
        if release.groups:
            self.on_applied()
        answers: list[Answer] = []
        for rank in release.readers:
            clock = self._admission.clocks[rank]
            position = self._assignment.next(rank, clock)
            if position is None:
                answers.append(Answer(rank, self.version, None))
                answers += self.leave(rank)
            else:
                answers.append(self.answer(rank, Step(clock), position))
        return answers

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
            self.applied.add(self._doing[held.rank])
            read_version, read_ns = self._read[held.rank]
            self._note("apply", held.rank, held.index, read_version, before - read_version, now_ns - read_ns)

    def _combined(self, group: tuple[Held, ...]) -> torch.Tensor:
        """The gradient to apply: the batch-weighted mean over the group."""
        pushed = [self._slots[held.rank].gradients for held in group]
        end = self.replica.arena.layout.buffers_start
        for held, vector in zip(group, pushed, strict=True):
            weight = self._weights[self._doing[held.rank] % self._plan.num_workers]
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

    def answer(self, rank: Rank, step: Step, position: int) -> Answer:
        """Give this worker the parameters, to do this share of the work with."""
        self._slots[rank].parameters.copy_(self.replica.arena.state)
        self._read[rank] = (self.version, self._clock.now_ns())
        self._doing[rank] = position
        self._note("read", rank, step, self.version, 0, 0)
        return Answer(rank, self.version, position)

    def _note(
        self, op: str, rank: Rank, step: Step, read_version: Version, staleness: int, age_ns: int
    ) -> None:
        if self._log.is_on:
            gap, position = self._admission.gap(step), self._doing[rank]
            now_ns = self._clock.now_ns()
            self._log.add_server(
                ServerRow(
                    op, now_ns, rank, step, position, self.version, read_version, staleness, gap, age_ns
                )
            )

"""Parameter server: admit, apply, answer; the same behind every transport.

A pushed gradient waits in its worker's slot until the rule admits it. Then the group it was admitted with is
averaged (a group of one stays as it is), the optimizer makes one step, and the version goes up by one. A
worker is answered by copying the state into its slot, so it always reads one whole version. Where the rule
does not wait for late workers, a late worker is sent `Obsolete`, and its share is assigned again. Where
workers push parameters instead (easgd), an exchange replaces the optimizer's step, and leaves in the slot
the parameters with which the worker continues.
"""

from collections.abc import Callable, Sequence

import torch

from paceline.checkpoints.snapshot import Snapshot
from paceline.compression.push import push_format
from paceline.core.clock import Clock
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Step, Version
from paceline.events.log import Log
from paceline.events.schema import ServerRow
from paceline.plan.catalog import SCRIPT_TASK
from paceline.plan.plan import Plan
from paceline.strategies.port import ServerSide
from paceline.strategies.robust import build_aggregation
from paceline.strategies.server_updates import Exchange
from paceline.sync.admission import Admission, Held, Release
from paceline.sync.assignment import FirstCome, Ranges, as_ranges
from paceline.sync.averaging import mean_weight
from paceline.transport.ports import Answer, AtEnd, Obsolete, Reply, Slots
from paceline.worker.evaluation import Entry, Evaluations
from paceline.worker.replica import Replica


class ParameterServer:
    def __init__(
        self, plan: Plan, replica: Replica, side: type[ServerSide], *, log: Log, clock: Clock
    ) -> None:
        self.version = Version(0)
        # Gradients applied, by worker, also after it left.
        self.clocks = {Rank(rank): StepClock(0) for rank in range(plan.num_workers)}
        self.replica = replica
        self._plan = plan
        self._log = log
        self._clock = clock
        self.applied = Ranges()  # shares of the work that are in the parameters
        self._weights = [mean_weight(rank, plan.batch_sizes) for rank in range(plan.num_workers)]
        self._side = side
        self._admission = Admission(side.rule(plan), dict(self.clocks))
        self._assignment = side.assignment(plan, frozenset())
        self._correction = side.correction(plan)
        self._exchange = side.exchange(plan)
        self._swapped: set[Rank] = set()  # ranks whose slot already holds the result of their exchange
        self._doing: dict[Rank, int] = {}  # the share each worker was last given
        self._slots: dict[Rank, Slots] = {}
        self._read: dict[Rank, tuple[Version, int]] = {}  # version that each worker last read, and when
        self._combining = build_aggregation(plan, replica.arena.layout)
        self._mean = torch.empty(0)
        self._format = push_format(plan, replica.arena.layout, Rank(0))  # None: no compression
        self._decoded: dict[Rank, torch.Tensor] = {}  # each worker's last push, when they are
        self.on_applied: Callable[[], None] = lambda: None  # called after updates, before answers
        self._about_to_read: tuple[Rank, ...] = ()  # ranks whose next share is not decided yet
        self._over: list[Rank] = []  # ranks without a share that were not told so yet
        self.evaluations: Evaluations | None = None
        if plan.evaluation is not None:
            self.evaluations = Evaluations(plan, replica.arena, self._evaluation_clock())

    def _evaluation_clock(self) -> Clock:
        return self._clock

    @property
    def steps_done(self) -> int:
        """Applied gradients, in steps of the run."""
        return len(self.applied) // self._plan.num_workers

    def take_evaluation(self, entry: Entry) -> None:
        """Store an evaluation of the current parameters, and stop if it decides so."""
        assert self.evaluations is not None, "an evaluation belongs to a run that is evaluated"
        self.evaluations.take(entry)
        if self.evaluations.reason:
            self.stop()

    def stop(self) -> None:
        """Assign only the shares that an orderly end requires."""
        self._assignment.stop(self._admission.furthest(self._about_to_read))
        self._admission.is_exhausted = self._assignment.is_exhausted()

    def attach(self, rank: Rank, slots: Slots) -> None:
        self._slots[rank] = slots
        self._swapped.discard(rank)

    def join(self, rank: Rank, clock: StepClock) -> Sequence[Reply]:
        return self._carry_out(self._admission.join(rank, clock))

    def push(self, rank: Rank, *, wants_stop: bool) -> Sequence[Reply]:
        step = Step(self._admission.clocks[rank])
        self._note("push", rank, step, self.version)
        if rank in self._admission.abandoned:  # its share was given back when the others continued
            self._note("discard", rank, step, self.version)
        steps = len(self._shares(rank))
        release = self._admission.push(rank, now_ns=self._clock.now_ns(), steps=steps)
        if wants_stop:
            self._assignment.stop(self._admission.furthest())
        return self._carry_out(release)

    def again(self, rank: Rank) -> Sequence[Reply]:
        return self._carry_out(self._admission.again(rank))

    def leave(self, rank: Rank) -> Sequence[Reply]:
        if self._admission.takes_back and rank in self._admission.computing:
            self._take_back(rank)
        replies = self._carry_out(self._admission.leave(rank))
        return [*replies, *self._release_over()]

    def snapshot(self) -> Snapshot:
        return self._with_facts(self.replica.snapshot())

    def live(self) -> Snapshot:
        """Like `snapshot`, but of the tensors themselves: to be copied before anything changes them."""
        return self._with_facts(self.replica.live())

    def _with_facts(self, saved: Snapshot) -> Snapshot:
        facts = {
            "version": self.version,
            "clocks": {str(rank): clock for rank, clock in self.clocks.items()},
            "applied": as_ranges(self.applied),
        }
        also = Snapshot({}, {}) if self.evaluations is None else self.evaluations.live()
        return Snapshot({**saved.tensors, **also.tensors}, {**saved.facts, **facts, **also.facts})

    def restore(self, saved: Snapshot) -> None:
        self.replica.restore(saved)
        self.version = Version(saved.facts["version"])
        self.clocks = {Rank(int(r)): StepClock(c) for r, c in saved.facts["clocks"].items()}
        self.applied = Ranges((first, end) for first, end in saved.facts["applied"])
        self._admission.clocks = dict(self.clocks)
        self._assignment = self._side.assignment(self._plan, self.applied.copy())
        if self.evaluations is not None:
            self.evaluations.restore(saved)
            self._stop_again()

    def _stop_again(self) -> None:
        """A run that has stopped early is over, also when it is resumed."""
        if self.evaluations is None or not self.evaluations.reason:
            return
        if isinstance(self._assignment, FirstCome):
            self._assignment.stop_resumed()
        else:
            self._assignment.stop(self._admission.furthest(tuple(self._admission.clocks)))
        self._admission.is_exhausted = self._assignment.is_exhausted()

    def _carry_out(self, release: Release) -> list[Reply]:
        for group in release.groups:
            if self._is_kept(group):
                self.apply(group)
            else:
                self._discard(group[0])
        replies: list[Reply] = [self._abandon(rank) for rank in release.late]
        if release.groups:
            self._about_to_read = release.readers
            self.on_applied()
            self._about_to_read = ()
        for rank in release.readers:
            replies += self._hand_out(rank)
        self._admission.is_exhausted = self._assignment.is_exhausted()
        return replies

    def _hand_out(self, rank: Rank) -> list[Reply]:
        """This worker may read: give it its next share, or let it go."""
        clock = self._admission.clocks[rank]
        position = self._assignment.next(rank, clock)
        if position is None:
            self._over.append(rank)
            replies = self._carry_out(self._admission.leave(rank))
            ended = self._release_over()
            waits = [AtEnd(rank)] if rank in self._over else []
            return [*waits, *ended, *replies]
        return [self.answer(rank, Step(clock), position)]

    def _release_over(self) -> list[Reply]:
        """Let workers without a share go: those of a script with the parameters at the end of the run."""
        if self.hands_out_end and self._admission.clocks:
            return []  # a worker has a share, or its gradient is not applied
        over = self._over
        self._over = []
        return [self._end(rank) for rank in over]

    def _end(self, rank: Rank) -> Answer:
        if self.hands_out_end:
            self._slots[rank].parameters.copy_(self.replica.arena.state)
        return Answer(rank, self.version, None, has_parameters=self.hands_out_end)

    @property
    def hands_out_end(self) -> bool:
        """Whether workers go on with the trained model: a script saves it, a task has it in the server."""
        return self._plan.task == SCRIPT_TASK

    def apply(self, group: tuple[Held, ...]) -> None:
        """One update: from the mean of these pushed gradients, or by exchanging with one worker."""
        # In the order of their shares: the bits do not depend on which worker made which.
        group = tuple(sorted(group, key=lambda held: self._doing[held.rank]))
        factor = self._step(group) if self._exchange is None else self._swap(self._exchange, group)
        before = self.version
        self.version = Version(self.version + 1)
        for held in group:
            shares = self._shares(held.rank)
            self.clocks[held.rank] = StepClock(held.index + len(shares))
            self.applied.update(shares)
            self._note("apply", held.rank, held.index, before, factor)

    def _shares(self, rank: Rank) -> range:
        """The shares that this worker's push contains."""
        first = self._doing[rank]
        return range(first, first + 1) if self._exchange is None else self._exchange.shares(first)

    def _step(self, group: tuple[Held, ...]) -> float:
        arena = self.replica.arena
        arena.place_gradients(self._combined(group))
        arena.divide_by_loss_weight()
        factor = self._correct(group)
        arena.buffers_from_gradients()
        arena.bind_gradients()
        self.replica.step = self._doing[group[0].rank] // self._plan.num_workers
        self.replica.update(factor)
        return factor

    def _swap(self, exchange: Exchange, group: tuple[Held, ...]) -> float:
        (held,) = group  # an exchange is between the centre and one worker
        slots = self._slots[held.rank]
        exchange.swap(self.replica.arena.state, slots.gradients, slots.parameters)
        self._swapped.add(held.rank)
        return 1.0

    def _is_kept(self, group: tuple[Held, ...]) -> bool:
        # Only a gradient applied alone can be stale; the gradients of a mean are of one version.
        return len(group) > 1 or self._correction.keeps(self.version - self._read[group[0].rank][0])

    def _abandon(self, rank: Rank) -> Obsolete:
        """The update was made without this worker's gradient; its work unit is assigned again."""
        self._note("abandon", rank, Step(self._admission.clocks[rank]), self.version)
        self._take_back(rank)
        return Obsolete(rank, self.version)

    def _take_back(self, rank: Rank) -> None:
        self._assignment.give_back(self._doing[rank])
        self._admission.is_exhausted = False

    def _discard(self, held: Held) -> None:
        self._note("discard", held.rank, held.index, self.version)
        self._assignment.give_back(self._doing[held.rank])

    def _correct(self, group: tuple[Held, ...]) -> float:
        """Apply the strategy's correction to the gradient; returns the factor of the learning rate."""
        if len(group) > 1:
            return 1.0
        arena = self.replica.arena
        end = self.replica.arena.layout.buffers_start
        rank = group[0].rank
        self._correction.compensate(
            arena.gradient_part, arena.state[:end], self._slots[rank].parameters[:end]
        )
        return self._correction.rate_factor(self.version - self._read[rank][0])

    def _combined(self, group: tuple[Held, ...]) -> torch.Tensor:
        """The gradient to apply: the batch-weighted mean over the group, or the plan's other aggregate."""
        pushed = [self._pushed(held.rank) for held in group]
        end = self.replica.arena.layout.buffers_start
        for held, vector in zip(group, pushed, strict=True):
            weight = self._weights[self._doing[held.rank] % self._plan.num_workers]
            if weight != 1.0:
                vector[:end].mul_(weight)
        if len(pushed) == 1 and self._combining is None:
            return pushed[0]
        if self._mean.shape != pushed[0].shape:
            self._mean = torch.empty_like(pushed[0])
        if self._combining is not None:
            start = self.replica.arena.layout.tail_start
            self._mean[start:] = torch.stack([vector[start:] for vector in pushed]).mean(dim=0)
            return self._combining.into(self._mean, pushed)
        torch.add(pushed[0], pushed[1], out=self._mean)
        for vector in pushed[2:]:
            self._mean.add_(vector)
        return self._mean.div_(len(pushed))

    def _new_slots(self) -> Slots:
        state = self.replica.arena.state
        push_bytes = None if self._format is None else self._format.slot_bytes
        return Slots.new(state.numel(), state.dtype, push_bytes)

    def _pushed(self, rank: Rank) -> torch.Tensor:
        slot = self._slots[rank].gradients
        if self._format is None:
            return slot
        if rank not in self._decoded:
            self._decoded[rank] = torch.zeros_like(self.replica.arena.state)
        self._format.read(slot, self._decoded[rank])
        return self._decoded[rank]

    def answer(self, rank: Rank, step: Step, position: int) -> Answer:
        """Give this worker the parameters, to do this share of the work with."""
        if rank in self._swapped:
            self._swapped.remove(rank)
        else:
            self._slots[rank].parameters.copy_(self.replica.arena.state)
        self._read[rank] = (self.version, self._clock.now_ns())
        self._doing[rank] = position
        self._note("read", rank, step, self.version)
        return Answer(rank, self.version, position)

    def _note(self, op: str, rank: Rank, step: Step, current: Version, factor: float = 1.0) -> None:
        """`current` is the version to which the gradient is applied, or that is read."""
        if self._log.is_on:
            now_ns = self._clock.now_ns()
            read_version, read_ns = self._read[rank]
            self._log.add_server(
                ServerRow(
                    op,
                    now_ns,
                    rank,
                    step,
                    self._doing[rank],
                    self.version,
                    read_version,
                    current - read_version,
                    self._admission.gap(step),
                    now_ns - read_ns,
                    factor,
                )
            )

"""Elastic worker: trains through generations of workers, with the same replica.

The workers of a generation enter it together, bring every replica to the newest committed step, and run the
training loop. When the generation ends, because a worker was lost or has joined, each worker undoes what was
not committed and enters the next generation. The process stays, and nothing is read from disk. A worker that
was asked to leave does so after a step that all workers have committed.
"""

import gc
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from paceline.checkpoints.snapshot import Snapshot, from_bytes, to_bytes
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import Clock, SystemClock, monotonic_s
from paceline.core.errors import PeerLostError, TrainingError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.plan.plan import Plan
from paceline.plan.schedule import draws_of, is_streaming, longest_commit
from paceline.strategies.elastic.adaptive import ShardedAdaptive
from paceline.strategies.elastic.rounds import DONE, ShardedFedavg, ShardedRounds
from paceline.strategies.elastic.streaming import ShardedStreaming
from paceline.strategies.elastic.synchronous import Sharded, ShardSharing
from paceline.strategies.port import Links, Strategy
from paceline.sync.adaptive_policy import WINDOW_STEPS
from paceline.transport.generation.device_slots import DeviceRounds, DeviceShards
from paceline.transport.generation.ports import EnterWorld, TrainingWorld, World
from paceline.worker.checkpointing import strategy_tensors, with_strategy
from paceline.worker.elastic.sharing import (
    AdaptiveSharing,
    AgreedShares,
    BestSpeed,
    DecisionListener,
    initial_policy,
)
from paceline.worker.evaluation import Evaluations
from paceline.worker.gradient import Source
from paceline.worker.loop import LoopResult, StepEnd, Steps, Worker, drive
from paceline.worker.replica import Replica

# Each worker publishes how many steps it has committed. A worker with fewer than the maximum receives the
# whole state from the memory of one that has it, checked by its hash.


@dataclass(frozen=True, slots=True)
class HealResult:
    """Result of the synchronization of state."""

    committed: int
    source: int | None  # the rank whose memory provided it; None: this worker had it
    nbytes: int
    behind: tuple[int, ...] = ()  # the ranks that were behind the newest state


def synchronize_state(
    world: World,
    committed: int,
    evaluated: int,
    snapshot: Callable[[], Snapshot],
    restore: Callable[[Snapshot], None],
) -> HealResult:
    """Every worker has the newest committed state when this returns.

    Of equally many committed steps, the state with more evaluations is newer. Several workers that have it
    share the work of sending it.
    """
    known = world.exchange((committed, evaluated))
    newest = max(known)
    if min(known) == newest:
        return HealResult(newest[0], None, 0)
    behind = tuple(rank for rank, progress in enumerate(known) if progress < newest)
    whole = [rank for rank, progress in enumerate(known) if progress == newest]
    sources = {rank: whole[number % len(whole)] for number, rank in enumerate(behind)}
    data = to_bytes(snapshot()) if world.rank in sources.values() else b""
    received = world.copy_state(sources, data)
    if world.rank not in sources:
        return HealResult(newest[0], None, 0, behind)
    restore(from_bytes(received))
    return HealResult(newest[0], sources[world.rank], len(received), behind)


class ElasticStrategy(Strategy, Protocol):
    """A strategy whose generation may end at any moment."""

    @property
    def committed(self) -> int:
        """Steps of the run on which all remaining workers agree."""
        ...

    @property
    def steps_done(self) -> int:
        """The same in steps of the run, where commits are not steps."""
        ...

    @property
    def gradients(self) -> int:
        """That we have computed."""
        ...

    def undo(self) -> None:
        """Restore the replica to the last commit."""
        ...


def strategy_in(
    plan: Plan, world: TrainingWorld, rank: Rank, clock: Clock, sharing: ShardSharing, device: torch.device
) -> ElasticStrategy:
    count = plan.num_workers
    is_on_host = device.type == "cpu"
    if plan.compress is not None or plan.strategy.aggregate != "mean":
        assert is_on_host, "the plan's check rejects codecs and robust means on GPUs"
        return _ranked_strategy_in(plan, world, rank, clock, sharing)
    if plan.mode == "ssgd":
        shards = world.shards(count, clock)
        slots = shards if is_on_host else DeviceShards(shards, device)
        return Sharded(plan, Links(rank=rank, world_size=world.parties, clock=clock, shards=slots), sharing)
    of_host = world.rounds(count, clock)
    rounds = of_host if is_on_host else DeviceRounds(of_host, device)
    links = Links(rank=rank, world_size=world.parties, clock=clock, shards=rounds, rounds=rounds)
    if isinstance(sharing, AdaptiveSharing):
        return ShardedAdaptive(plan, links, sharing)
    return _kind(plan)(plan, links, sharing)


def _ranked_strategy_in(
    plan: Plan, world: TrainingWorld, rank: Rank, clock: Clock, sharing: ShardSharing
) -> ElasticStrategy:
    has_states = plan.mode != "ssgd"
    rounds, ranks = world.ranked_rounds(plan.num_workers, clock, has_states=has_states)
    links = Links(rank=rank, world_size=world.parties, clock=clock, shards=rounds, rounds=rounds, ranks=ranks)
    return (_kind(plan) if has_states else Sharded)(plan, links, sharing)


def _kind(plan: Plan) -> type[ShardedRounds]:
    if plan.mode == "fedavg":
        return ShardedFedavg
    return ShardedStreaming if is_streaming(plan) else ShardedRounds


def is_finished(plan: Plan, committed: int, carried: Mapping[str, Tensor]) -> bool:
    """Whether a worker with `committed` steps and this carried state has done all work of the run."""
    if plan.mode == "fedavg":  # it counts rounds
        return DONE in carried and int(carried[DONE].sum()) == plan.total_gradients
    return committed >= plan.steps


PAUSE_POLL_S = 0.2
GRACE_S = 1.0  # the launcher reports a lost worker within milliseconds
POLL_S = 0.005


class GenerationSource(Protocol):
    """Source of the generations that a worker trains in."""

    def wait_for_generation(self, after: int, timeout_s: float) -> pb.Generation | None:
        """The newest one behind `after` that has us in it; None: the run has ended."""
        ...

    def is_over(self, number: int) -> bool: ...

    def when_over(self, call: Callable[[], None]) -> None: ...

    def close(self, reason: str) -> None: ...


class SupervisorRequests(Protocol):
    """Requests of the supervisor to a worker."""

    def wants_stop(self) -> bool: ...

    def wants_leave(self) -> bool: ...

    def is_without_coordinator(self) -> bool:
        """The run ends without its coordinator: it forms no generation any more."""
        ...

    def is_paused(self) -> bool:
        """Too few are left, and an operator is waited for."""
        ...

    def takes_save(self) -> bool: ...

    def report_end(self, committed: int) -> None: ...

    def ended_at(self) -> int: ...


@dataclass(slots=True, kw_only=True)
class ElasticWorker:
    plan: Plan
    name: str
    replica: Replica
    clock: Clock
    log: Log
    membership: GenerationSource
    enter: EnterWorld
    worker_for: Callable[[ElasticStrategy, TrainingWorld], Worker]  # in a generation
    requests: SupervisorRequests
    listener: DecisionListener
    save: Callable[[int, dict[str, Tensor]], None]  # between generations: the steps committed, and `carried`
    revoke: Callable[[int, str], None] = lambda _number, _why: None  # ends a generation that cannot continue
    committed: int = 0  # steps of the run that our replica has; fedavg: rounds
    carried: dict[str, Tensor] = field(default_factory=dict)  # strategy state for the next generation
    evaluations: Evaluations | None = None  # None: the run is evaluated at its end only
    steps_done: int = 0  # steps of the run; unlike `committed`, never rounds
    finished: int = 0  # gradients that this process has computed
    rank: int = 0  # in the newest generation
    was_saved_at: int = 0  # the newest checkpoint's step, if there are some and none can be read
    has_left: bool = False  # it was requested to leave
    is_late: bool = False  # the others ended before we had the state
    _best: BestSpeed = field(default_factory=BestSpeed)
    _after: int = 0  # the last generation that we were in
    _lost: str = ""  # the connection that broke in it

    @property
    def generation(self) -> int:
        """The one that we are in, or were last."""
        return self._after

    def run(self, source: Source) -> LoopResult:
        return drive(self.steps(), source)

    def steps(self) -> Steps[LoopResult]:
        """The steps of all generations. One that is lost ends in the replica's last commit."""
        while True:
            generation = self._next_generation()
            if generation is None:
                is_done = is_finished(self.plan, self.committed, self.carried)
                return LoopResult(StepClock(self.finished), was_stopped=not is_done)
            self._after = generation.number
            self._lost = ""
            try:
                result = yield from self._take_part(generation)
                self.requests.report_end(self.committed)
                return result
            except PeerLostError as error:
                why = error.what
                is_in_step = error.is_in_step
            if self._lost:
                self._see_to_the_end(generation.number, self._lost)
            self._write("generation_lost", number=generation.number, committed=self.committed, why=why)
            if is_in_step:
                yield StepEnd(None)
            if self.has_left:
                return LoopResult(StepClock(self.finished), was_stopped=False)
            gc.collect()  # the old world stays mapped as long as anything refers to it

    def _next_generation(self) -> pb.Generation | None:
        """None: the run has ended. While it is paused we wait for as long as it takes."""
        waited_s = 0.0
        while True:
            try:
                generation = self.membership.wait_for_generation(self._after, PAUSE_POLL_S)
                return None if self._comes_too_late() else generation
            except PeerLostError as error:
                # The time of a pause does not count against the wait that follows.
                waited_s = 0.0 if self.requests.is_paused() else waited_s + PAUSE_POLL_S
                if waited_s >= self.plan.timeout_s:
                    message = f"no generation with {self.name} in it was formed within {waited_s:g} s"
                    raise PeerLostError(message, error.hint) from error
            forms_none = self.requests.is_paused() or self.requests.is_without_coordinator()
            if self._comes_too_late() or (forms_none and self.requests.wants_stop()):
                return None
            if self.requests.takes_save() and self.committed:
                self.save(self.committed, self.carried)

    def _comes_too_late(self) -> bool:
        """Whether the other workers ended without this one. They publish their end before they leave.

        A worker that lacks only the last step, or round, repeats it, and ends with the same bits.
        """
        self.is_late = self.committed < self.requests.ended_at() - longest_commit(self.plan)
        return self.is_late

    def _take_part(self, generation: pb.Generation) -> Steps[LoopResult]:
        """Train until all is done; PeerLostError if the generation ends, with the replica at a whole step."""
        number = generation.number
        self.rank = list(generation.workers).index(self.name)
        names = list(generation.workers)
        world = self.enter(number, names, self.rank, lambda: self.membership.is_over(number))
        self.membership.when_over(world.wake_all)
        try:
            behind = self._heal(world, generation)
            return (yield from self._train(world, self._sharing(world, generation, behind)))
        finally:
            self.membership.when_over(lambda: None)
            self._lost = world.lost
            world.close()

    def _see_to_the_end(self, number: int, why: str) -> None:
        """Wait for the end of a generation with broken connections; revoke it if no worker was lost."""
        until_s = monotonic_s() + GRACE_S
        while not self.membership.is_over(number):
            if monotonic_s() > until_s:
                self.revoke(number, f"{self.name}: {why}")
                return
            SystemClock().sleep(POLL_S)

    def _heal(self, world: TrainingWorld, generation: pb.Generation) -> list[str]:
        """Bring all replicas to the same state; the names of workers that were behind, or are new."""
        evaluated = 0 if self.evaluations is None else self.evaluations.count
        healed = synchronize_state(world, self.committed, evaluated, self._snapshot, self.take_up)
        self.committed = healed.committed
        if self.was_saved_at and self.committed == 0:
            raise TrainingError(
                f"the run was saved after step {self.was_saved_at}, and no checkpoint of it can be read",
                "restore one from a backup and resume, or start a new run; this one cannot start over",
            )
        self._write(
            "generation_entered",
            number=generation.number,
            rank=self.rank,
            workers=",".join(generation.workers),
            committed=healed.committed,
            healed_from=_source(healed, generation),
            healed_bytes=healed.nbytes,
            state=f"{self._fingerprint():08x}",
            why=generation.reason,
            **self._policy_field(),
        )
        return [generation.workers[rank] for rank in healed.behind]

    def _policy_field(self) -> dict[str, str]:
        return {"way": initial_policy(self.plan, self.carried).value} if self.plan.mode == "adaptive" else {}

    def _snapshot(self) -> Snapshot:
        both = with_strategy(self.replica.snapshot(), self.carried)
        if self.evaluations is None:
            return both
        also = self.evaluations.live()
        return Snapshot({**both.tensors, **also.tensors}, {**both.facts, **also.facts})

    def take_up(self, saved: Snapshot) -> None:
        """Continue from the state of another worker, or of a checkpoint."""
        self.replica.restore(saved)
        self.carried = strategy_tensors(saved)
        if self.evaluations is not None:
            self.evaluations.restore(saved)

    def _record_memory_reset(self, reason: str) -> None:
        """The error memories of compression are empty at the begin of this generation, in all workers."""
        compress = self.plan.compress
        if self.committed == 0 or compress is None or not compress.has_state:
            return
        why = f"generation {self.generation} begins at step {self.committed} and {reason}"
        self._write("error_memory_reset", why=why)
        if self.rank == 0:
            self.listener.note(f"error memory reset: {why}")

    def _train(self, world: TrainingWorld, sharing: AgreedShares) -> Steps[LoopResult]:
        if not world.keeps_memories:
            self._record_memory_reset("shares no memory")
        strategy = strategy_in(
            self.plan, world, Rank(self.rank), self.clock, sharing, self.replica.arena.state.device
        )
        strategy.restore(self.carried)
        strategy.prepare(self.replica, StepClock(self.committed))
        try:
            return (yield from self.worker_for(strategy, world).steps(StepClock(self.finished)))
        except PeerLostError:
            strategy.undo()
            self.has_left = sharing.has_left
            raise
        finally:
            self.committed = strategy.committed
            self.finished = self.finished + strategy.gradients
            self.steps_done = strategy.steps_done
            self.carried = strategy.snapshot()
            strategy.close()

    def _sharing(self, world: TrainingWorld, generation: pb.Generation, behind: list[str]) -> AgreedShares:
        assert self.plan.elastic is not None, "the run is elastic"
        if self.plan.mode == "adaptive":
            return AdaptiveSharing(
                world.board(),
                world.window(WINDOW_STEPS),
                plan=self.plan,
                generation=generation.number,
                names=list(generation.workers),
                newcomers=behind,
                carried=self.carried,
                rank=self.rank,
                best=self._best,
                wants_leave=self.requests.wants_leave,
                listener=self.listener,
            )
        return AgreedShares(
            world.board(),
            names=list(generation.workers),
            rank=self.rank,
            shards=draws_of(self.plan).count if self.plan.mode == "fedavg" else self.plan.num_workers,
            on_slow=self.plan.elastic.on_slow,
            best=self._best,
            wants_leave=self.requests.wants_leave,
            listener=self.listener,
        )

    def _fingerprint(self) -> int:
        """Hash of all parameters and buffers; equal in all workers that enter a generation."""
        arena = self.replica.arena
        return zlib.crc32(arena.state[: arena.layout.tail_start].cpu().numpy().tobytes())

    def _write(self, kind: str, **fields: str | int | None) -> None:
        self.log.write(kind, **fields)
        self.log.flush()


def _source(healed: HealResult, generation: pb.Generation) -> str | None:
    return None if healed.source is None else generation.workers[healed.source]

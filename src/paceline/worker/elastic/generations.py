"""Elastic worker: trains through generations of workers, with the same replica.

The workers of a generation enter it together, bring every replica to the newest committed step, and run the
training loop. When the generation ends, because a worker was lost or has joined, each worker undoes what was
not committed and enters the next generation. The process stays, and nothing is read from disk. A worker that
was asked to leave does so after a step that all workers have committed.
"""

import gc
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.checkpoints.snapshot import Snapshot, from_bytes, to_bytes
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import Clock, SystemClock
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
from paceline.transport.generation_world import (
    BOARD_ROW_WORDS,
    GenerationBoard,
    GenerationWindow,
    GenerationWorld,
)
from paceline.transport.shm import BARRIER_SLOTS, Barrier
from paceline.transport.shm_collective import ShmRounds, ShmShards
from paceline.worker.checkpointing import strategy_tensors, with_strategy
from paceline.worker.elastic.sharing import (
    AdaptiveSharing,
    AgreedShares,
    BestSpeed,
    DecisionListener,
    initial_policy,
)
from paceline.worker.evaluation import Evaluations
from paceline.worker.loop import LoopResult, Worker
from paceline.worker.replica import Replica

# Rank 0 makes the shared memory and writes its location to a file of this generation.
# Each worker publishes how many steps it has committed. A worker with fewer than the
# maximum copies the whole state from the memory of one that has it, checked by its hash.

BOARD = 5  # where the words of every step begin
_COMMITTED, _EVALUATED, _BYTES, _HASH, ROOM_WORD = range(BOARD)  # the last is for the training
_PLACES = 3 * BARRIER_SLOTS  # for the training, for making the state equal, and for evaluating
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class HealResult:
    """Result of the synchronization of state."""

    committed: int
    source: int | None  # the rank whose memory provided it; None: this worker had it
    nbytes: int
    behind: tuple[int, ...] = ()  # the ranks that were behind the newest state


def enter_generation(
    folder: Path, number: int, rank: int, parties: int, is_over: Callable[[], bool]
) -> GenerationWorld:
    path = folder / f"{number}.json"
    if rank == 0:
        fd = os.memfd_create(_memory_name(number))
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": os.getpid(), "fd": fd}))
        draft.rename(path)
    else:
        fd = _open(path, number, is_over)
    return GenerationWorld(
        fd,
        rank,
        parties=parties,
        semaphores_each=_PLACES,
        words_each=BOARD + BOARD_ROW_WORDS,
        is_over=is_over,
    )


def _open(path: Path, number: int, is_over: Callable[[], bool]) -> int:
    while not is_over():
        try:
            location = json.loads(path.read_text())
            fd = os.open(f"/proc/{location['pid']}/fd/{location['fd']}", os.O_RDWR)
            # Rank 0 may be in a later generation by now, and that one's memory have the same number.
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_memory_name(number)} "):
                return fd
            os.close(fd)
        except OSError:
            pass  # rank 0 is not there yet, or not any more: then the generation ends
        SystemClock().sleep(POLL_S)
    raise PeerLostError(f"generation {number} ended before it started", "the run continues in the next one")


def _memory_name(number: int) -> str:
    return f"paceline-{number}"


def synchronize_state(
    world: GenerationWorld,
    committed: int,
    evaluated: int,
    snapshot: Callable[[], Snapshot],
    restore: Callable[[Snapshot], None],
    timeout_s: float,
) -> HealResult:
    """Every worker has the newest committed state when this returns.

    Of equally many committed steps, the state with more evaluations is newer.
    """
    barrier = Barrier(
        world, world.rank, clock=SystemClock(), timeout_s=timeout_s, first_semaphore=BARRIER_SLOTS
    )
    world.words[world.rank, _COMMITTED] = committed
    world.words[world.rank, _EVALUATED] = evaluated
    barrier.wait()
    known = [(int(row[_COMMITTED]), int(row[_EVALUATED])) for row in world.words]
    newest = max(known)
    source = known.index(newest)
    if min(known) == newest:
        return HealResult(newest[0], None, 0)
    behind = tuple(rank for rank, progress in enumerate(known) if progress < newest)
    data = to_bytes(snapshot()) if world.rank == source else b""
    if world.rank == source:
        world.words[source, _BYTES] = len(data)
        world.words[source, _HASH] = _hash_word(data)
    barrier.wait()
    size = int(world.words[source, _BYTES])
    (buffer,) = world.map_vectors(1, size, torch.uint8)
    if world.rank == source:
        buffer.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    barrier.wait()
    if known[world.rank] == newest:
        return HealResult(newest[0], None, 0, behind)
    received = buffer.numpy().tobytes()
    if _hash_word(received) != int(world.words[source, _HASH]):
        raise TrainingError(
            "the state received from another worker does not match its hash",
            "this should never happen on one machine: check its memory",
        )
    restore(from_bytes(received))
    return HealResult(newest[0], source, size, behind)


def _hash_word(data: bytes) -> int:
    return int.from_bytes(sha256(data).digest()[:7], "little")  # fits into a signed word


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
    plan: Plan, world: GenerationWorld, rank: Rank, clock: Clock, sharing: ShardSharing
) -> ElasticStrategy:
    shards = plan.num_workers
    timeout_s = plan.timeout_s
    if plan.mode == "ssgd":
        slots = ShmShards(world, rank, shards=shards, clock=clock, timeout_s=timeout_s)
        return Sharded(plan, Links(rank=rank, world_size=world.parties, clock=clock, shards=slots), sharing)
    rounds = ShmRounds(world, rank, shards=shards, clock=clock, timeout_s=timeout_s, word=ROOM_WORD)
    links = Links(rank=rank, world_size=world.parties, clock=clock, shards=rounds, rounds=rounds)
    if isinstance(sharing, AdaptiveSharing):
        return ShardedAdaptive(plan, links, sharing)
    return _kind(plan)(plan, links, sharing)


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
    folder: Path  # where the workers of a generation find each other
    worker_for: Callable[[ElasticStrategy, GenerationWorld], Worker]  # in a generation
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

    @property
    def generation(self) -> int:
        """The one that we are in, or were last."""
        return self._after

    def run(self) -> LoopResult:
        while True:
            generation = self._next_generation()
            if generation is None:
                is_done = is_finished(self.plan, self.committed, self.carried)
                return LoopResult(StepClock(self.finished), was_stopped=not is_done)
            self._after = generation.number
            try:
                result = self._take_part(generation)
                self.requests.report_end(self.committed)
                return result
            except PeerLostError as error:
                why = error.what
            self._write("generation_lost", number=generation.number, committed=self.committed, why=why)
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

    def _take_part(self, generation: pb.Generation) -> LoopResult:
        """Train until all is done; PeerLostError if the generation ends, with the replica at a whole step."""
        number = generation.number
        parties = len(generation.workers)
        self.rank = list(generation.workers).index(self.name)
        world = enter_generation(
            self.folder, number, self.rank, parties, lambda: self.membership.is_over(number)
        )
        self.membership.when_over(world.wake_all)
        try:
            behind = self._heal(world, generation)
            return self._train(world, self._sharing(world, generation, behind))
        finally:
            self.membership.when_over(lambda: None)
            world.close()

    def _heal(self, world: GenerationWorld, generation: pb.Generation) -> list[str]:
        """Bring all replicas to the same state; the names of workers that were behind, or are new."""
        evaluated = 0 if self.evaluations is None else self.evaluations.count
        healed = synchronize_state(
            world, self.committed, evaluated, self._snapshot, self.take_up, self.plan.timeout_s
        )
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

    def _train(self, world: GenerationWorld, sharing: AgreedShares) -> LoopResult:
        strategy = strategy_in(self.plan, world, Rank(self.rank), self.clock, sharing)
        strategy.restore(self.carried)
        strategy.prepare(self.replica, StepClock(self.committed))
        try:
            return self.worker_for(strategy, world).run(StepClock(self.finished))
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

    def _sharing(self, world: GenerationWorld, generation: pb.Generation, behind: list[str]) -> AgreedShares:
        assert self.plan.elastic is not None, "the run is elastic"
        if self.plan.mode == "adaptive":
            return AdaptiveSharing(
                GenerationBoard(world, BOARD),
                GenerationWindow(world, WINDOW_STEPS),
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
            GenerationBoard(world, BOARD),
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
        return zlib.crc32(arena.state[: arena.layout.tail_start].numpy().tobytes())

    def _write(self, kind: str, **fields: str | int | None) -> None:
        self.log.write(kind, **fields)
        self.log.flush()


def _source(healed: HealResult, generation: pb.Generation) -> str | None:
    return None if healed.source is None else generation.workers[healed.source]

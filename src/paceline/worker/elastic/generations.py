"""How does a worker go on when others die or come? Generation after generation, with the same replica.

A generation is entered together, everybody is brought to the newest committed
step, and then the one training loop runs. When the generation ends, because
somebody was lost or came, what was not committed is undone, and the next
generation is entered. The process stays; nothing is read from disk. A worker
that was asked to leave goes after a step that everybody has committed.
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
from paceline.transport.generation_world import BOARD_ROW_WORDS as BOARD_WORDS
from paceline.transport.generation_world import GenerationBoard, GenerationWindow, GenerationWorld
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

# Rank 0 makes the shared memory and says where in a file that only this
# generation uses. Everybody says how many steps it has committed; the most wins,
# and whoever has fewer takes the whole state from the memory of one who has it,
# checked by its hash.

BOARD = 5  # where the words of every step begin
_COMMITTED, _EVALUATED, _BYTES, _HASH, ROOM_WORD = range(BOARD)  # the last is for the training
_PLACES = 3 * BARRIER_SLOTS  # for the training, for making the state equal, and for evaluating
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class HealResult:
    """What it took until all had the same state."""

    committed: int
    source: int | None  # whose memory it came from; None: we had it
    nbytes: int
    behind: tuple[int, ...] = ()  # the ranks of all who had less than the newest


def enter_generation(
    folder: Path, number: int, rank: int, parties: int, is_over: Callable[[], bool]
) -> GenerationWorld:
    place = folder / f"{number}.json"
    if rank == 0:
        fd = os.memfd_create(_memory_name(number))
        folder.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": os.getpid(), "fd": fd}))
        draft.rename(place)
    else:
        fd = _open(place, number, is_over)
    return GenerationWorld(
        fd, rank, parties=parties, semaphores_each=_PLACES, words_each=BOARD + BOARD_WORDS, is_over=is_over
    )


def _open(place: Path, number: int, is_over: Callable[[], bool]) -> int:
    while not is_over():
        try:
            found = json.loads(place.read_text())
            fd = os.open(f"/proc/{found['pid']}/fd/{found['fd']}", os.O_RDWR)
            # Rank 0 may be in a later generation by now, and that one's memory have the same number.
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_memory_name(number)} "):
                return fd
            os.close(fd)
        except OSError:
            pass  # rank 0 is not there yet, or not any more: then the generation ends
        SystemClock().sleep(POLL_S)
    raise PeerLostError(f"generation {number} ended before it began", "the run goes on in the next one")


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
    meeting = Barrier(world, world.rank, clock=SystemClock(), timeout_s=timeout_s, first_place=BARRIER_SLOTS)
    world.words[world.rank, _COMMITTED] = committed
    world.words[world.rank, _EVALUATED] = evaluated
    meeting.meet()
    known = [(int(mine[_COMMITTED]), int(mine[_EVALUATED])) for mine in world.words]
    newest = max(known)
    source = known.index(newest)
    if min(known) == newest:
        return HealResult(newest[0], None, 0)
    behind = tuple(rank for rank, progress in enumerate(known) if progress < newest)
    data = to_bytes(snapshot()) if world.rank == source else b""
    if world.rank == source:
        world.words[source, _BYTES], world.words[source, _HASH] = len(data), _hash_word(data)
    meeting.meet()
    size = int(world.words[source, _BYTES])
    (room,) = world.map_vectors(1, size, torch.uint8)
    if world.rank == source:
        room.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    meeting.meet()
    if known[world.rank] == newest:
        return HealResult(newest[0], None, 0, behind)
    received = room.numpy().tobytes()
    if _hash_word(received) != int(world.words[source, _HASH]):
        raise TrainingError(
            "the state that another worker sent does not have the hash that it said",
            "this should never happen on one machine: check its memory",
        )
    restore(from_bytes(received))
    return HealResult(newest[0], source, size, behind)


def _hash_word(data: bytes) -> int:
    return int.from_bytes(sha256(data).digest()[:7], "little")  # fits into a signed word


class ElasticStrategy(Strategy, Protocol):
    """What a strategy also has that may be interrupted for good at any moment."""

    @property
    def committed(self) -> int:
        """Steps of the run that everybody who goes on agrees on."""
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
        """The replica as it was at the last commit."""
        ...


def strategy_in(
    plan: Plan, world: GenerationWorld, rank: Rank, clock: Clock, sharing: ShardSharing
) -> ElasticStrategy:
    shards, timeout_s = plan.num_workers, plan.timeout_s
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
    """Is all work of the run done by whoever has committed so much, and carries this along?"""
    if plan.mode == "fedavg":  # it counts rounds
        return DONE in carried and int(carried[DONE].sum()) == plan.total_gradients
    return committed >= plan.steps


PAUSE_POLL_S = 0.2


class GenerationSource(Protocol):
    """Where a worker hears who trains together."""

    def wait_for_generation(self, after: int, timeout_s: float) -> pb.Generation | None:
        """The newest one behind `after` that has us in it; None: the run has ended."""
        ...

    def is_over(self, number: int) -> bool: ...

    def when_over(self, call: Callable[[], None]) -> None: ...

    def close(self, reason: str) -> None: ...


class SupervisorRequests(Protocol):
    """What whoever started the workers asks of them."""

    def wants_stop(self) -> bool: ...

    def wants_leave(self) -> bool: ...

    def is_without_coordinator(self) -> bool:
        """The run ends without its coordinator: it forms no generation any more."""
        ...

    def is_paused(self) -> bool:
        """Too few are left, and an operator is waited for."""
        ...

    def takes_save(self) -> bool: ...

    def says_end(self, committed: int) -> None: ...

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
    asked: SupervisorRequests
    voice: DecisionListener
    save: Callable[[int, dict[str, Tensor]], None]  # while nobody trains: the steps committed, and `carried`
    revoke: Callable[[int, str], None] = lambda _number, _why: None  # a generation that cannot go on
    committed: int = 0  # steps of the run that our replica has; fedavg: rounds
    carried: dict[str, Tensor] = field(default_factory=dict)  # what a strategy hands to the next generation's
    evaluations: Evaluations | None = None  # None: the run is evaluated at its end only
    steps_done: int = 0  # of the run; as `committed`, but never rounds
    finished: int = 0  # gradients that this process has computed
    rank: int = 0  # in the newest generation
    was_saved_at: int = 0  # the newest checkpoint's step, if there are some and none can be read
    has_left: bool = False  # as we were asked to
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
                ran = self._take_part(generation)
                self.asked.says_end(self.committed)
                return ran
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
                # How long it was paused does not count against whoever is waited for afterwards.
                waited_s = 0.0 if self.asked.is_paused() else waited_s + PAUSE_POLL_S
                if waited_s >= self.plan.timeout_s:
                    what = f"no generation with {self.name} in it was formed within {waited_s:g} s"
                    raise PeerLostError(what, error.hint) from error
            forms_none = self.asked.is_paused() or self.asked.is_without_coordinator()
            if self._comes_too_late() or (forms_none and self.asked.wants_stop()):
                return None
            if self.asked.takes_save() and self.committed:
                self.save(self.committed, self.carried)

    def _comes_too_late(self) -> bool:
        """Did the others end without us? They said so before they left, and so before we could be alone.

        Whoever lacks only the last step, or round, makes it again, and ends with the same bits.
        """
        self.is_late = self.committed < self.asked.ended_at() - longest_commit(self.plan)
        return self.is_late

    def _take_part(self, generation: pb.Generation) -> LoopResult:
        """Until all is done; PeerLostError: the generation is over, and our replica is at a whole step."""
        number, parties = generation.number, len(generation.workers)
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
        """Who was behind, or is new."""
        evaluated = 0 if self.evaluations is None else self.evaluations.count
        healed = synchronize_state(
            world, self.committed, evaluated, self._snapshot, self.take_up, self.plan.timeout_s
        )
        self.committed = healed.committed
        if self.was_saved_at and self.committed == 0:
            raise TrainingError(
                f"the run was saved after step {self.was_saved_at}, and no checkpoint of it can be read",
                "bring them back from a copy and resume, or start a new run: this one does not begin anew",
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
            **self._way(),
        )
        return [generation.workers[rank] for rank in healed.behind]

    def _way(self) -> dict[str, str]:
        return {"way": initial_policy(self.plan, self.carried).value} if self.plan.mode == "adaptive" else {}

    def _snapshot(self) -> Snapshot:
        both = with_strategy(self.replica.snapshot(), self.carried)
        if self.evaluations is None:
            return both
        also = self.evaluations.live()
        return Snapshot({**both.tensors, **also.tensors}, {**both.facts, **also.facts})

    def take_up(self, saved: Snapshot) -> None:
        """Go on from what another worker, or a checkpoint, had."""
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
            self.committed, self.finished = strategy.committed, self.finished + strategy.gradients
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
                wants_leave=self.asked.wants_leave,
                voice=self.voice,
            )
        return AgreedShares(
            GenerationBoard(world, BOARD),
            names=list(generation.workers),
            rank=self.rank,
            shards=draws_of(self.plan).count if self.plan.mode == "fedavg" else self.plan.num_workers,
            on_slow=self.plan.elastic.on_slow,
            best=self._best,
            wants_leave=self.asked.wants_leave,
            voice=self.voice,
        )

    def _fingerprint(self) -> int:
        """Of all parameters and buffers: all who enter a generation must say the same."""
        arena = self.replica.arena
        return zlib.crc32(arena.state[: arena.layout.tail_start].numpy().tobytes())

    def _write(self, kind: str, **fields: str | int | None) -> None:
        self.log.write(kind, **fields)
        self.log.flush()


def _source(healed: HealResult, generation: pb.Generation) -> str | None:
    return None if healed.source is None else generation.workers[healed.source]

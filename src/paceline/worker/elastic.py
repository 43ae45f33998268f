"""How does a worker go on when others die or come? Generation after generation, with the same replica.

A generation is entered together, everybody is brought to the newest committed
step, and then the one training loop runs. When the generation ends, because
somebody was lost or came, what was not committed is undone, and the next
generation is entered. The process stays; nothing is read from disk. A worker
that was asked to leave goes after a step that everybody has committed.
"""

import gc
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from paceline.checkpoints.store import Snapshot
from paceline.clock import Clock
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import PeerLostError, TrainingError
from paceline.events.log import Log
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.plan.rounds import draws_of, longest_commit
from paceline.sync.hindsight import KEPT
from paceline.transport.generation_board import GenerationBoard
from paceline.transport.generation_window import GenerationWindow
from paceline.transport.generation_world import GenerationWorld
from paceline.worker.adapting import AdaptedShares, way_in
from paceline.worker.elastic_strategies import ElasticStrategy, is_finished, strategy_in
from paceline.worker.evaluating import Evaluations
from paceline.worker.generation import BOARD, Healed, enter, make_equal
from paceline.worker.loop import Ran, Worker
from paceline.worker.replica import Replica
from paceline.worker.saving import of_strategy, with_strategy
from paceline.worker.sharing import AgreedShares, OwnBest, Voice

PAUSE_LOOK_S = 0.2


class Generations(Protocol):
    """Where a worker hears who trains together."""

    def wait_for_generation(self, after: int, timeout_s: float) -> pb.Generation | None:
        """The newest one behind `after` that has us in it; None: the run has ended."""
        ...

    def is_over(self, number: int) -> bool: ...

    def when_over(self, call: Callable[[], None]) -> None: ...

    def close(self, reason: str) -> None: ...


class Asked(Protocol):
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
    membership: Generations
    folder: Path  # where the workers of a generation find each other
    worker_for: Callable[[ElasticStrategy, GenerationWorld], Worker]  # in a generation
    asked: Asked
    voice: Voice
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
    _best: OwnBest = field(default_factory=OwnBest)
    _after: int = 0  # the last generation that we were in

    @property
    def generation(self) -> int:
        """The one that we are in, or were last."""
        return self._after

    def run(self) -> Ran:
        while True:
            generation = self._next_generation()
            if generation is None:
                is_done = is_finished(self.plan, self.committed, self.carried)
                return Ran(StepClock(self.finished), was_stopped=not is_done)
            self._after = generation.number
            try:
                ran = self._take_part(generation)
                self.asked.says_end(self.committed)
                return ran
            except PeerLostError as error:
                why = error.what
            self._write("generation_lost", number=generation.number, committed=self.committed, why=why)
            if self.has_left:
                return Ran(StepClock(self.finished), was_stopped=False)
            gc.collect()  # the old world stays mapped as long as anything refers to it

    def _next_generation(self) -> pb.Generation | None:
        """None: the run has ended. While it is paused we wait for as long as it takes."""
        waited_s = 0.0
        while True:
            try:
                generation = self.membership.wait_for_generation(self._after, PAUSE_LOOK_S)
                return None if self._comes_too_late() else generation
            except PeerLostError as error:
                # How long it was paused does not count against whoever is waited for afterwards.
                waited_s = 0.0 if self.asked.is_paused() else waited_s + PAUSE_LOOK_S
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

    def _take_part(self, generation: pb.Generation) -> Ran:
        """Until all is done; PeerLostError: the generation is over, and our replica is at a whole step."""
        number, parties = generation.number, len(generation.workers)
        self.rank = list(generation.workers).index(self.name)
        world = enter(self.folder, number, self.rank, parties, lambda: self.membership.is_over(number))
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
        healed = make_equal(
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
        return {"way": way_in(self.plan, self.carried).value} if self.plan.mode == "adaptive" else {}

    def _snapshot(self) -> Snapshot:
        both = with_strategy(self.replica.snapshot(), self.carried)
        if self.evaluations is None:
            return both
        also = self.evaluations.live()
        return Snapshot({**both.tensors, **also.tensors}, {**both.facts, **also.facts})

    def take_up(self, saved: Snapshot) -> None:
        """Go on from what another worker, or a checkpoint, had."""
        self.replica.restore(saved)
        self.carried = of_strategy(saved)
        if self.evaluations is not None:
            self.evaluations.restore(saved)

    def _train(self, world: GenerationWorld, sharing: AgreedShares) -> Ran:
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
            return AdaptedShares(
                GenerationBoard(world, BOARD),
                GenerationWindow(world, KEPT),
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


def _source(healed: Healed, generation: pb.Generation) -> str | None:
    return None if healed.source is None else generation.workers[healed.source]

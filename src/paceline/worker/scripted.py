"""How is a worker behind a parameter server made to do what a log says it did?

Where workers push gradients, the gradient of what was read is computed and
nothing else, without the strategy: what a strategy lost or changed on the way
then shows. Where they push parameters (easgd), a worker has a life of its own
between two pushes: there the strategy itself works, on a store that hands it
what the log recorded and notes when it has pushed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from paceline.compression.push import Pusher
from paceline.ids import Clock, Rank, Step, Version
from paceline.strategies.port import Begun, Strategy
from paceline.sync.assignment import Share
from paceline.transport.ports import NO_TRAFFIC, Pulled, Slots, StoreHandler, Traffic
from paceline.worker.gradient import GradientSource
from paceline.worker.replica import Replica


class ScriptedStore:
    """A worker's end of a server that is told what to do by someone else."""

    def __init__(self, handler: StoreHandler, rank: Rank) -> None:
        self._handler, self._rank = handler, rank
        self.next: Pulled | None = None  # what the coming pull is answered with
        self.has_pushed = False

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self.slots = Slots.new(numel, dtype, push_bytes)
        self._handler.attach(self._rank, self.slots)
        return self.slots

    def join(self, clock: Clock) -> None: ...

    def pull(self) -> Pulled:
        assert self.next is not None, "the log has a read for every pull"
        pulled, self.next = self.next, None
        return pulled

    def push(self, *, wants_stop: bool) -> Traffic:
        self.has_pushed = True
        return NO_TRAFFIC

    def is_obsolete(self) -> bool:
        return False  # what the log says was applied was wanted

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return False

    def again(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScriptedWorker:
    replica: Replica
    strategy: Strategy
    store: ScriptedStore
    source: GradientSource
    pusher: Pusher | None  # codes what is pushed, when the plan compresses

    def compute(self, step: Step, share: Share) -> Iterator[tuple[Step, float]]:
        """Leave the share's gradient where it is pushed; the step and its loss."""
        yield step, self.source.compute(self.replica, share)
        arena = self.replica.arena
        arena.buffers_to_gradients()
        if self.pusher is not None:
            self.pusher.fill(self.store.slots.gradients, arena.gradients)

    def work_until_push(self, first: Step, version: int, position: int) -> Iterator[tuple[Step, float]]:
        """Do what was handed out, from this step on; each step and its loss, as they come."""
        self.store.next = Pulled(Version(version), position, NO_TRAFFIC)
        self.store.has_pushed = False
        step = first
        while not self.store.has_pushed:
            begun = self.strategy.begin_step(step)
            assert isinstance(begun, Begun), "a read was for a share of the work"
            yield step, self.source.compute(self.replica, begun.share)
            self.strategy.finish_step(step, wants_stop=False)
            step = Step(step + 1)

"""Base of the modes with a parameter server: the worker's half, pull → compute → push.

ps, asgd, ssp, dssp, backup and easgd differ in how the server admits updates and
assigns work, so their files define only that.
"""

from collections.abc import Set as AbstractSet
from typing import ClassVar

from torch import Tensor

from paceline.compression.push import pusher_of
from paceline.core.ids import Clock, Step, Version
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.strategies.server_updates import Correction, Exchange, Plain
from paceline.sync.assignment import Assignment, Static, WorkUnit
from paceline.transport.ports import NO_TRAFFIC


class PushPull:
    channel: ClassVar[Channel] = Channel.STORE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.store is not None, "push and pull need a parameter store"
        self._store = links.store
        self._plan = plan
        self._links = links
        self._num_workers = links.world_size
        self._version = Version(0)
        self._has_left = False

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._arena = arena
        self._pusher = pusher_of(self._plan, arena, self._links.rank, self._links.clock)
        push_bytes = None if self._pusher is None else self._pusher.slot_bytes
        self._slots = self._store.open(arena.layout.numel, arena.layout.dtype, push_bytes)
        # On a CPU the model is in the slots without a copy; a GPU has its own memory.
        self._copies = arena.state.device != self._slots.parameters.device
        if not self._copies:
            arena.place_state(self._slots.parameters)
        if not self._copies and self._pusher is None:
            arena.place_gradients(self._slots.gradients)
        self._store.join(clock)

    def begin_step(self, step: Step) -> Begun | None:
        pulled = self._store.pull()
        self._version = pulled.version
        if self._copies:
            self._arena.state.copy_(self._slots.parameters)
        if pulled.position is None:  # a script has received the parameters at the end of the run
            self._has_left = True
            return None
        share = WorkUnit.at(pulled.position, self._num_workers)
        return Begun(share=share, traffic=pulled.traffic, version=pulled.version)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._arena.buffers_to_gradients()
        coding = NO_TRAFFIC
        if self._pusher is not None:
            coding = self._pusher.fill(self._slots.gradients, self._arena.gradients)
        elif self._copies:
            self._slots.gradients.copy_(self._arena.gradients)
        traffic = self._store.push(wants_stop=wants_stop)
        return Outcome(traffic=traffic + coding, version=self._version)

    def reset_error_memory(self) -> None:
        """The last push was refused, and its share is computed again: what it left out is void."""
        if self._pusher is not None:
            self._pusher.reset()

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        if not self._has_left:
            self._store.leave()
        self._store.close()

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        return Static(plan.num_workers, plan.steps)

    @classmethod
    def exchange(cls, plan: Plan) -> Exchange | None:
        return None

    @classmethod
    def correction(cls, plan: Plan) -> Correction:
        return Plain()

"""Single worker without synchronization: the baseline that every other mode is compared to."""

from typing import ClassVar

from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share


class Single:
    channel: ClassVar[Channel] = Channel.ALONE

    def __init__(self, plan: Plan, links: Links) -> None:
        self._plan = plan
        self._links = links

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        # The gradient is not needed as one vector; on a GPU gathering it would cost a pass over memory.
        if replica.arena.state.is_cuda and not self._plan.byzantine:
            replica.arena.gathers_gradients = False

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._replica.update()
        return Outcome(apply_ns=apply_ns, synced=True, stop=wants_stop)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...

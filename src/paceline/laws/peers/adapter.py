"""What do the adapters of all libraries have in common? They train as their manuals say, on our loop.

The library's object is built in `start`, and `after_update` calls it as its
manual tells a user to. Nothing is added: no averaging of buffers, none after
the last step, unless the library does it.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from paceline.errors import PacelineError
from paceline.ids import Clock, Step
from paceline.laws.peers.group import CollectiveGroup
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share


class PeerStrategy:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "the channel asks for one"
        self._plan, self._links, self._collective = plan, links, links.collective
        self._group = CollectiveGroup(links.collective)

    def prepare(self, replica: Replica, clock: Clock) -> None:
        if clock != 0:
            raise PacelineError(
                f"{type(self).__name__} cannot go on after {clock} steps: its library has no state to resume",
                "use --mode localsgd or diloco, or start a new run",
            )
        self._replica = replica
        replica.arena.gathers_gradients = False  # libraries look at `.grad` as backward left it
        self.start(replica.arena.module)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        """The wish to stop is not heard: no library here has a way to tell it to the others."""
        apply_ns = self.update(step)
        traffic, reductions = self._group.take()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=reductions > 0)

    def start(self, model: nn.Module) -> None:
        raise NotImplementedError

    def update(self, step: Step) -> int:
        """The optimizer's step, and whatever the library does after it."""
        raise NotImplementedError

    def is_last(self, step: Step) -> bool:
        return step + 1 == self._plan.steps

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        self._collective.close()


def local_update(replica: Replica) -> int:
    """One optimizer step that leaves `.grad` as it was: our optimizers want a zero where there is none."""
    without = [p for p in replica.arena.module.parameters() if p.grad is None]
    for parameter in without:
        parameter.grad = torch.zeros_like(parameter)
    apply_ns = replica.update()
    for parameter in without:
        parameter.grad = None
    return apply_ns


class HookedOptimizer(torch.optim.Optimizer):
    """A replica's update as a torch optimizer, for libraries that hang themselves on its hooks."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.arena.module.parameters(), {})
        self._replica = replica
        self.apply_ns = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # torch's returns the loss
        self.apply_ns = local_update(self._replica)

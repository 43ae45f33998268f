"""1-bit Adam (Tang 2021, arXiv 2102.02888): Adam at first, then signs of the momentum.

During the first `freeze_after` steps this is ssgd with Adam, bit by bit. Then
the second moment is frozen, and each worker mixes its own gradient into the
common momentum; these momenta are averaged as signs with error feedback both
ways, and everybody moves by m / (√v + ε). A frozen v is what makes it work:
the rest of Adam is linear, so errors can be made up for. Adam's correction of
v for its short past is frozen too, so that the step does not jump.
"""

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from paceline.errors import PacelineError
from paceline.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Codec, Compression, Plan
from paceline.strategies.means import Mean, mean_of
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.sync.averaging import mean_weight
from paceline.transport.arena import STOP_FLAG

SIGNS = Compression(codec=Codec.SIGN)


@runtime_checkable
class Freezable(Protocol):
    """An Adam whose second moment can be frozen (tasks/optim.py)."""

    @property
    def is_frozen(self) -> bool: ...

    def freeze(self) -> None: ...

    def to_momentum(self) -> None: ...


class Onebit:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "onebit meets by a collective"
        self._plan, self._links, self._collective = plan, links, links.collective
        self._weight = mean_weight(links.rank, plan.batch_sizes)
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._replica, self._arena, self._adam = replica, arena, _adam_of(replica)
        shared = self._collective.allocate(arena.layout.numel, arena.layout.dtype)
        shared.copy_(arena.state)
        self._collective.broadcast(shared)
        arena.state.copy_(shared)
        arena.place_gradients(shared.zero_())
        self._exact, self._signs = (self._mean_of(compress, shared) for compress in (None, SIGNS))
        self._signs.restore(self._saved)

    def _mean_of(self, compress: Compression | None, shared: Tensor) -> Mean:
        plan, layout = replace(self._plan, compress=compress), self._arena.layout
        return mean_of(plan, self._links, shared, lossy_end=layout.buffers_start, pieces=layout.parameters)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena = self._arena
        if self._weight != 1.0:
            arena.gradient_part.mul_(self._weight)
        if step >= self._plan.strategy.freeze_after:
            if not self._adam.is_frozen:
                self._adam.freeze()
            self._adam.to_momentum()
        arena.buffers_to_gradients()
        tail = arena.gradients[arena.layout.tail_start :]
        tail[STOP_FLAG] = float(wants_stop)
        traffic = (self._signs if self._adam.is_frozen else self._exact).reduce()
        stop = bool(tail[STOP_FLAG] > 0)
        arena.buffers_from_gradients()
        apply_ns = self._replica.update()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=True, stop=stop)

    def snapshot(self) -> dict[str, Tensor]:
        return self._signs.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()


def _adam_of(replica: Replica) -> Freezable:
    # Not part of the port: no other strategy needs to know which optimizer it is.
    optimizer: object = getattr(replica, "optimizer", None)
    if not isinstance(optimizer, Freezable):
        raise PacelineError(
            f"onebit freezes the second moment of Paceline's own Adam, but has a {type(optimizer).__name__}",
            "use --optimizer adam or --optimizer adamw",
        )
    return optimizer

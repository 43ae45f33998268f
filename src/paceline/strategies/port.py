"""What must a way of agreeing do? Six methods, called by the one training loop.

    prepare → (begin_step → forward, backward → finish_step)* → close

A strategy sees a replica (the model as vectors, and `update()`), the plan and
the links to the others; never the task, the launcher or another strategy. A
class with these methods can be named as `--mode module:Class` and proved with
`paceline laws --mode module:Class`.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from paceline.core.clock import Clock as WallClock
from paceline.core.clock import SystemClock
from paceline.core.ids import Clock, Rank, Step
from paceline.events.read import History
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.server_updates import Correction, Exchange
from paceline.sync.adaptive_setting import Adapted
from paceline.sync.admission import Rule
from paceline.sync.assignment import Assignment, WorkUnit
from paceline.transport.arena import Arena
from paceline.transport.ports import NO_TRAFFIC, Collective, ParameterStore, Peers, Rounds, Shards, Traffic


class Replica(Protocol):
    """A worker's own copy of what is trained."""

    arena: Arena
    forward: nn.Module  # what the loss is computed with; a strategy may wrap it

    @property
    def keeps_gradients(self) -> bool:
        """Does `update` only read the gradients?"""
        ...

    def update(self) -> int:
        """One optimizer step on the gradients as they now are, clipped if the plan says so.

        Returns how long it took, in nanoseconds.
        """
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's own tensors by name, to read or to write in place."""
        ...

    def forget_optimizer_state(self) -> None:
        """The next update is made as if it were the first."""
        ...

    def optimizer_numbers(self) -> dict[str, Tensor]:
        """Tensors of a single number that a torch optimizer keeps, likewise."""
        ...

    def count_steps(self, steps: int) -> None:
        """Let the optimizer count so many steps behind it."""
        ...


@runtime_checkable
class Weighted(Protocol):
    """What a replica also has whose gradient is handed to torch to be averaged, unweighted."""

    loss_weight: float  # which the gradient is multiplied by


@runtime_checkable
class OwnState(Protocol):
    """What a replica also has whose place another may take: all that averaging leaves to each worker."""

    def own_state(self) -> bytes:
        """The optimizer's state, and buffers that are counters."""
        ...

    def restore_own_state(self, saved: bytes) -> None: ...

    def average_own_states(
        self, saved: Sequence[bytes], weights: Sequence[float], *, with_numbers: bool = False
    ) -> list[bytes]:
        """The same own states, but for the optimizers' tensors: these become their weighted mean.

        `with_numbers`: also those that are a single number.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How this worker reaches the others; the channel of its strategy says which one is set."""

    rank: Rank
    world_size: int
    clock: WallClock = field(default_factory=SystemClock)
    collective: Collective | None = None
    store: ParameterStore | None = None
    peers: Peers | None = None
    shards: Shards | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The parameters are ready: which share of the work to do with them."""

    share: WorkUnit
    traffic: Traffic = NO_TRAFFIC
    version: int = 0  # of the parameters, where a server counts them


def own_share(plan: Plan, links: Links, step: Step) -> Begun | None:
    """What a worker does whose work nobody hands out: its own steps, one after another."""
    return Begun(share=WorkUnit(links.rank, step)) if step < plan.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step's agreement cost and decided."""

    traffic: Traffic = NO_TRAFFIC
    apply_ns: int = 0
    version: int = 0  # of the parameters the gradient was computed on
    synced: bool = False  # after this step all replicas hold the same bits
    stop: bool = False  # the workers agreed to stop after this step
    shares_done: int | None = None  # by all workers; said where they make different numbers of steps
    resumable: bool = False  # what all save after this same step fits together, even if replicas differ
    peer: int | None = None  # whom we averaged with, if with one worker alone
    exchange: int | None = None  # the number of that exchange in the order of all, from 1
    adapted: Adapted | None = None  # the workers changed how they share out the work
    skipped: str | None = None  # no update was made, because of these shards' gradients
    is_last: bool = False  # the run's work is done; said where its steps do not say so


class Strategy(Protocol):
    channel: ClassVar[Channel]

    def __init__(self, plan: Plan, links: Links) -> None: ...

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """Place the replica's vectors; `clock` steps are already behind us (0, or resumed)."""
        ...

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        """Make the parameters ready for this step; may wait. None: there is nothing left to do.

        An Outcome: the others agreed on something that this worker had no step in; it is asked again.
        """
        ...

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        """The gradients are in the arena: agree, and update."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """What a checkpoint needs beyond the replica's state and the optimizer's."""
        ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Interruptible(Protocol):
    """What a strategy also has if others may go on without our step; the loop then asks while it computes."""

    def is_obsolete(self) -> bool:
        """Is the gradient that we are computing not wanted any more? Cheap, and never waits."""
        ...

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        """Let this much time pass, or less: True, at once, when our gradient is not wanted any more."""
        ...

    def abandon_step(self) -> None:
        """We have stopped in the middle of the step; `begin_step` comes next."""
        ...


@runtime_checkable
class Settles(Protocol):
    """What a strategy also has whose replica holds something of its worker's own between two commits."""

    def settle(self) -> None:
        """Everything is committed: let the replica be as every worker would have it."""
        ...


@runtime_checkable
class Decides(Protocol):
    """What a strategy also has that decides while it runs: a way to decide again as was recorded."""

    @classmethod
    def following(cls, history: History) -> Callable[[Plan, Links], Strategy]: ...


class ServerSide(Protocol):
    """What a strategy whose channel is STORE also says: how its server admits updates."""

    @classmethod
    def rule(cls, plan: Plan) -> Rule: ...

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        """How its server hands out the work that is not yet `done`."""
        ...

    @classmethod
    def correction(cls, plan: Plan) -> Correction:
        """What its server does about stale gradients."""
        ...

    @classmethod
    def exchange(cls, plan: Plan) -> Exchange | None:
        """How its server takes in parameters; None: what is pushed are gradients, for the optimizer."""
        ...

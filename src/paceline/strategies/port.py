"""The strategy port: six methods that the training loop (worker/loop.py) calls.

    prepare → (begin_step → forward, backward → finish_step)* → close

A strategy uses a replica (the model as vectors, and `update()`), the plan and
the links to the other workers; never the task, the launcher or another strategy.
A class with these methods can be named as `--mode module:Class` and checked with
`paceline laws --mode module:Class`. See docs/guides/your-own-strategy.md.

Optional capabilities are protocols of their own: `Interruptible`, `Settles`,
`Decides`, and `ServerSide` for modes with a parameter server.
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
from paceline.transport.ports import (
    NO_TRAFFIC,
    Collective,
    LogicalRanks,
    ParameterStore,
    Peers,
    Rounds,
    Shards,
    Traffic,
)


class Replica(Protocol):
    """A worker's own copy of the model, with its optimizer."""

    arena: Arena
    forward: nn.Module  # the module that computes the loss; a strategy may wrap it
    step: int  # step of the run that is computed or updated

    @property
    def keeps_gradients(self) -> bool:
        """Whether `update` only reads the gradients."""
        ...

    def update(self) -> int:
        """One optimizer step on the current gradients, clipped if the plan sets a limit.

        Returns how long it took, in nanoseconds.
        """
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's own tensors by name, to read or to write in place."""
        ...

    def forget_optimizer_state(self) -> None:
        """Reset the optimizer: the next update is made as if it were the first."""
        ...

    def optimizer_numbers(self) -> dict[str, Tensor]:
        """The optimizer's tensors of a single number by name, to read or to write in place."""
        ...

    def count_steps(self, steps: int) -> None:
        """Set the optimizer's step counter."""
        ...


@runtime_checkable
class Weighted(Protocol):
    """A replica that weights its loss, for gradients that torch averages unweighted."""

    loss_weight: float  # the gradient is multiplied by this


@runtime_checkable
class OwnState(Protocol):
    """A replica whose local state (what averaging leaves to each worker) can be saved and replaced."""

    def own_state(self) -> bytes:
        """The optimizer's state, and the integer buffers."""
        ...

    def restore_own_state(self, saved: bytes) -> None:
        """Restore what `own_state` returned."""
        ...

    def average_own_states(
        self, saved: Sequence[bytes], weights: Sequence[float], *, with_numbers: bool = False
    ) -> list[bytes]:
        """The same own states, with the optimizers' tensors replaced by their weighted mean.

        `with_numbers`: also the tensors of a single number.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """This worker's links to the others; the channel of its strategy determines which one is set."""

    rank: Rank
    world_size: int
    clock: WallClock = field(default_factory=SystemClock)
    collective: Collective | None = None
    store: ParameterStore | None = None
    peers: Peers | None = None
    shards: Shards | None = None
    rounds: Rounds | None = None
    ranks: LogicalRanks | None = None  # for compressed means of shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A step has begun: the parameters are ready for this share of the work."""

    share: WorkUnit
    traffic: Traffic = NO_TRAFFIC
    version: int = 0  # version of the parameters, in modes with a server


def own_share(plan: Plan, links: Links, step: Step) -> Begun | None:
    """The step of a worker with static work: its own shares, one after another; None after the last."""
    return Begun(share=WorkUnit(links.rank, step)) if step < plan.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a step: what its synchronization cost and decided."""

    traffic: Traffic = NO_TRAFFIC
    apply_ns: int = 0
    version: int = 0  # version of the parameters that the gradient was computed on
    synced: bool = False  # after this step all replicas hold the same bits
    stop: bool = False  # the workers agreed to stop after this step
    shares_done: int | None = None  # by all workers; set in modes whose workers differ in steps
    resumable: bool = False  # checkpoints of all workers after this step are consistent, if replicas differ
    peer: int | None = None  # the rank this worker averaged with, if with exactly one
    exchange: int | None = None  # the number of that exchange in the global order, from 1
    adapted: Adapted | None = None  # the workers changed the adaptive setting
    skipped: str | None = None  # the shards whose gradients prevented the update
    is_last: bool = False  # the run's work is done; set if the step count does not imply it


class Strategy(Protocol):
    """A synchronization strategy. One instance belongs to one worker and is called by its training thread.

    Any method may raise PeerLostError when another worker is lost or silent; the loop does not catch it.
    """

    channel: ClassVar[Channel]  # the transport that `links` has

    def __init__(self, plan: Plan, links: Links) -> None: ...

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """Place the replica's vectors; `clock` steps are already done (0, or resumed)."""
        ...

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        """Make the parameters ready for this step; may wait. None: there is nothing left to do.

        An Outcome: the other workers synchronized without a step of this worker; the loop calls again.
        """
        ...

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        """Synchronize and update; the gradients are in the arena.

        `wants_stop`: this worker was requested to stop. Returns the cost, and whether all workers stop
        after this step (`Outcome.stop`), on which they must agree.
        """
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """The strategy's part of a checkpoint, in addition to the replica's and the optimizer's state."""
        ...

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Restore what `snapshot` returned. Called before `prepare`, when a run is resumed."""
        ...

    def close(self) -> None:
        """Release what the strategy holds. Called after the last step (elastic: of each generation)."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A strategy whose current step may become obsolete; the loop checks while it computes."""

    def is_obsolete(self) -> bool:
        """Whether the gradient that this worker computes is no longer needed. Cheap, and never waits."""
        ...

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        """Sleep for at most this long; returns True at once when the gradient is no longer needed."""
        ...

    def abandon_step(self) -> None:
        """Abandon a step that the loop stopped in the middle; the next call is `begin_step`."""
        ...


@runtime_checkable
class Settles(Protocol):
    """A strategy whose replica holds worker-specific state between two commits."""

    def settle(self) -> None:
        """Everything is committed: put the replica into the state that is equal on all workers."""
        ...


@runtime_checkable
class Decides(Protocol):
    """A strategy that makes decisions during a run; a replay repeats the recorded ones."""

    @classmethod
    def following(cls, history: History) -> Callable[[Plan, Links], Strategy]:
        """A constructor of strategies that repeat the decisions of this history."""
        ...


class ServerSide(Protocol):
    """The server's half of a strategy whose channel is STORE."""

    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        """The admission rule: which requests the server answers, and when."""
        ...

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        """The assignment of the work that is not yet `done`."""
        ...

    @classmethod
    def correction(cls, plan: Plan) -> Correction:
        """The server's correction of stale gradients."""
        ...

    @classmethod
    def exchange(cls, plan: Plan) -> Exchange | None:
        """The exchange, if workers push parameters; None: they push gradients, for the optimizer."""
        ...

"""Ports of a generation's world: `World` for its members, `TrainingWorld` for what trains in it.

All members make the same calls in the same order. No call waits longer than the plan's timeout without
hearing from a peer, and every wait ends at once with PeerLostError when the generation is over. The bits of
every mean are those of a sum in the order of shards, in each implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from paceline.core.clock import Clock
from paceline.transport.ports import Collective, LogicalRanks, Rounds, Shards


class BoardRow(NamedTuple):
    """The numbers of one worker at one step."""

    shard_ns: int  # duration of one of its shards, before the barrier; 0: it had none
    best_ns: int  # the minimum in its process; 0: not known yet
    leaves: int  # 1: after this step it leaves the run


class Board(Protocol):
    """One row of numbers per worker, exchanged at the mean that follows a `write`."""

    def write(self, row: BoardRow) -> None: ...

    def read(self) -> Sequence[BoardRow]:
        """All rows, by rank; once after each mean that this worker wrote for."""
        ...


class Window(Protocol):
    """The latest step times of each worker, exchanged at the mean that follows a `write`."""

    def write(self, seconds: Sequence[float]) -> None: ...

    def read(self) -> list[list[float]]:
        """All windows, by rank; once after each mean that this worker wrote for."""
        ...


class World(Protocol):
    """The members of one generation, and what they exchange before they train."""

    @property
    def rank(self) -> int: ...

    @property
    def parties(self) -> int: ...

    @property
    def lost(self) -> str:
        """The connection that broke while the generation was not known to be over; empty: none."""
        ...

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of all members, by rank; every member gives as many. It is a barrier."""
        ...

    def copy_state(self, sources: Mapping[int, int], data: bytes) -> bytes:
        """Send `data` to every rank that `sources` maps to this one; what this rank received, verified.

        TrainingError if it does not match its hash. A rank that `sources` does not name receives nothing.
        """
        ...

    def wake_all(self) -> None:
        """End this process's own waits if the generation is over. Called from another thread."""
        ...

    def close(self) -> None: ...


class TrainingWorld(World, Protocol):
    """The world as strategies, sharing rules and evaluations use it."""

    keeps_memories: bool  # the error memories of a lost worker's ranks are found by the others

    def shards(self, count: int, clock: Clock) -> Shards: ...

    def rounds(self, count: int, clock: Clock) -> Rounds: ...

    def ranked_rounds(self, count: int, clock: Clock, *, has_states: bool) -> tuple[Rounds, LogicalRanks]:
        """For a mean that is compressed or robust. `has_states`: shards have bytes of their own."""
        ...

    def board(self) -> Board: ...

    def window(self, kept: int) -> Window:
        """A window of at most `kept` numbers; all members make this call at the same point."""
        ...

    def collective(self, clock: Clock) -> Collective:
        """For evaluations between two steps."""
        ...


class EnterWorld(Protocol):
    """Enters the world of a generation; PeerLostError if the generation ends before."""

    def __call__(
        self, number: int, names: Sequence[str], rank: int, is_over: Callable[[], bool]
    ) -> TrainingWorld:
        """`names`: of all members, by rank."""
        ...

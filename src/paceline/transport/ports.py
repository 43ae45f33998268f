"""Transport ports: `Collective`, `Shards`/`Rounds`, `Peers` and `ParameterStore`.

Every adapter keeps the same guarantees: no wait is longer than the plan's timeout
(PeerLostError instead); a wait never polls; bytes are counted in both directions;
after a reduction every rank holds the same bits, summed in rank order where the
adapter controls the order (shared memory, in-process).
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from paceline.core.ids import Clock, Rank, Version


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of an exchange: bytes sent and received, and its time of waiting and coding."""

    bytes_out: int = 0
    bytes_in: int = 0
    wait_ns: int = 0
    codec_ns: int = 0  # compressing and decompressing
    bytes_saved: int = 0  # by compression; may be negative

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            self.wait_ns + other.wait_ns,
            self.codec_ns + other.codec_ns,
            self.bytes_saved + other.bytes_saved,
        )


NO_TRAFFIC = Traffic()


class Collective(Protocol):
    """Collective operations. All ranks make the same calls in the same order."""

    rank: Rank
    world_size: int

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector that this adapter can reduce without an extra copy, zeroed."""
        ...

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        """Replace `vector` (from `allocate`) by the mean over all ranks."""
        ...

    def broadcast(self, vector: Tensor) -> Traffic:
        """Replace `vector` (from `allocate`) by rank 0's."""
        ...

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        """Copies of the `vector` (from `allocate`) of all ranks, or of `sources`, in that order.

        All ranks call it. `targets` are the ranks that name this one as a source; the default is
        `sources`. With `sources` a rank waits for these only, and possibly until its targets have copied.
        """
        ...

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        """All-to-all: piece r of `vector` (from `allocate`) goes to rank r; the received pieces, by sender.

        The pieces are equal: the vector's length is a multiple of the number of ranks.
        """
        ...

    def close(self) -> None: ...


class Shards(Protocol):
    """The mean of the gradients of logical shards, from any worker. All workers make the same calls."""

    shards: int
    checks_finite: bool  # if not set, `is_finite` is always True

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for their mean."""
        ...

    def check(self) -> None:
        """Raise PeerLostError when the others continue without this worker; never waits."""
        ...

    def mean(self, own: Collection[int]) -> Traffic:
        """All slots are filled, those of the shards `own` by this worker; every shard by one worker.

        Computes their mean, summed in the order of shards, into the mean's slot.
        """
        ...

    def is_finite(self) -> bool:
        """Whether the last mean was finite. The result is the same on all workers."""
        ...

    def non_finite(self, own: Collection[int]) -> list[int]:
        """After a mean that was not finite: the shards that are not. All workers call it, as `mean`."""
        ...

    def settle(self) -> None:
        """Barrier: wait until all workers have read the slots, before any worker writes again."""
        ...

    def close(self) -> None: ...


class Rounds(Shards, Protocol):
    """`Shards` with state per shard, from which any surviving worker can continue."""

    memories: range  # entries of error memories, if they are kept here

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        """`mean`, and publish the bytes of this worker's entries; returns those of all entries, in order.

        Beside `LogicalRanks` no mean is computed, and there is an entry for each error memory, too.

        They stay valid until the call after the next one, and indefinitely without one: a worker
        that fails in a call still has the result of the previous one.
        """
        ...


class LogicalRanks(Protocol):
    """Collective operations of logical ranks, several of which may belong to one worker.

    Every worker has some ranks. A vector passed here is that of one of them, and stands for the vectors of
    all ranks that were allocated with it. All workers make the same calls in the same order.
    """

    own: range
    world_size: int  # all ranks

    def allocate(self, rank: Rank, numel: int, dtype: torch.dtype) -> Tensor:
        """The vector of one of this worker's ranks, zeroed. All ranks make the same calls."""
        ...

    def collect(self, slots: Sequence[Tensor], filled: Collection[int], *, everywhere: bool) -> Traffic:
        """Each worker has filled the slots of the shards `filled`: bring them to who needs them.

        These are all workers if `everywhere`, else the worker whose rank has the number of the shard.
        """
        ...

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        """Replace the vectors of all ranks by their mean, in the order of ranks."""
        ...

    def gather(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        """Copies of all ranks' vectors."""
        ...

    def swap(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        """`Collective.swap` of all ranks: what each of this worker's ranks received."""
        ...

    def plain_bytes(self, vector: Tensor) -> int:
        """Bytes that each worker would send for the exact mean of as many vectors of this size."""
        ...


@dataclass(frozen=True, slots=True)
class LockedVectors:
    """Vectors that this worker holds exclusively."""

    vectors: tuple[Tensor, ...]  # in the order requested
    number: int  # exchanges so far, including this one if it is one
    wait_ns: int


class Peers(Protocol):
    """One lockable vector per worker, for pairwise averaging; barriers only at the start and the end."""

    rank: Rank
    world_size: int

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        """This worker's vector, zeroed. Of `shares` of work `done` are done, by one exchange each."""
        ...

    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> AbstractContextManager[LockedVectors]:
        """Lock these ranks' vectors, one after another in the order given.

        Workers that always lock in the order of ranks cannot deadlock.
        """
        ...

    def take(self, *, wants_stop: bool) -> int | None:
        """The lowest share not yet taken; None when all are taken, or after any worker wanted to stop."""
        ...

    def barrier(self) -> tuple[tuple[Tensor, ...], Traffic]:
        """Wait for all workers; returns all vectors, readable until a worker holds one again."""
        ...

    def shares_taken(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Slots:
    """A worker's two vectors in a store: the one it reads and the one it pushes."""

    parameters: Tensor
    gradients: Tensor  # bytes (uint8) when they are compressed

    @classmethod
    def new(
        cls,
        numel: int,
        dtype: torch.dtype,
        push_bytes: int | None = None,
        device: torch.device | None = None,
    ) -> "Slots":
        parameters = torch.zeros(numel, dtype=dtype, device=device)
        if push_bytes is None:
            return cls(parameters, torch.zeros_like(parameters))
        return cls(parameters, torch.zeros(push_bytes, dtype=torch.uint8, device=device))


@dataclass(frozen=True, slots=True)
class PullResult:
    version: Version
    position: int | None  # the share of the work to do with it; None: nothing is left, the worker has left
    traffic: Traffic


class ParameterStore(Protocol):
    """A worker's end of a parameter server: join, then alternate pull and push, then leave."""

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        """The slots. With `push_bytes` the pushed vector is that many bytes instead of a gradient."""
        ...

    def join(self, clock: Clock) -> None:
        """Take part after `clock` gradients, and request parameters."""
        ...

    def pull(self) -> PullResult:
        """Wait for the server's answer; `slots.parameters` then holds that version.

        When nothing is left to do the server has already removed this worker: no `leave` is needed.
        """
        ...

    def push(self, *, wants_stop: bool) -> Traffic:
        """Send `slots.gradients` and request the next parameters.

        With `wants_stop` the server ends all workers at a common point.
        """
        ...

    def leave(self) -> None:
        """Stop taking part at once; the others continue."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Revocable(Protocol):
    """A store whose server may revoke a share while a worker computes it."""

    def is_obsolete(self) -> bool:
        """Whether the server has continued without the gradient being computed. Cheap; does not block."""
        ...

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        """Sleep for at most this long; returns True at once when the gradient is no longer needed."""
        ...

    def again(self) -> None:
        """Abandon the current gradient, and request parameters without a push."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The server has written this version into the rank's `slots.parameters`, for this share.

    A position of None: nothing is left to do, and the worker has left. Then the parameters, those at the end
    of the run, are written only with `has_parameters`.
    """

    rank: Rank
    version: Version
    position: int | None
    has_parameters: bool = True


@dataclass(frozen=True, slots=True)
class Obsolete:
    """Gradients of this rank on versions before `version` are no longer needed.

    The rank answers with `again`; a push that crosses with this message counts as that.
    """

    rank: Rank
    version: Version


@dataclass(frozen=True, slots=True)
class AtEnd:
    """No share is left for this rank; its answer follows when all work is done, after any time."""

    rank: Rank


Reply: TypeAlias = Answer | Obsolete | AtEnd


class StoreHandler(Protocol):
    """The parameter server's logic, the same behind every adapter. Calls are made one at a time."""

    def attach(self, rank: Rank, slots: Slots) -> None: ...

    def join(self, rank: Rank, clock: Clock) -> Sequence[Reply]: ...

    def push(self, rank: Rank, *, wants_stop: bool) -> Sequence[Reply]: ...

    def again(self, rank: Rank) -> Sequence[Reply]: ...

    def leave(self, rank: Rank) -> Sequence[Reply]: ...


class Request(IntEnum):
    JOIN = 1
    PUSH = 2
    PUSH_AND_STOP = 3
    LEAVE = 4
    AGAIN = 5

    @property
    def has_gradient(self) -> bool:
        return self in (Request.PUSH, Request.PUSH_AND_STOP)


def dispatch(handler: StoreHandler, rank: Rank, request: Request, clock: Clock) -> Sequence[Reply]:
    match request:
        case Request.JOIN:
            return handler.join(rank, clock)
        case Request.LEAVE:
            return handler.leave(rank)
        case Request.PUSH | Request.PUSH_AND_STOP:
            return handler.push(rank, wants_stop=request is Request.PUSH_AND_STOP)
        case Request.AGAIN:
            return handler.again(rank)

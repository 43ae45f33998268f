"""Transport ports: `Collective`, `Shards`/`Rounds`, `Peers` and `ParameterStore`.

Every adapter keeps the same guarantees: no wait is longer than the plan's timeout
(PeerLostError instead); a wait never polls; bytes are counted in both directions;
after a reduction every rank holds the same bits, summed in rank order where the
adapter controls the order (shared memory, in-process).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from paceline.core.ids import Clock, Rank, Version


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an exchange cost: bytes sent and received, and how much of its time was waiting and coding."""

    bytes_out: int = 0
    bytes_in: int = 0
    wait_ns: int = 0
    codec_ns: int = 0  # compressing and decompressing
    bytes_saved: int = 0  # that would have been sent in addition without compression; may be negative

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
    """Everybody meets. All ranks make the same calls in the same order."""

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

        All ranks call it. `targets` are those who name us as a source; left out, they are our
        sources. With `sources` a rank waits for them only, and perhaps for its targets to take theirs.
        """
        ...

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        """Piece r of our `vector` (from `allocate`) goes to rank r; the pieces meant for us, by sender.

        The pieces are equal: the vector's length is a multiple of the number of ranks.
        """
        ...

    def close(self) -> None: ...


class Shards(Protocol):
    """Gradients of logical shards meet, whoever computed them. All workers make the same calls."""

    shards: int
    looks_for_nan: bool  # whether `is_finite` has something to say

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for their mean."""
        ...

    def check(self) -> None:
        """PeerLostError when the others have gone on without us; never waits."""
        ...

    def mean(self) -> Traffic:
        """Every slot is filled: afterwards their mean, added up in the order of shards, is in its slot."""
        ...

    def is_finite(self) -> bool:
        """Was the last mean? Everybody gets the same answer."""
        ...

    def settle(self) -> None:
        """Wait until all have looked at the slots; nobody has written there meanwhile."""
        ...

    def close(self) -> None: ...


class Rounds(Shards, Protocol):
    """The same for shards that also keep something of their own; whoever lives can go on with it."""

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        """As `mean`, and our shards' own bytes are shown; those of all shards, in their order.

        They stay as they are until the call after the next one, and for ever when there is none:
        so whoever does not get through a call still has what the call before gave.
        """
        ...


@dataclass(frozen=True, slots=True)
class LockedVectors:
    """Vectors that nobody else reads or writes for now."""

    vectors: tuple[Tensor, ...]  # in the order in which they were asked for
    number: int  # exchanges so far, with this one if it is one
    wait_ns: int


class Peers(Protocol):
    """Each worker has a vector that the others may hold too; nobody meets between start and end."""

    rank: Rank
    world_size: int

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        """Our own vector, zeroed. Of `shares` of work, so many are `done`, by one exchange each."""
        ...

    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> AbstractContextManager[LockedVectors]:
        """These ranks' vectors for us alone, each waited for in the order given.

        Who always holds in the order of ranks can never deadlock with others who do.
        """
        ...

    def take(self, *, wants_stop: bool) -> int | None:
        """The lowest share that nobody has taken; None when all are, or once anyone wanted to stop."""
        ...

    def meet(self) -> tuple[tuple[Tensor, ...], Traffic]:
        """Everybody's vector, once all are here; they may be read until someone holds one again."""
        ...

    def shares_taken(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Slots:
    """A worker's two vectors in a store: what it reads and what it pushes."""

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
        size, kind = (numel, dtype) if push_bytes is None else (push_bytes, torch.uint8)
        return cls(
            torch.zeros(numel, dtype=dtype, device=device), torch.zeros(size, dtype=kind, device=device)
        )


@dataclass(frozen=True, slots=True)
class PullResult:
    version: Version
    position: int | None  # the share of the work to do with it; None: nothing is left, and we are out
    traffic: Traffic


class ParameterStore(Protocol):
    """A worker's end of a parameter server: join, then pull and push in turn, then leave."""

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        """With `push_bytes`, what is pushed is so many bytes instead of a vector like the parameters."""
        ...

    def join(self, clock: Clock) -> None:
        """Take part, with `clock` gradients behind us, and ask for parameters."""
        ...

    def pull(self) -> PullResult:
        """Wait until the server lets us read; `slots.parameters` then holds that version.

        With nothing left to do, the server has already let us go: no `leave` is needed.
        """
        ...

    def push(self, *, wants_stop: bool) -> Traffic:
        """Hand over `slots.gradients` and ask for what comes next.

        A wish to stop is the server's to fulfil: it lets all workers end at a common point.
        """
        ...

    def leave(self) -> None:
        """Stop taking part at once; the others go on."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Revocable(Protocol):
    """What a store also offers: a share that was handed out may be taken back while it is being computed."""

    def is_obsolete(self) -> bool:
        """Has the server gone on without the gradient that we are computing? Cheap, and never waits."""
        ...

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        """Let this much time pass, or less: True, at once, when our gradient is not wanted any more."""
        ...

    def again(self) -> None:
        """Ask for parameters without handing over a gradient: the one we were at is abandoned."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The server has put this version into the rank's `slots.parameters`, for this share.

    A position of None says that nothing is left to do; the worker is out, and read nothing.
    """

    rank: Rank
    version: Version
    position: int | None


@dataclass(frozen=True, slots=True)
class Obsolete:
    """What this rank computes on versions before `version` is not wanted any more.

    The rank says `again` when it has noticed; a push that crosses with this word counts as that.
    """

    rank: Rank
    version: Version


Reply: TypeAlias = Answer | Obsolete


class StoreHandler(Protocol):
    """The server's brain, the same behind every adapter. Calls are made one at a time."""

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

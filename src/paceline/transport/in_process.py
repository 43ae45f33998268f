"""In-process transport: collective, peers and parameter store for workers that are threads.

Exactly one thread runs at a time, in virtual time: a wait yields the turn (`Turns`
in virtual_time.py), so no locks are needed, and one seed gives one order of events.
The laws run on it, and tests use it to choose any order of workers. The server of a
store answers in the caller's own turn.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import SilenceError
from paceline.core.ids import Clock, Rank, Version
from paceline.transport.ports import (
    Answer,
    AtEnd,
    LockedVectors,
    Obsolete,
    PullResult,
    Reply,
    Slots,
    StoreHandler,
    Traffic,
)
from paceline.transport.shm_collective import mean_in_place, pieces
from paceline.transport.torch_dist import ring_bytes

AT_END_S = 1e9  # for the other workers to end, in virtual time


class Waiting(Protocol):
    def now_ns(self) -> int: ...

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float) -> bool:
        """Yield the turn until `is_true()`; False if the timeout passed first."""
        ...


class CollectiveState:
    """State shared by N in-process collectives: their vectors, and which ranks have arrived."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.allocations: list[list[Tensor | None]] = []
        self.arrived: list[set[int]] = []  # indexed by barrier number
        self.copies: dict[int, list[Tensor]] = {}  # copies of all ranks' vectors, by barrier number
        # Partial gathers (with sources), counted from 1:
        self.published: dict[int, dict[int, Tensor]] = {}  # vectors by gather and rank
        self.copied = [0] * world_size  # by rank: the last gather it has copied


class InProcessCollective:
    def __init__(
        self,
        state: CollectiveState,
        rank: Rank,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self.rank = rank
        self._device = device
        self.world_size = state.world_size
        self._state = state
        self._turns = turns
        self._timeout_s = timeout_s
        self._allocated = 0
        self._barriers = 0
        self._gathers = 0  # partial ones
        # Targets of the last two partial gathers.
        self._targets: tuple[Sequence[Rank], Sequence[Rank]] = ((), ())
        self._number: dict[int, int] = {}

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        number = self._allocated
        self._allocated += 1
        if number == len(self._state.allocations):
            self._state.allocations.append([None] * self.world_size)
        own = torch.zeros(numel, dtype=dtype, device=self._device)
        self._state.allocations[number][self.rank] = own
        self._number[own.data_ptr()] = number
        return own

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        wait_ns = self._barrier(mean_in_place, vector)
        size = ring_bytes(vector.nbytes, self.world_size)
        return Traffic(size, size, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        def copy_first(vectors: Sequence[Tensor]) -> None:
            for other in vectors[1:]:
                other.copy_(vectors[0])

        wait_ns = self._barrier(copy_first, vector)
        if self.rank != 0:
            return Traffic(0, vector.nbytes, wait_ns)
        return Traffic(vector.nbytes * (self.world_size - 1), 0, wait_ns)

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        if sources is not None:
            return self._gather_from(vector, sources, sources if targets is None else targets)
        vectors, wait_ns = self._copy_all(vector)
        moved = vector.nbytes * (self.world_size - 1)
        return [other.clone() for other in vectors], Traffic(moved, moved, wait_ns)

    def _gather_from(
        self, vector: Tensor, sources: Sequence[Rank], targets: Sequence[Rank]
    ) -> tuple[list[Tensor], Traffic]:
        self._gathers += 1
        number = self._gathers
        copied = self._state.copied
        published = self._state.published.setdefault(number, {})
        started_ns = self._turns.now_ns()
        before = self._targets[0]
        self._wait(lambda: all(copied[rank] >= number - 2 for rank in before))
        published[self.rank] = vector.clone()
        self._wait(lambda: all(rank in published for rank in sources))
        copies = [published[rank].clone() for rank in sources]
        copied[self.rank] = number
        self._targets = (self._targets[1], targets)
        if min(copied) >= number:  # the last rank removes the vectors
            self._state.published.pop(number, None)
        received, sent = (sum(rank != self.rank for rank in ranks) for ranks in (sources, targets))
        wait_ns = self._turns.now_ns() - started_ns
        return copies, Traffic(vector.nbytes * sent, vector.nbytes * received, wait_ns)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        if not self._turns.wait_until(is_true, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for neighbours, and nothing arrived",
                "they left the run",
            )

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        vectors, wait_ns = self._copy_all(vector)
        received = torch.cat([pieces(other, self.world_size)[self.rank] for other in vectors])
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, wait_ns)

    def _copy_all(self, vector: Tensor) -> tuple[list[Tensor], int]:
        """(copies of all ranks' vectors, nanoseconds of waiting)."""
        copies = self._state.copies
        number = self._barriers
        # A slow rank may still read the copies of the previous barrier, but none before that.
        copies.pop(number - 2, None)

        def copy_all(vectors: Sequence[Tensor]) -> None:
            copies[number] = [other.clone() for other in vectors]

        wait_ns = self._barrier(copy_all, vector)
        return copies[number], wait_ns

    def close(self) -> None: ...

    def _barrier(self, work: Callable[[Sequence[Tensor]], None], vector: Tensor) -> int:
        """Wait for all ranks; the last to arrive does the work for all. Nanoseconds of waiting."""
        number = self._barriers
        self._barriers += 1
        if number == len(self._state.arrived):
            self._state.arrived.append(set())
        arrived = self._state.arrived[number]
        arrived.add(self.rank)
        if len(arrived) == self.world_size:
            work([v for v in self._state.allocations[self._number[vector.data_ptr()]] if v is not None])
        started_ns = self._turns.now_ns()
        if not self._turns.wait_until(lambda: len(arrived) == self.world_size, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for {self.world_size - len(arrived)} other workers",
                "they left the run",
            )
        return self._turns.now_ns() - started_ns


class PeersState:
    """State shared by N in-process peers: their vectors, the locks on them, and common counters."""

    def __init__(self, world_size: int) -> None:
        self.vectors: list[Tensor] = [torch.empty(0)] * world_size
        self.held: set[Rank] = set()
        self.arrived = [0] * world_size  # barriers, by rank
        self.taken = 0
        self.end = 0
        self.exchanges = 0
        self.is_stopped = False


class InProcessPeers:
    def __init__(
        self,
        state: PeersState,
        rank: Rank,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = len(state.vectors)
        self._state = state
        self._turns = turns
        self._timeout_s = timeout_s
        self._device = device

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        own = torch.zeros(numel, dtype=dtype, device=self._device)
        self._state.vectors[self.rank] = own
        self._state.taken = done
        self._state.end = shares
        self._state.exchanges = done
        return own

    @contextmanager
    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> Iterator[LockedVectors]:
        state = self._state
        locked = set[Rank]()
        started_ns = self._turns.now_ns()
        try:
            for rank in ranks:
                self._wait(partial(self._is_free, rank), f"worker {rank}'s parameters")
                state.held.add(rank)
                locked.add(rank)
            state.exchanges += is_exchange
            wait_ns = self._turns.now_ns() - started_ns
            yield LockedVectors(tuple(state.vectors[rank] for rank in ranks), state.exchanges, wait_ns)
        finally:
            state.held -= locked

    def take(self, *, wants_stop: bool) -> int | None:
        state = self._state
        state.is_stopped |= wants_stop
        if state.is_stopped or state.taken >= state.end:
            return None
        state.taken += 1
        return state.taken - 1

    def barrier(self) -> tuple[tuple[Tensor, ...], Traffic]:
        arrived = self._state.arrived
        started_ns = self._turns.now_ns()
        arrived[self.rank] += 1
        number = arrived[self.rank]
        self._wait(lambda: min(arrived) >= number, "the other workers")
        moved = self._state.vectors[self.rank].nbytes * (self.world_size - 1)
        return tuple(self._state.vectors), Traffic(moved, moved, self._turns.now_ns() - started_ns)

    def shares_taken(self) -> int:
        return self._state.taken

    def close(self) -> None: ...

    def _is_free(self, rank: Rank) -> bool:
        return rank not in self._state.held

    def _wait(self, is_true: Callable[[], bool], awaited: str) -> None:
        if not self._turns.wait_until(is_true, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for {awaited}, and nothing arrived",
                "a worker left the run",
            )


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Messages of a server that its workers have not read yet."""

    answers: dict[Rank, Answer] = field(default_factory=dict)
    obsolete: dict[Rank, Version] = field(default_factory=dict)
    at_end: set[Rank] = field(default_factory=set)


class InProcessStore:
    """A worker's end of a server that answers in the caller's own turn."""

    def __init__(
        self,
        handler: StoreHandler,
        rank: Rank,
        mail: Mailbox,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self._device = device
        self._handler = handler
        self._rank = rank
        self._mail = mail  # shared by all workers of this server
        self._version = Version(0)
        self._turns = turns
        self._timeout_s = timeout_s
        self._push_bytes = 0
        self._pull_bytes = 0

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        slots = Slots.new(numel, dtype, push_bytes, device=self._device)
        self._push_bytes = slots.gradients.nbytes
        self._pull_bytes = slots.parameters.nbytes
        self._handler.attach(self._rank, slots)
        return slots

    def join(self, clock: Clock) -> None:
        self._note(self._handler.join(self._rank, clock))

    def pull(self) -> PullResult:
        started_ns = self._turns.now_ns()
        mail = self._mail

        def is_answered() -> bool:
            return self._rank in mail.answers

        if not self._turns.wait_until(lambda: is_answered() or self._rank in mail.at_end, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for the parameter server", "another worker blocks it"
            )
        if not is_answered() and not self._turns.wait_until(is_answered, AT_END_S):
            raise SilenceError("the run has not ended", "another worker failed")
        wait_ns = self._turns.now_ns() - started_ns
        answer = self._mail.answers.pop(self._rank)
        self._version = answer.version
        payload_bytes = 0 if answer.position is None else self._pull_bytes
        return PullResult(answer.version, answer.position, Traffic(0, payload_bytes, wait_ns))

    def push(self, *, wants_stop: bool) -> Traffic:
        self._note(self._handler.push(self._rank, wants_stop=wants_stop))
        return Traffic(self._push_bytes, 0, 0)

    def is_obsolete(self) -> bool:
        return self._mail.obsolete.get(self._rank, self._version) > self._version

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return self._turns.wait_until(self.is_obsolete, max(0.0, duration_s))

    def again(self) -> None:
        self._note(self._handler.again(self._rank))

    def leave(self) -> None:
        self._note(self._handler.leave(self._rank))

    def close(self) -> None: ...

    def _note(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            match reply:
                case Answer():
                    self._mail.answers[reply.rank] = reply
                case AtEnd(rank):
                    self._mail.at_end.add(rank)
                case Obsolete(rank, version):
                    self._mail.obsolete[rank] = version

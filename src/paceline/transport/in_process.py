"""The same promises for workers that are threads of one process, run one at a time.

Time is virtual and handed in as a `Turns` (see transport/turns.py): a wait
gives the turn away. This is what the laws run on, and what tests use to put
workers into any order they like.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import PeerLostError
from paceline.ids import Clock, Rank, Version
from paceline.transport.ports import Answer, Obsolete, Pulled, Reply, Slots, StoreHandler, Traffic
from paceline.transport.shm_collective import mean_in_place, pieces
from paceline.transport.torch_dist import ring_bytes


class Waiting(Protocol):
    def now_ns(self) -> int: ...

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float) -> bool:
        """Give the turn away until `is_true()`; False if the time ran out first."""
        ...


class Meeting:
    """What N in-process collectives share: their vectors, and who has arrived."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.allocations: list[list[Tensor | None]] = []
        self.arrived: list[set[int]] = []  # by the number of the meeting
        self.copies: dict[int, list[Tensor]] = {}  # of everybody's vector, by the number of the meeting


class InProcessCollective:
    def __init__(
        self,
        meeting: Meeting,
        rank: Rank,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self.rank = rank
        self._device = device
        self.world_size = meeting.world_size
        self._meeting = meeting
        self._turns = turns
        self._timeout_s = timeout_s
        self._allocated = 0
        self._meetings = 0
        self._number: dict[int, int] = {}

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        number, self._allocated = self._allocated, self._allocated + 1
        if number == len(self._meeting.allocations):
            self._meeting.allocations.append([None] * self.world_size)
        own = torch.zeros(numel, dtype=dtype, device=self._device)
        self._meeting.allocations[number][self.rank] = own
        self._number[own.data_ptr()] = number
        return own

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        wait_ns = self._meet(lambda vectors: mean_in_place(vectors), vector)
        size = ring_bytes(vector.nbytes, self.world_size)
        return Traffic(size, size, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        def copy_first(vectors: Sequence[Tensor]) -> None:
            for other in vectors[1:]:
                other.copy_(vectors[0])

        wait_ns = self._meet(copy_first, vector)
        if self.rank != 0:
            return Traffic(0, vector.nbytes, wait_ns)
        return Traffic(vector.nbytes * (self.world_size - 1), 0, wait_ns)

    def gather(self, vector: Tensor, sources: Sequence[Rank] | None = None) -> tuple[list[Tensor], Traffic]:
        chosen = range(self.world_size) if sources is None else sources
        everybody, wait_ns = self._see_everybody(vector)
        moved = vector.nbytes * sum(rank != self.rank for rank in chosen)
        return [everybody[rank].clone() for rank in chosen], Traffic(moved, moved, wait_ns)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        everybody, wait_ns = self._see_everybody(vector)
        received = torch.cat([pieces(other, self.world_size)[self.rank] for other in everybody])
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, wait_ns)

    def _see_everybody(self, vector: Tensor) -> tuple[list[Tensor], int]:
        copies, number = self._meeting.copies, self._meetings
        # Whoever is slow to look still needs this meeting's vectors; of the one before nobody does.
        copies.pop(number - 2, None)

        def copy_all(vectors: Sequence[Tensor]) -> None:
            copies[number] = [other.clone() for other in vectors]

        wait_ns = self._meet(copy_all, vector)
        return copies[number], wait_ns

    def close(self) -> None: ...

    def _meet(self, work: Callable[[Sequence[Tensor]], None], vector: Tensor) -> int:
        """The last to arrive does the work for all."""
        number, self._meetings = self._meetings, self._meetings + 1
        if number == len(self._meeting.arrived):
            self._meeting.arrived.append(set())
        arrived = self._meeting.arrived[number]
        arrived.add(self.rank)
        if len(arrived) == self.world_size:
            work([v for v in self._meeting.allocations[self._number[vector.data_ptr()]] if v is not None])
        started_ns = self._turns.now_ns()
        if not self._turns.wait_until(lambda: len(arrived) == self.world_size, self._timeout_s):
            raise PeerLostError(
                f"waited {self._timeout_s:g} s for {self.world_size - len(arrived)} other workers",
                "they stopped taking part",
            )
        return self._turns.now_ns() - started_ns


@dataclass(frozen=True, slots=True)
class Mail:
    """What a server has said to its workers, and they have not read yet."""

    answers: dict[Rank, Answer] = field(default_factory=dict)
    obsolete: dict[Rank, Version] = field(default_factory=dict)


class InProcessStore:
    """A worker's end of a server that answers in the caller's own turn."""

    def __init__(
        self,
        handler: StoreHandler,
        rank: Rank,
        mail: Mail,
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
        self._payload_bytes = 0

    def open(self, numel: int, dtype: torch.dtype) -> Slots:
        parameters, gradients = torch.zeros((2, numel), dtype=dtype, device=self._device)
        slots = Slots(parameters, gradients)
        self._payload_bytes = slots.gradients.nbytes
        self._handler.attach(self._rank, slots)
        return slots

    def join(self, clock: Clock) -> None:
        self._note(self._handler.join(self._rank, clock))

    def pull(self) -> Pulled:
        started_ns = self._turns.now_ns()
        if not self._turns.wait_until(lambda: self._rank in self._mail.answers, self._timeout_s):
            raise PeerLostError(
                f"waited {self._timeout_s:g} s for the parameter server", "another worker holds us back"
            )
        wait_ns = self._turns.now_ns() - started_ns
        answer = self._mail.answers.pop(self._rank)
        self._version = answer.version
        payload_bytes = 0 if answer.position is None else self._payload_bytes
        return Pulled(answer.version, answer.position, Traffic(0, payload_bytes, wait_ns))

    def push(self, *, wants_stop: bool) -> Traffic:
        self._note(self._handler.push(self._rank, wants_stop=wants_stop))
        return Traffic(self._payload_bytes, 0, 0)

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
                case Obsolete(rank, version):
                    self._mail.obsolete[rank] = version

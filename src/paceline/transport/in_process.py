"""How do threads of one process, run one at a time, average a vector? The promises of `Collective`.

Time is virtual and handed in as a `Turns` (see transport/turns.py): a wait
gives the turn away. This is what the laws run on, and what tests use to put
workers into any order they like.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import SilenceError
from paceline.ids import Rank
from paceline.transport.ports import Traffic
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
        self.shown: dict[int, dict[int, Tensor]] = {}  # to some: by the number of the gathering, then by rank
        self.copied = [0] * world_size  # by rank: gatherings from some that it has copied


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
        self._gatherings = 0
        self._heard_by: tuple[Sequence[Rank], Sequence[Rank]] = (
            (),
            (),
        )  # at the last two gatherings from some
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

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        if sources is not None:
            return self._gather_from(vector, sources, sources if targets is None else targets)
        everybody, wait_ns = self._see_everybody(vector)
        moved = vector.nbytes * (self.world_size - 1)
        return [other.clone() for other in everybody], Traffic(moved, moved, wait_ns)

    def _gather_from(
        self, vector: Tensor, sources: Sequence[Rank], targets: Sequence[Rank]
    ) -> tuple[list[Tensor], Traffic]:
        self._gatherings += 1
        number, copied = self._gatherings, self._meeting.copied
        shown = self._meeting.shown.setdefault(number, {})
        started_ns, before = self._turns.now_ns(), self._heard_by[0]
        self._wait(lambda: all(copied[rank] >= number - 2 for rank in before))
        shown[self.rank] = vector.clone()
        self._wait(lambda: all(rank in shown for rank in sources))
        copies = [shown[rank].clone() for rank in sources]
        copied[self.rank] = number
        self._heard_by = (self._heard_by[1], targets)
        if min(copied) >= number:  # whoever comes last clears the table
            self._meeting.shown.pop(number, None)
        heard, hearing = (sum(rank != self.rank for rank in ranks) for ranks in (sources, targets))
        wait_ns = self._turns.now_ns() - started_ns
        return copies, Traffic(vector.nbytes * hearing, vector.nbytes * heard, wait_ns)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        if not self._turns.wait_until(is_true, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for neighbours, and nothing came",
                "they stopped taking part",
            )

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
            raise SilenceError(
                f"waited {self._timeout_s:g} s for {self.world_size - len(arrived)} other workers",
                "they stopped taking part",
            )
        return self._turns.now_ns() - started_ns

"""How do threads of one process, run one at a time, hold each other's parameters? The promises of `Peers`.

Who waits gives the turn away; see in_process.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from paceline.errors import SilenceError
from paceline.ids import Rank
from paceline.transport.in_process import Waiting
from paceline.transport.ports import Held, Traffic


class Table:
    """What N in-process peers share: their vectors, who holds them, and what they count together."""

    def __init__(self, world_size: int) -> None:
        self.vectors: list[Tensor] = [torch.empty(0)] * world_size
        self.held: set[Rank] = set()
        self.arrived = [0] * world_size  # meetings, by rank
        self.taken, self.end, self.exchanges, self.is_stopped = 0, 0, 0, False


class InProcessPeers:
    def __init__(
        self,
        table: Table,
        rank: Rank,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = len(table.vectors)
        self._table, self._turns, self._timeout_s, self._device = table, turns, timeout_s, device

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        own = torch.zeros(numel, dtype=dtype, device=self._device)
        self._table.vectors[self.rank] = own
        self._table.taken, self._table.end, self._table.exchanges = done, shares, done
        return own

    @contextmanager
    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> Iterator[Held]:
        table, mine = self._table, set[Rank]()
        started_ns = self._turns.now_ns()
        try:
            for rank in ranks:
                self._wait(partial(self._is_free, rank), f"worker {rank}'s parameters")
                table.held.add(rank)
                mine.add(rank)
            table.exchanges += is_exchange
            wait_ns = self._turns.now_ns() - started_ns
            yield Held(tuple(table.vectors[rank] for rank in ranks), table.exchanges, wait_ns)
        finally:
            table.held -= mine

    def take(self, *, wants_stop: bool) -> int | None:
        table = self._table
        table.is_stopped |= wants_stop
        if table.is_stopped or table.taken >= table.end:
            return None
        table.taken += 1
        return table.taken - 1

    def meet(self) -> tuple[tuple[Tensor, ...], Traffic]:
        arrived, started_ns = self._table.arrived, self._turns.now_ns()
        arrived[self.rank] += 1
        number = arrived[self.rank]
        self._wait(lambda: min(arrived) >= number, "the other workers")
        moved = self._table.vectors[self.rank].nbytes * (self.world_size - 1)
        return tuple(self._table.vectors), Traffic(moved, moved, self._turns.now_ns() - started_ns)

    def shares_taken(self) -> int:
        return self._table.taken

    def close(self) -> None: ...

    def _is_free(self, rank: Rank) -> bool:
        return rank not in self._table.held

    def _wait(self, is_true: Callable[[], bool], what: str) -> None:
        if not self._turns.wait_until(is_true, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for {what}, and nothing came", "a worker stopped taking part"
            )

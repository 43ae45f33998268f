"""Replay of pairwise averaging: repeats the recorded exchanges and compares every bit.

Exchanges are numbered while both vectors are locked, and a worker that copies its parameters records how
many there were; so the changes of each vector are known in their order. The replay runs the real strategies
through the same acts, one after another in one process. No act waits, because all acts are in their
recorded order.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.ids import Clock, Rank, Step
from paceline.events.read import History
from paceline.events.schema import StepRow
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Strategy
from paceline.transport.ports import NO_TRAFFIC, LockedVectors, Traffic
from paceline.worker.byzantine import tamper
from paceline.worker.gradient import GradientSource
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.wiring import build_task, set_up_torch, strategy_class


@dataclass(frozen=True, slots=True)
class Verdict:
    is_equal: bool
    updates: int
    gradients: int
    state_sha256: str
    parted: str | None  # first difference between the replay and the record; None if equal


def same_bits(first: float, other: float) -> bool:
    """Equal as bits: two NaNs are equal, 0.0 and -0.0 are not."""
    return struct.pack("d", first) == struct.pack("d", other)


class _Act(NamedTuple):
    """One act, sorted in recorded order: by exchange number, an exchange before the copies taken after it."""

    after: int
    is_copy: bool
    rank: int
    row: StepRow


def replay_peers(plan: Plan, history: History, recorded: str, on_update: Callable[[int], None]) -> Verdict:
    return _Replay(plan, history, recorded, on_update).run()


class _Replay:
    def __init__(self, plan: Plan, history: History, recorded: str, on_update: Callable[[int], None]) -> None:
        set_up_torch(plan)
        self._plan = plan
        self._recorded = recorded
        self._on_update = on_update
        rows = [(rank, row) for rank, worker_rows in history.steps.items() for row in worker_rows]
        exchanges = [_Act(row.exchange, False, rank, row) for rank, row in rows if row.exchange is not None]
        copies = [_Act(row.version, True, rank, row) for rank, row in rows]
        self._acts = sorted(exchanges + copies)
        self._numbers = sorted(act.after for act in exchanges)
        task = build_task(plan)
        cpu = torch.device("cpu")
        clock = SystemClock()
        self._source = GradientSource(plan, task, cpu, clock)
        self._replicas = [Replica(plan, task, cpu, clock) for _ in range(plan.num_workers)]
        shared = _Shared([torch.empty(0)] * plan.num_workers)
        self._strategies: list[Strategy] = []
        for rank, replica in enumerate(self._replicas):
            positions = deque(row.position for row in history.steps.get(rank, []))
            peers = _ScriptedPeers(shared, Rank(rank), positions)
            links = Links(rank=Rank(rank), world_size=plan.num_workers, peers=peers)
            strategy: Strategy = strategy_class(plan.mode)(plan, links)
            strategy.prepare(replica, Clock(0))
            self._strategies.append(strategy)
        self._done = 0

    def run(self) -> Verdict:
        if self._numbers != list(range(1, len(self._numbers) + 1)):
            return self._verdict("the log does not number its exchanges 1, 2, 3 …")
        for act in self._acts:
            parted = self._copy(act) if act.is_copy else self._exchange(act)
            if parted is not None:
                return self._verdict(f"worker-{act.rank}, step {act.row.step}: {parted}")
        final = self._final()
        if final != self._recorded:
            recorded = f"where {self._recorded[:16]}… was recorded"
            return self._verdict(
                f"every loss agrees, but the final parameters hash to {final[:16]}… {recorded}"
            )
        return self._verdict(None)

    def _copy(self, act: _Act) -> str | None:
        start = self._strategies[act.rank].begin_step(Step(act.row.step))
        assert isinstance(start, Begun), "a recorded step has a share"
        loss = self._source.compute(self._replicas[act.rank], start.share)
        tamper(self._plan, self._replicas[act.rank].arena, worker=act.rank, step=act.row.step)
        if same_bits(loss, act.row.loss):
            return None
        return f"after {act.after} exchanges, the loss is {loss!r} where {act.row.loss!r} was recorded"

    def _exchange(self, act: _Act) -> str | None:
        outcome = self._strategies[act.rank].finish_step(Step(act.row.step), wants_stop=False)
        self._done += 1
        self._on_update(self._done)
        if outcome.peer == act.row.peer:
            return None
        return f"it averages with worker {outcome.peer} where worker {act.row.peer} was recorded"

    def _final(self) -> str:
        """Hash of the worker that exchanged last: all others had ended, and it took the mean."""
        return state_hash(self._replicas[self._acts[-1].rank].arena.named_state())

    def _verdict(self, parted: str | None) -> Verdict:
        return Verdict(parted is None, self._done, self._done, self._final(), parted)


class _Shared:
    def __init__(self, vectors: list[Tensor]) -> None:
        self.vectors = vectors
        self.exchanges = 0


class _ScriptedPeers:
    """Assigns the recorded work units, and never waits."""

    def __init__(self, shared: _Shared, rank: Rank, positions: deque[int]) -> None:
        self.rank = rank
        self.world_size = len(shared.vectors)
        self._shared = shared
        self._positions = positions

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        self._shared.vectors[self.rank] = torch.zeros(numel, dtype=dtype)
        return self._shared.vectors[self.rank]

    @contextmanager
    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> Iterator[LockedVectors]:
        self._shared.exchanges += is_exchange
        yield LockedVectors(tuple(self._shared.vectors[rank] for rank in ranks), self._shared.exchanges, 0)

    def take(self, *, wants_stop: bool) -> int | None:
        return self._positions.popleft() if self._positions else None

    def barrier(self) -> tuple[tuple[Tensor, ...], Traffic]:
        return tuple(self._shared.vectors), NO_TRAFFIC

    def shares_taken(self) -> int:
        return self._shared.exchanges

    def close(self) -> None: ...

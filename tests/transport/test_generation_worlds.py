"""Worlds of a generation, in shared memory and over TCP: the same results, and the same errors."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from tests.fixtures.waiting import until
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.sync.shard_balancing import shards_of
from paceline.transport.generation.device_slots import DeviceRounds, DeviceShards
from paceline.transport.generation.listener import MeshListener
from paceline.transport.generation.memory_world import enter_memory_world
from paceline.transport.generation.network_world import enter_network_world
from paceline.transport.generation.ports import BoardRow, TrainingWorld
from paceline.transport.handshake import Member, PeerTls
from paceline.transport.ports import Rounds, Shards
from paceline.transport.shm_collective import BLOCK
from paceline.worker.tls import client_tls_context, server_tls_context

SHARDS = 4
NUMEL = BLOCK + 100
KINDS = pytest.mark.parametrize("kind", ["memory", "network", "tls"])
# Vectors of the model's own device beside those of the world; on a machine without a GPU that is the CPU.
KINDS_OF_MEANS = pytest.mark.parametrize("kind", ["memory", "network", "tls", "device"])
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HOST = "127.0.0.1"
TIMEOUT_S = 60.0
T = TypeVar("T")


class Worlds:
    """Worlds of one generation, one for each thread that enters."""

    def __init__(self, kind: str, parties: int, folder: Path) -> None:
        self.is_over = False
        self._parties = parties
        self._folder = folder
        self._names = [f"worker-{rank}" for rank in range(parties)]
        self._listeners: list[MeshListener] = []
        if kind in ("network", "tls"):
            self._listeners = [self._listen(name, with_tls=kind == "tls") for name in self._names]
        self._members = [
            Member(name, 7, HOST, listener.port, listener.certificate)
            for name, listener in zip(self._names, self._listeners, strict=False)
        ]

    def _listen(self, name: str, *, with_tls: bool) -> MeshListener:
        tls = PeerTls(*server_tls_context(HOST), client_tls_context) if with_tls else None
        return MeshListener(HOST, run="a run", name=name, token=b"a secret", tls=tls)

    def enter(self, rank: int) -> TrainingWorld:
        if not self._listeners:
            return enter_memory_world(
                self._folder,
                1,
                rank=rank,
                parties=self._parties,
                timeout_s=TIMEOUT_S,
                is_over=lambda: self.is_over,
            )
        return enter_network_world(
            self._listeners[rank],
            1,
            self._members,
            rank,
            timeout_s=TIMEOUT_S,
            is_over=lambda: self.is_over,
        )

    def run(self, body: Callable[[TrainingWorld], T]) -> list[T]:
        """The body in the world of each rank; the results by rank."""

        def enter(rank: int) -> T:
            world = self.enter(rank)
            try:
                return body(world)
            finally:
                world.close()

        with ThreadPoolExecutor(self._parties) as threads:
            return list(threads.map(enter, range(self._parties)))

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


def shards_in(world: TrainingWorld, kind: str) -> Shards:
    shards = world.shards(SHARDS, SystemClock())
    return DeviceShards(shards, DEVICE) if kind == "device" else shards


def rounds_in(world: TrainingWorld, kind: str) -> Rounds:
    rounds = world.rounds(SHARDS, SystemClock())
    return DeviceRounds(rounds, DEVICE) if kind == "device" else rounds


def gradient(shard: int, step: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + shard))


def in_shard_order(step: int) -> Tensor:
    total = gradient(0, step)
    for shard in range(1, SHARDS):
        total = total + gradient(shard, step)
    return total / SHARDS


@KINDS_OF_MEANS
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_means_have_the_same_bits_in_every_world(kind: str, parties: int, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> bytes:
        shards = shards_in(world, kind)
        slots, mean = shards.allocate(NUMEL, torch.float32)
        own = shards_of(world.rank, workers=parties, shards=SHARDS)
        for step in range(3):
            for shard in own:
                slots[shard].copy_(gradient(shard, step))
            traffic = shards.mean(own)
            assert parties == 1 or (traffic.bytes_out > 0 and traffic.bytes_in > 0)
            shards.settle()
        result: bytes = mean.cpu().numpy().tobytes()
        shards.close()
        return result

    worlds = Worlds(kind, parties, tmp_path)
    assert set(worlds.run(body)) == {in_shard_order(2).numpy().tobytes()}
    worlds.close()


@KINDS_OF_MEANS
def test_a_shard_may_be_filled_by_another_worker_at_every_step(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> bytes:
        shards = shards_in(world, kind)
        slots, mean = shards.allocate(NUMEL, torch.float32)
        for step, own_of in enumerate(([[0, 1, 2, 3], []], [[], [0, 1, 2, 3]], [[1], [3, 0, 2]])):
            for shard in own_of[world.rank]:
                slots[shard].copy_(gradient(shard, step))
            shards.mean(own_of[world.rank])
            assert torch.equal(mean.cpu(), in_shard_order(step))
            shards.settle()
        return b""

    worlds = Worlds(kind, 2, tmp_path)
    worlds.run(body)
    worlds.close()


def own_bytes(shard: int, commit: int) -> bytes:
    """Longer and longer; those of shard 0 are empty."""
    return bytes([shard + 10 * commit]) * (shard * (1 + 3000 * commit))


@KINDS_OF_MEANS
def test_rounds_give_every_worker_the_bytes_of_all_shards(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> list[bytes]:
        rounds = rounds_in(world, kind)
        slots, _ = rounds.allocate(100, torch.float64)
        mine = shards_of(world.rank, workers=3, shards=SHARDS)
        before: list[Tensor] = []
        for commit in range(4):
            for shard in mine:
                slots[shard].fill_(shard)
            _, kept = rounds.commit({shard: own_bytes(shard, commit) for shard in mine})
            assert [as_bytes(part) for part in before] == [
                own_bytes(shard, commit - 1) for shard in range(SHARDS) if before
            ]
            before = kept
        return [as_bytes(part) for part in before]

    worlds = Worlds(kind, 3, tmp_path)
    assert worlds.run(body) == [[own_bytes(shard, 3) for shard in range(SHARDS)]] * 3
    worlds.close()


def as_bytes(vector: Tensor) -> bytes:
    data: bytes = vector.numpy().tobytes()
    return data


@KINDS_OF_MEANS
def test_all_workers_learn_which_shard_was_not_finite(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> list[object]:
        shards = shards_in(world, kind)
        shards.checks_finite = True
        slots, _ = shards.allocate(NUMEL, torch.float32)
        own = shards_of(world.rank, workers=2, shards=SHARDS)
        seen: list[object] = []
        for step in range(3):
            for shard in own:
                slots[shard].fill_(1.0)
                if (shard, step) == (1, 1):
                    slots[shard][NUMEL - 1] = torch.nan  # in the piece that the other one adds up
            shards.mean(own)
            seen.append(shards.is_finite() or shards.non_finite(own))
            shards.settle()
        return seen

    worlds = Worlds(kind, 2, tmp_path)
    assert worlds.run(body) == [[True, [1], True]] * 2
    worlds.close()


@KINDS
def test_rows_and_windows_travel_with_a_mean(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> list[object]:
        board = world.board()
        window = world.window(8)
        rounds = world.rounds(SHARDS, SystemClock())
        rounds.allocate(64, torch.float32)
        own = shards_of(world.rank, workers=3, shards=SHARDS)
        seen: list[object] = []
        for number in range(4):
            board.write(BoardRow(10 * number + world.rank, number, world.rank & 1))
            if number % 2:
                window.write([world.rank + 0.25] * (number + world.rank))
            rounds.commit(dict.fromkeys(own, b"its state"))
            seen.append(board.read())
            if number % 2:
                seen.append(window.read())
            rounds.mean(own)  # without rows
        return seen

    worlds = Worlds(kind, 3, tmp_path)
    expected: list[object] = []
    for number in range(4):
        expected.append([BoardRow(10 * number + rank, number, rank & 1) for rank in range(3)])
        if number % 2:
            expected.append([[rank + 0.25] * (number + rank) for rank in range(3)])
    assert [list(map(_plain, seen)) for seen in worlds.run(body)] == [list(map(_plain, expected))] * 3
    worlds.close()


def _plain(rows: object) -> object:
    assert isinstance(rows, Sequence)
    return [tuple(row) for row in rows]


@KINDS
def test_the_state_is_copied_from_those_that_have_it(kind: str, tmp_path: Path) -> None:
    states = [b"zero" * 300_000, b"one" * 200_000, b"", b""]

    def body(world: TrainingWorld) -> bytes:
        assert world.exchange((world.rank, 5)) == [[rank, 5] for rank in range(4)]
        received = world.copy_state({2: 0, 3: 1}, states[world.rank])
        world.exchange(())
        return received

    worlds = Worlds(kind, 4, tmp_path)
    assert worlds.run(body) == [b"", b"", states[0], states[1]]
    worlds.close()


@KINDS
def test_evaluations_have_a_collective(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> list[list[float]]:
        collective = world.collective(SystemClock())
        vector = collective.allocate(6, torch.float64)
        vector.fill_(world.rank + 1.0)
        gathered, _ = collective.gather(vector)
        collective.broadcast(vector)
        seen = [[float(copy[0]) for copy in gathered], vector.tolist()]
        vector.copy_(torch.arange(6) + 10 * world.rank)
        seen.append(collective.swap(vector)[0].tolist())
        vector.fill_(world.rank)
        collective.all_reduce_mean(vector)
        seen.append(vector.tolist())
        return seen

    worlds = Worlds(kind, 3, tmp_path)
    for rank, seen in enumerate(worlds.run(body)):
        swapped = [other * 10.0 + 2 * rank + number for other in range(3) for number in range(2)]
        assert seen == [[1.0, 2.0, 3.0], [1.0] * 6, swapped, [1.0] * 6]
    worlds.close()


@pytest.mark.parametrize("kind", ["network", "tls"])
def test_a_rank_may_gather_from_some_others_only(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> list[float]:
        collective = world.collective(SystemClock())
        vector = collective.allocate(3, torch.float32)
        vector.fill_(world.rank)
        around = [Rank((world.rank - 1) % 3), Rank(world.rank)]
        copies, _ = collective.gather(vector, around, [Rank((world.rank + 1) % 3)])
        return [float(copy[0]) for copy in copies]

    worlds = Worlds(kind, 3, tmp_path)
    assert worlds.run(body) == [[2.0, 0.0], [0.0, 1.0], [1.0, 2.0]]
    worlds.close()


@KINDS
def test_the_end_of_the_generation_ends_every_wait(kind: str, tmp_path: Path) -> None:
    """Rank 2 is frozen: it neither answers nor closes its connections."""
    waiting = [threading.Event(), threading.Event()]
    entered: list[TrainingWorld] = []

    def body(rank: int) -> str:
        world = worlds.enter(rank)
        entered.append(world)
        if rank == 2:
            return ""
        waiting[rank].set()
        with pytest.raises(PeerLostError):
            world.exchange((1,))
        return world.lost

    worlds = Worlds(kind, 3, tmp_path)
    with ThreadPoolExecutor(3) as threads:
        results = [threads.submit(body, rank) for rank in range(3)]
        until(lambda: len(entered) == 3, "all have entered")
        for event in waiting:
            event.wait()
        worlds.is_over = True
        for world in entered:
            world.wake_all()
        assert [result.result() for result in results] == ["", "", ""]
    for world in entered:
        world.close()
        world.close() if kind != "memory" else None
    worlds.close()


@pytest.mark.parametrize("kind", ["network", "tls"])
def test_the_loss_of_a_worker_is_an_error_for_every_worker_that_needs_it(kind: str, tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> str:
        rounds = world.rounds(SHARDS, SystemClock())
        slots, mean = rounds.allocate(NUMEL, torch.float32)
        own = shards_of(world.rank, workers=3, shards=SHARDS)
        rounds.mean(own)
        before = mean.clone()
        if world.rank == 2:
            return "lost"
        for shard in own:
            slots[shard].fill_(1.0)
        with pytest.raises(PeerLostError):
            rounds.mean(own)
        assert torch.equal(mean, before)
        return world.lost

    worlds = Worlds(kind, 3, tmp_path)
    assert all(worlds.run(body))
    worlds.close()

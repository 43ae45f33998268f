"""Collectives between real processes: equal bits on all ranks, and the loss of a rank."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.fixtures.processes.forks import fork, in_processes, values
from tests.fixtures.wording import Wording
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.in_process import CollectiveState, InProcessCollective
from paceline.transport.ports import Collective
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_collective import BLOCK, SEMAPHORES, WORDS, ShmCollective
from paceline.transport.torch_dist import TorchCollective, join_group, ring_bytes
from paceline.transport.virtual_time import Turns

ROUNDS = 3


def own_vector(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(numel, dtype=dtype, generator=torch.Generator().manual_seed(rank + 100))


def mean_in_rank_order(world_size: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    total = own_vector(0, numel, dtype)
    for rank in range(1, world_size):
        total = total + own_vector(rank, numel, dtype)
    return total / world_size


def as_bytes(vector: Tensor) -> bytes:
    return vector.numpy().tobytes()


def new_world(parties: int) -> SharedWorld:
    return SharedWorld(parties=parties, semaphores_each=SEMAPHORES, words_each=WORDS)


def shm(world: SharedWorld, rank: int, timeout_s: float = 20.0) -> ShmCollective:
    torch.set_num_threads(1)
    return ShmCollective(world, Rank(rank), clock=SystemClock(), timeout_s=timeout_s)


def reduce_rounds(collective: Collective, numel: int, dtype: torch.dtype) -> bytes:
    """Several averagings in a row; the last result, after checking that none reuses the one before."""
    vector = collective.allocate(numel, dtype)
    assert bool((vector == 0).all()), "a fresh vector is zero"
    for _ in range(ROUNDS):
        vector.copy_(own_vector(collective.rank, numel, dtype))
        collective.all_reduce_mean(vector)
    return as_bytes(vector)


def sees_the_others(collective: Collective) -> bytes:
    """Gathers from all, gathers from neighbours and swaps, twice over; what it saw."""
    rank, world = collective.rank, collective.world_size
    vector = collective.allocate(world * 6, torch.uint8)
    neighbours = sorted({Rank((rank - 1) % world), rank, Rank((rank + 1) % world)})
    seen = []
    for number in range(2):
        own = torch.arange(world * 6, dtype=torch.uint8) + 50 * rank + number
        vector.copy_(own)
        gathered, all_bytes = collective.gather(vector)
        assert [int(v[0]) for v in gathered] == [50 * r + number for r in range(world)]
        near, near_bytes = collective.gather(vector, neighbours)
        assert all(torch.equal(v, gathered[r]) for r, v in zip(neighbours, near, strict=True))
        received, swap_bytes = collective.swap(vector)
        expected = torch.cat([gathered[r][6 * rank : 6 * rank + 6] for r in range(world)])
        assert torch.equal(received, expected)
        vector.zero_()  # what was received is a copy
        assert torch.equal(received, expected)
        seen += [all_bytes.bytes_in, near_bytes.bytes_in, swap_bytes.bytes_in]
        assert seen[-3:] == [(world - 1) * world * 6, (len(neighbours) - 1) * world * 6, (world - 1) * 6]
    return json.dumps(seen).encode()


def hears_along_edges(collective: Collective) -> bytes:
    """Directed edges that change at every round, as fast as it goes; what was heard, and the bytes."""
    rank, world = collective.rank, collective.world_size
    vector = collective.allocate(8, torch.float64)
    received, out, into = [], 0, 0
    for number in range(60):
        hop = 1 + number % (world - 1)
        vector.fill_(100 * number + rank)
        source, target = Rank((rank - hop) % world), Rank((rank + hop) % world)
        if number % 5 == 4:  # now and then along both ways of a ring
            copies, traffic = collective.gather(vector, [source, target] if source != target else [source])
        elif number % 5 == 3:  # or only rank 0 hears
            others = [Rank(r) for r in range(1, world)]
            near = (others, []) if rank == 0 else ([], [Rank(0)])
            copies, traffic = collective.gather(vector, *near)
        else:
            copies, traffic = collective.gather(vector, [source, rank], [target])
            assert torch.equal(copies[1], vector)
        received += [float(copy[7]) for copy in copies]
        out, into = out + traffic.bytes_out, into + traffic.bytes_in
        if number == 30:
            collective.all_reduce_mean(vector)
    return json.dumps([received, out, into]).encode()


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_vectors_travel_along_directed_edges_the_same_way_in_every_adapter(
    world_size: int, tmp_path: Path
) -> None:
    world, meeting, turns = new_world(world_size), CollectiveState(world_size), Turns()
    over_shm = values(in_processes(world_size, lambda rank: hears_along_edges(shm(world, rank))))
    world.close()
    received: dict[int, bytes] = {}

    def body(rank: int) -> None:
        turns.sleep(0.1 * rank)
        own = InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=20)
        received[rank] = hears_along_edges(own)

    def by_gloo(rank: int) -> bytes:
        collective = gloo(rank, world_size, tmp_path)
        result = hears_along_edges(collective)
        collective.close()
        return result

    assert turns.run([partial(body, rank) for rank in range(world_size)]) == [None] * world_size
    assert [received[rank] for rank in range(world_size)] == over_shm
    assert meeting.published == {}
    assert values(in_processes(world_size, by_gloo)) == over_shm


def test_receiving_from_neighbours_waits_for_them_alone() -> None:
    """On a ring of six the far side goes on for as many steps as it is away from who sleeps."""
    turns, meeting = Turns(), CollectiveState(6)
    finished: dict[int, int] = {}

    def body(rank: int) -> None:
        collective = InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=60)
        vector = collective.allocate(1, torch.float64)
        ring = [Rank((rank - 1) % 6), Rank((rank + 1) % 6)]
        for number in range(5):
            turns.sleep(10.0 if rank == 0 and number == 0 else 1.0)
            collective.gather(vector, ring)
            if turns.now_ns() < 10e9:
                finished[rank] = number + 1

    assert turns.run([partial(body, rank) for rank in range(6)]) == [None] * 6
    assert finished == {2: 1, 3: 2, 4: 1}


def test_a_neighbour_that_never_comes_is_an_error_after_the_timeout(wording: Wording) -> None:
    world = new_world(3)

    def body(rank: int) -> bytes:
        collective = shm(world, rank, timeout_s=0.2)
        vector = collective.allocate(16, torch.float32)
        if rank != 2:
            collective.gather(vector, [Rank(1 - rank)])
            collective.gather(vector, [Rank(2)])
        return b"left"

    first, second, left = in_processes(3, body)
    wording(first.error)
    wording(second.error)
    assert left.value == b"left"
    world.close()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_over_shared_memory_and_in_process_every_rank_sees_the_others(world_size: int) -> None:
    world, meeting, turns = new_world(world_size), CollectiveState(world_size), Turns()
    over_shm = values(in_processes(world_size, lambda rank: sees_the_others(shm(world, rank))))
    world.close()
    seen: list[bytes] = []

    def body(rank: int) -> None:
        turns.sleep(0.1 * rank)
        seen.append(sees_the_others(InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=20)))

    assert turns.run([partial(body, rank) for rank in range(world_size)]) == [None] * world_size
    assert seen == over_shm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numel", [1, 17, 960, 2 * BLOCK + 5])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_over_shared_memory_every_process_gets_the_mean_in_rank_order(
    world_size: int, numel: int, dtype: torch.dtype
) -> None:
    world = new_world(world_size)
    messages = in_processes(world_size, lambda rank: reduce_rounds(shm(world, rank), numel, dtype))
    world.close()
    assert set(values(messages)) == {as_bytes(mean_in_rank_order(world_size, numel, dtype))}


def test_over_shared_memory_every_rank_gets_rank_zeros_vector() -> None:
    world = new_world(3)

    def body(rank: int) -> bytes:
        collective = shm(world, rank)
        vector = collective.allocate(40, torch.float64)
        vector.copy_(own_vector(rank, 40, torch.float64))
        traffic = collective.broadcast(vector)
        assert (traffic.bytes_out, traffic.bytes_in) == ((640, 0) if rank == 0 else (0, 320))
        return as_bytes(vector)

    assert set(values(in_processes(3, body))) == {as_bytes(own_vector(0, 40, torch.float64))}
    world.close()


def test_several_vectors_of_one_world_do_not_touch_each_other() -> None:
    world = new_world(2)

    def body(rank: int) -> bytes:
        collective = shm(world, rank)
        first, second = collective.allocate(30, torch.float32), collective.allocate(7, torch.float64)
        first.fill_(rank)
        second.fill_(10 + rank)
        collective.all_reduce_mean(second)
        collective.all_reduce_mean(first)
        return json.dumps([first.tolist(), second.tolist()]).encode()

    expected = json.dumps([[0.5] * 30, [10.5] * 7]).encode()
    assert values(in_processes(2, body)) == [expected, expected]
    world.close()


def test_a_peer_that_never_comes_is_an_error_after_the_timeout(wording: Wording) -> None:
    world = new_world(2)

    def body(rank: int) -> bytes:
        collective = shm(world, rank, timeout_s=0.2)
        vector = collective.allocate(16, torch.float32)
        if rank == 0:
            collective.all_reduce_mean(vector)
        return b"left"

    waited, left = in_processes(2, body)
    wording(waited.error)
    assert left.value == b"left"
    world.close()


def test_an_abort_wakes_all_waiting_ranks(wording: Wording) -> None:
    world = new_world(2)

    def body(rank: int) -> bytes:
        collective = shm(world, rank, timeout_s=600.0)
        vector = collective.allocate(16, torch.float32)
        if rank == 0:
            collective.all_reduce_mean(vector)
            return b"not reached"
        world.wait(1, 0, 600.0, awaited="rank 0's arrival")
        world.abort()
        return b"aborted"

    woken, aborted = in_processes(2, body, within_s=20)
    wording(woken.error)
    assert aborted.value == b"aborted"
    world.close()


def test_a_rank_that_arrives_after_an_abort_does_not_wait_either(wording: Wording) -> None:
    world = new_world(2)
    world.abort()
    late = fork(lambda: reduce_rounds(shm(world, 0, timeout_s=600.0), 16, torch.float32)).end(20)
    wording(late.error)
    world.close()


def gloo(rank: int, world_size: int, folder: Path) -> TorchCollective:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    join_group(
        "gloo", store_path=str(folder / "meet"), rank=Rank(rank), world_size=world_size, timeout_s=20.0
    )
    return TorchCollective(device=torch.device("cpu"), clock=SystemClock(), timeout_s=20.0)


def over_gloo(rank: int, *, world_size: int, numel: int, folder: Path) -> bytes:
    collective = gloo(rank, world_size, folder)
    result = reduce_rounds(collective, numel, torch.float32)
    vector = collective.allocate(numel, torch.float32)
    vector.copy_(own_vector(rank, numel))
    collective.broadcast(vector)
    assert torch.equal(vector, own_vector(0, numel))
    sees_the_others(collective)
    collective.close()
    return result


@pytest.mark.parametrize("world_size", [2, 3])
def test_over_gloo_every_process_gets_the_same_mean(world_size: int, tmp_path: Path) -> None:
    body = partial(over_gloo, world_size=world_size, numel=1000, folder=tmp_path)
    result = values(in_processes(world_size, body))
    assert len(set(result)) == 1
    mean = torch.frombuffer(bytearray(result[0]), dtype=torch.float32)
    expected = mean_in_rank_order(world_size, 1000)
    assert torch.allclose(mean, expected, rtol=0, atol=1e-6)
    if world_size == 2:  # a + b commutes and a half is exact, so no order can differ
        assert torch.equal(mean, expected)


def test_over_gloo_a_peer_that_is_gone_is_an_error(tmp_path: Path) -> None:
    def body(rank: int) -> bytes:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        join_group("gloo", store_path=str(tmp_path / "meet"), rank=Rank(rank), world_size=2, timeout_s=2.0)
        collective = TorchCollective(device=torch.device("cpu"), clock=SystemClock(), timeout_s=2.0)
        vector = collective.allocate(16, torch.float32)
        collective.all_reduce_mean(vector)
        if rank == 1:
            os._exit(0)  # without a word, as a crash would
        collective.all_reduce_mean(vector)
        return b"not reached"

    survivor = in_processes(2, body)[0]
    assert survivor.error.startswith("PeerLostError: ")
    assert "torch.distributed" in survivor.error


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_in_process_and_shared_memory_give_the_same_bits_and_count_the_same_bytes(world_size: int) -> None:
    numel = world_size * 16 * 5  # pieces of all ranks are then equal

    def counted(collective: Collective) -> bytes:
        vector = collective.allocate(numel, torch.float32)
        vector.copy_(own_vector(collective.rank, numel))
        traffic = collective.all_reduce_mean(vector)
        return as_bytes(vector) + f" {traffic.bytes_out} {traffic.bytes_in}".encode()

    world = new_world(world_size)
    by_processes = values(in_processes(world_size, lambda rank: counted(shm(world, rank))))
    world.close()
    turns, meeting, by_turns = Turns(), CollectiveState(world_size), dict[int, bytes]()

    def live(rank: int) -> None:
        collective = InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=1.0)
        by_turns[rank] = counted(collective)

    assert turns.run([partial(live, rank) for rank in range(world_size)]) == [None] * world_size
    assert [by_turns[rank] for rank in range(world_size)] == by_processes
    assert by_processes[0].endswith(f" {ring_bytes(numel * 4, world_size)}".encode())


def test_in_process_a_peer_that_never_comes_is_an_error_at_the_deadline(wording: Wording) -> None:
    turns, meeting = Turns(), CollectiveState(2)

    def alone() -> None:
        collective = InProcessCollective(meeting, Rank(0), turns=turns, timeout_s=5.0)
        collective.all_reduce_mean(collective.allocate(16, torch.float32))

    def absent() -> None:
        turns.sleep(9.0)

    errors = turns.run([alone, absent])
    assert isinstance(errors[0], PeerLostError)
    wording(errors[0].what)

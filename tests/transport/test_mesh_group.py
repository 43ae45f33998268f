"""Torch's collectives over the mesh of a generation: sums, hooks, losses, and the end of a generation."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.fixtures.processes.forks import in_processes, values
from tests.transport.test_generation_worlds import TIMEOUT_S, Worlds
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from paceline.core.errors import PeerLostError
from paceline.transport.generation.mesh_group import SMALL_BYTES, MeshGroup, _Group
from paceline.transport.generation.network_world import NetworkGeneration
from paceline.transport.generation.ports import TrainingWorld

LARGE = SMALL_BYTES  # numbers, of at least two bytes each; it divides by two, and not by three
BROADCAST = dist.BroadcastOptions()


def group_in(world: TrainingWorld) -> _Group:
    assert isinstance(world, NetworkGeneration)
    return _Group(world.mesh, world.rank, world.parties)


def of_rank(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(numel) % 7 + rank).to(dtype)


@pytest.mark.parametrize("kind", ["network", "tls"])
@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_member_gets_the_sum_of_all(
    kind: str, parties: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    def body(world: TrainingWorld) -> None:
        group = group_in(world)
        for numel in (1, 100, LARGE + 1):
            total = sum((of_rank(rank, numel, dtype) for rank in range(parties)), torch.zeros(1, dtype=dtype))
            vector = of_rank(world.rank, numel, dtype)
            group.allreduce([vector]).wait()
            assert torch.equal(vector, total)
            vector = of_rank(world.rank, numel, dtype)
            group.broadcast([vector], BROADCAST).wait()
            assert torch.equal(vector, of_rank(0, numel, dtype))
            places = [torch.empty(numel, dtype=dtype) for _ in range(parties)]
            group.allgather([places], [of_rank(world.rank, numel, dtype)]).wait()
            assert all(torch.equal(place, of_rank(rank, numel, dtype)) for rank, place in enumerate(places))
            whole = torch.empty(parties * numel, dtype=dtype)
            group.all_gather_single(whole, of_rank(world.rank, numel, dtype)).wait()
            assert torch.equal(whole, torch.cat(places))
            part = torch.empty(numel, dtype=dtype)
            group.reduce_scatter_single(part, whole).wait()
            assert torch.equal(part, parties * places[world.rank])
            assert torch.equal(whole, torch.cat(places)), "what is summed stays as it was"
        group.barrier().wait()
        group.end()

    worlds = Worlds(kind, parties, tmp_path)
    worlds.run(body)
    worlds.close()


def test_a_vector_that_is_not_contiguous_is_summed_in_its_place(tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> Tensor:
        group = group_in(world)
        matrix = torch.ones(3, LARGE)
        group.allreduce([matrix[:, ::2]]).wait()
        group.end()
        return matrix

    worlds = Worlds("network", 2, tmp_path)
    for matrix in worlds.run(body):
        assert matrix[:, ::2].eq(2).all()
        assert matrix[:, 1::2].eq(1).all()
    worlds.close()


def test_what_no_member_sums_is_refused(tmp_path: Path) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)

    def body(world: TrainingWorld) -> None:
        group = group_in(world)
        with pytest.raises(ValueError, match="only sum"):
            group.allreduce([torch.ones(1)], options)
        group.end()

    worlds = Worlds("network", 1, tmp_path)
    worlds.run(body)
    worlds.close()


def test_a_lost_member_is_an_error_in_every_collective(tmp_path: Path) -> None:
    def body(world: TrainingWorld) -> None:
        if world.rank == 1:
            return  # its connections are closed
        group = group_in(world)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                group.allreduce([torch.ones(LARGE)]).wait()
            assert isinstance(group.failure, PeerLostError)
        group.end()

    worlds = Worlds("network", 3, tmp_path)
    worlds.run(body)
    worlds.close()


@pytest.mark.parametrize("ends", ["generation", "group"])
def test_a_collective_that_waits_ends_at_once(ends: str, tmp_path: Path) -> None:
    worlds = Worlds("network", 2, tmp_path)
    with ThreadPoolExecutor(2) as threads:
        own, other = threads.map(worlds.enter, range(2))
    group = group_in(own)
    work = group.allreduce([torch.ones(LARGE)])  # which the other member does not start
    if ends == "generation":
        worlds.is_over = True
        own.wake_all()
    else:
        group.end()
    with pytest.raises(RuntimeError):
        work.wait()
    group.end()
    own.close()
    other.close()
    worlds.close()


def test_ddp_with_a_hook_whose_callbacks_start_collectives_ends_with_equal_gradients(tmp_path: Path) -> None:
    worlds = Worlds("network", 2, tmp_path)

    with ThreadPoolExecutor(2) as threads:
        entered = list(threads.map(worlds.enter, range(2)))

    def body(rank: int) -> bytes:
        world = entered[rank]
        assert isinstance(world, NetworkGeneration)
        group = MeshGroup(world, TIMEOUT_S)
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(30, 100), nn.Linear(100, 100), nn.Linear(100, 1)), bucket_cap_mb=0.01
        )
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        torch.manual_seed(rank)
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(8, 30)).square().sum().backward()
        gradients = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
        group.leave()
        return gradients.numpy().tobytes()

    one, other = values(in_processes(2, body))
    assert one == other
    for world in entered:
        world.close()
    worlds.close()

"""Can a worker get out of a process group whose others are gone, and leave nothing behind?"""

import gc
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import PeerLostError
from paceline.ids import Rank
from paceline.transport.breakable_group import BreakableGroup, is_lost_peer
from paceline.transport.sharded_arena import ShardedArena, forget_meshes


def number_of_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def alone(folder: Path, number: int) -> BreakableGroup:
    return BreakableGroup(str(folder / f"{number}.store"), Rank(0), 1, 30.0, is_over=lambda: False)


def test_one_group_after_another_leaves_no_open_file(tmp_path: Path) -> None:
    files = []
    for number in range(4):
        group = alone(tmp_path, number)
        dist.all_reduce(torch.ones(1))
        group.cut()
        group.leave()
        files.append(number_of_files())
    assert not dist.is_initialized()
    assert files[-1] == files[1]  # the first time torch opens something for good


def test_a_model_that_is_split_again_and_again_keeps_no_group_alive(tmp_path: Path) -> None:
    threads = []
    for number in range(4):
        group = alone(tmp_path, number)
        arena = ShardedArena(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.device("cpu"))
        arena.module(torch.ones(2, 3)).sum().backward()
        assert [tuple(tensor.shape) for tensor in arena.whole_state().values()] == [
            (4, 3),
            (4,),
            (2, 4),
            (2,),
        ]
        del arena
        group.leave()
        forget_meshes()
        gc.collect()
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    assert threads[-1] == threads[1]


def test_whoever_waits_for_one_that_never_comes_stops_when_the_generation_ends(tmp_path: Path) -> None:
    looks = iter([False, False, True])
    with pytest.raises(PeerLostError, match="while its workers were connecting"):
        BreakableGroup(str(tmp_path / "store"), Rank(0), 2, 1.0, is_over=lambda: next(looks))
    assert not dist.is_initialized()


def test_only_the_groups_own_connections_are_cut(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        group = alone(tmp_path, 0)
        group.cut()
        group.leave()
        with ours, theirs:
            ours.sendall(b"still there")
            assert theirs.recv(32) == b"still there"


def test_what_broke_in_the_users_own_code_is_no_lost_peer() -> None:
    assert not is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert is_lost_peer(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))

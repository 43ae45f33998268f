"""AbortableGroup: a worker leaves a process group whose peers are gone, and leaves nothing behind."""

import gc
import os
import socket
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.fixtures.processes.forks import in_processes, values
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording
from torch import nn

from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.sharded_arena import ShardedArena, forget_meshes
from paceline.transport.torch_dist import AbortableGroup, why_lost


def number_of_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def alone(folder: Path, number: int) -> AbortableGroup:
    return AbortableGroup(str(folder / f"{number}.store"), Rank(0), 1, 30.0, is_over=lambda: False)


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


def test_a_wait_for_a_peer_that_never_comes_stops_when_the_generation_ends(
    tmp_path: Path, wording: Wording
) -> None:
    looks = iter([False, False, True])
    with wording.raises(PeerLostError):
        AbortableGroup(str(tmp_path / "store"), Rank(0), 2, 5.0, is_over=lambda: next(looks))
    assert not dist.is_initialized()
    # A process that ended while gloo still connects would be aborted.
    until(lambda: "connecting" not in {thread.name for thread in threading.enumerate()}, "no rank connects")


def test_only_the_groups_own_connections_are_cut(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        group = alone(tmp_path, 0)
        group.cut()
        group.leave()
        with ours, theirs:
            for item in (ours, theirs):
                item.setblocking(False)
                with pytest.raises(BlockingIOError):  # one that was shut says b"" at once
                    item.recv(1)


def got_out(store: Path, rank: int) -> bool:
    """Reduce until we are told in the middle of it that it is over. Is that an error for a lost peer?"""
    group = AbortableGroup(str(store), Rank(rank), 2, 3600.0, is_over=lambda: False)
    reduced = threading.Semaphore(0)

    def hear() -> None:
        for _ in range(5):
            reduced.acquire()
        group.cut()

    hears = threading.Thread(target=hear)
    hears.start()
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
            reduced.release()
    except RuntimeError as error:
        return bool(why_lost(error))
    finally:
        hears.join()
        group.leave()


def test_a_send_during_a_cut_does_not_wait_for_the_timeout(tmp_path: Path) -> None:
    def body(rank: int) -> bytes:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # so that gloo's thread comes late
        return bytes(got_out(tmp_path / f"{number}.store", rank) for number in range(30))

    assert values(in_processes(2, body)) == [b"\1" * 30, b"\1" * 30]


def test_what_broke_in_the_users_own_code_is_no_lost_peer() -> None:
    assert not why_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert why_lost(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))

"""Pairwise averaging between processes: nothing is lost, no deadlock, and the loss of a worker."""

import json
import os
from functools import partial

import pytest
import torch
from tests.fixtures.processes.forks import fork, in_processes, values
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.in_process import InProcessPeers, PeersState
from paceline.transport.ports import Peers
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_peers import ShmPeers, peers_world
from paceline.transport.virtual_time import Turns

SHARES = 4000


def shm(world: SharedWorld, rank: int, timeout_s: float = 20.0) -> ShmPeers:
    torch.set_num_threads(1)
    return ShmPeers(world, Rank(rank), clock=SystemClock(), timeout_s=timeout_s)


def averages_until_all_is_done(peers: Peers, shares: int) -> bytes:
    """Take shares and average with every other worker in turn; return shares, numbers and the final sum."""
    own = peers.open(100, torch.float64, shares=shares, done=0)
    own.fill_(peers.rank)
    peers.barrier()
    taken, numbers = [], []
    while (share := peers.take(wants_stop=False)) is not None:
        other = Rank((peers.rank + 1 + share % (peers.world_size - 1)) % peers.world_size)
        with peers.hold(sorted((peers.rank, other)), is_exchange=True) as held:
            one, two = held.vectors
            one.add_(two).mul_(0.5)
            two.copy_(one)
        taken.append(share)
        numbers.append(held.number)
    vectors, traffic = peers.barrier()
    total = torch.stack(vectors).sum(dim=0)
    assert traffic.bytes_in == traffic.bytes_out == 800 * (peers.world_size - 1)
    return json.dumps([taken, numbers, float(total.min()), float(total.max())]).encode()


def check_nothing_is_lost(lines: list[bytes], shares: int) -> None:
    results = [json.loads(answer) for answer in lines]
    expected = sum(range(len(lines)))
    assert sorted(share for taken, *_ in results for share in taken) == list(range(shares))
    assert sorted(number for _, numbers, *_ in results for number in numbers) == list(range(1, shares + 1))
    assert all(abs(end - expected) < 1e-12 for *_, low, high in results for end in (low, high))


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_processes_that_average_in_pairs_do_every_share_once_and_keep_the_sum(workers: int) -> None:
    world = peers_world(workers)
    messages = in_processes(workers, lambda rank: averages_until_all_is_done(shm(world, rank), SHARES))
    world.close()
    check_nothing_is_lost(values(messages), SHARES)


def test_in_process_peers_give_the_same_guarantees() -> None:
    turns, table, text = Turns(), PeersState(3), dict[int, bytes]()

    def live(rank: int) -> None:
        turns.sleep(0.1 * rank)
        text[rank] = averages_until_all_is_done(
            InProcessPeers(table, Rank(rank), turns=turns, timeout_s=5), 50
        )

    assert turns.run([partial(live, rank) for rank in range(3)]) == [None] * 3
    check_nothing_is_lost([text[rank] for rank in range(3)], 50)


def test_once_anyone_wants_to_stop_nothing_more_is_handed_out() -> None:
    world = peers_world(2)
    one, two = shm(world, 0), shm(world, 1)
    for peers in (two, one):
        peers.open(1, torch.float64, shares=9, done=4)
    assert [one.take(wants_stop=False), two.take(wants_stop=False)] == [4, 5]
    assert two.take(wants_stop=True) is None
    assert one.take(wants_stop=False) is None
    assert one.shares_taken() == 6
    world.close()


def test_a_lock_whose_holder_died_is_an_error_after_the_timeout(wording: Wording) -> None:
    world = peers_world(2)

    def dies() -> bytes:
        peers = shm(world, 1)
        peers.open(1, torch.float64, shares=1, done=0)
        with peers.hold([Rank(0), Rank(1)], is_exchange=True):
            os._exit(0)  # without a word, as a crash would

    def waits() -> bytes:
        peers = shm(world, 0, timeout_s=0.2)
        peers.open(1, torch.float64, shares=1, done=0)
        with peers.hold([Rank(0)], is_exchange=False):
            return b"not reached"

    fork(dies).end()
    wording(fork(waits).end().error)
    world.close()


def test_an_abort_wakes_all_waiters_of_a_lock() -> None:
    world = peers_world(2)

    def body(rank: int) -> bytes:
        peers = shm(world, rank, timeout_s=600.0)
        peers.open(1, torch.float64, shares=1, done=0)
        with peers.hold([Rank(0)], is_exchange=True):
            peers.barrier()  # the other cannot come: it waits for what we hold
        return b"not reached"

    def aborts() -> bytes:
        world.abort()
        return b"aborted"

    waiting = [fork(partial(body, rank)) for rank in range(2)]
    assert fork(aborts).end().value == b"aborted"
    assert all(waiter.end(20).error.startswith("PeerLostError: ") for waiter in waiting)
    world.close()


def test_a_waiter_that_gives_up_releases_what_it_holds(wording: Wording) -> None:
    turns, table = Turns(), PeersState(2)

    def holds_for_long() -> None:
        peers = InProcessPeers(table, Rank(1), turns=turns, timeout_s=9)
        with peers.hold([Rank(1)], is_exchange=False):
            turns.sleep(8)

    def gives_up() -> None:
        peers = InProcessPeers(table, Rank(0), turns=turns, timeout_s=3)
        turns.sleep(1)
        with peers.hold([Rank(0), Rank(1)], is_exchange=True):
            raise AssertionError("not reached")

    errors = turns.run([holds_for_long, gives_up])
    assert isinstance(errors[1], PeerLostError)
    wording(errors[1].what)
    assert table.held == set()
    assert table.exchanges == 0

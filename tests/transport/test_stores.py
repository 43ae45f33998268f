"""Parameter stores: every push arrives once, with every adapter and a server process of its own."""

import json
import socket
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.fixtures.processes.forks import ProcessReply, fork, in_processes, values
from tests.fixtures.runs.ledger_server import LedgerServer, RevokingServer, work, work_until_revoked
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.in_process import InProcessStore, Mailbox
from paceline.transport.ports import Answer, ParameterStore
from paceline.transport.shm_store import ShmStore, ShmStoreHost, store_world
from paceline.transport.tcp_store import Address, TcpStore, TcpStoreHost
from paceline.transport.virtual_time import Turns

NUMEL, TOKEN = 48, b"a token"
Live = Callable[[int, ParameterStore], bytes]


def over_shm(num_workers: int, live: Live, server: LedgerServer) -> list[ProcessReply]:
    """(workers' answers …, the server's answer)"""
    world = store_world(num_workers)

    def body(rank: int) -> bytes:
        if rank < num_workers:
            return live(rank, ShmStore(world, Rank(rank), clock=SystemClock(), timeout_s=20.0))
        ShmStoreHost(world, numel=NUMEL, dtype=torch.float64).serve(server)
        return ledger_of(server)

    messages = in_processes(num_workers + 1, body)
    world.close()
    return messages


def over_tcp(num_workers: int, live: Live, server: LedgerServer) -> list[ProcessReply]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

        def body(rank: int) -> bytes:
            if rank < num_workers:
                clock = SystemClock()
                return live(rank, TcpStore(address, Rank(rank), token=TOKEN, clock=clock, timeout_s=20.0))
            host = TcpStoreHost(
                listener,
                num_workers=num_workers,
                numel=NUMEL,
                dtype=torch.float64,
                token=TOKEN,
                timeout_s=20.0,
            )
            host.serve(server)
            return ledger_of(server)

        return in_processes(num_workers + 1, body)


def in_one_process(num_workers: int, live: Live, server: LedgerServer) -> list[ProcessReply]:
    turns, mail, text = Turns(), Mailbox(), dict[int, ProcessReply]()

    def body(rank: int) -> None:
        store = InProcessStore(server, Rank(rank), mail, turns=turns, timeout_s=20.0)
        text[rank] = ProcessReply(live(rank, store))

    assert turns.run([partial(body, rank) for rank in range(num_workers)]) == [None] * num_workers
    return [*(text[rank] for rank in range(num_workers)), ProcessReply(ledger_of(server))]


def ledger_of(server: LedgerServer) -> bytes:
    return json.dumps([server.version, server.total.tolist()]).encode()


ADAPTERS = pytest.mark.parametrize("run", [over_shm, over_tcp, in_one_process])


@ADAPTERS
@pytest.mark.parametrize("num_workers", [1, 3])
def test_every_push_arrives_once_and_bytes_are_counted_as_handed_over(
    run: Callable[[int, Live, LedgerServer], list[ProcessReply]], num_workers: int
) -> None:
    result = run(num_workers, lambda _, store: work(store, NUMEL).encode(), LedgerServer(40, NUMEL))
    *workers, server = values(result)
    version, total = json.loads(server)
    assert version == 40
    assert total == [1.0] * 40 + [0.0] * 8
    counted = [worker.decode().split() for worker in workers]
    for pushes, _, bytes_out, _, _, bytes_in, *_ in counted:
        assert int(bytes_out) == int(bytes_in) == int(pushes) * NUMEL * 8
    assert sum(int(words[0]) for words in counted) == 40


@ADAPTERS
def test_a_worker_that_leaves_stops_no_other(
    run: Callable[[int, Live, LedgerServer], list[ProcessReply]],
) -> None:
    def live(rank: int, store: ParameterStore) -> bytes:
        return work(store, NUMEL, leaves_after=1 if rank == 0 else None).encode()

    *workers, server = values(run(3, live, LedgerServer(30, NUMEL)))
    assert workers[0].startswith(b"1 pushes")
    version, total = json.loads(server)
    assert version == sum(int(w.split()[0]) for w in workers)
    # The share that it took and did not push is lost; the others may have left it none to take.
    assert version in (29, 30)
    assert sorted(total) == [0.0] * (48 - version) + [1.0] * version


@ADAPTERS
def test_a_stop_request_reaches_the_server_and_nothing_pushed_is_lost(
    run: Callable[[int, Live, LedgerServer], list[ProcessReply]],
) -> None:
    def live(rank: int, store: ParameterStore) -> bytes:
        return work(store, NUMEL, stops_after=2 + rank).encode()

    *workers, server = values(run(2, live, LedgerServer(40, NUMEL)))
    version, total = json.loads(server)
    assert 2 <= version <= 5
    assert version == sum(int(w.split()[0]) for w in workers) == sum(total)
    assert total == [1.0] * version + [0.0] * (NUMEL - version)


@ADAPTERS
@pytest.mark.parametrize("notices", [True, False], ids=["asleep", "pushing"])
def test_a_worker_receives_that_its_step_is_obsolete_and_continues_with_another(
    run: Callable[[int, Live, LedgerServer], list[ProcessReply]], notices: bool
) -> None:
    """Asleep for an hour it is woken; if its push crosses with the word, the word is skipped."""

    worker, server = values(
        run(
            1,
            lambda _, store: work_until_revoked(store, NUMEL, notices=notices).encode(),
            RevokingServer(4, NUMEL),
        )
    )
    assert worker == b"versions [0, 1, 1, 1, 1], shares [0, 0, 1, 2, 3]"
    assert json.loads(server)[1] == [1.0] * 4 + [0.0] * (NUMEL - 4)


def test_over_shared_memory_an_abort_wakes_a_worker_that_sleeps_on_purpose(wording: Wording) -> None:
    world = store_world(1)

    def body(rank: int) -> bytes:
        if rank == 1:
            world.abort()
            return b""
        store = ShmStore(world, Rank(0), clock=SystemClock(), timeout_s=600.0)
        return str(store.wait_unless_obsolete(3600.0)).encode()

    messages = in_processes(2, body)
    wording(messages[0].error)
    world.close()


def test_over_shared_memory_a_server_that_never_answers_is_an_error_after_the_timeout(
    wording: Wording,
) -> None:
    world = store_world(1)

    def body() -> bytes:
        store = ShmStore(world, Rank(0), clock=SystemClock(), timeout_s=0.2)
        return work(store, NUMEL).encode()

    result = fork(body).end()
    wording(result.error)
    world.close()


def test_over_shared_memory_an_abort_ends_worker_and_server() -> None:
    world = store_world(1)

    def body(rank: int) -> bytes:
        if rank == 1:
            ShmStoreHost(world, numel=NUMEL, dtype=torch.float64).serve(LedgerServer(4, NUMEL))
            return b"not reached"
        store = ShmStore(world, Rank(0), clock=SystemClock(), timeout_s=600.0)
        store.open(NUMEL, torch.float64)
        world.abort()
        store.pull()
        return b"not reached"

    for message in in_processes(2, body):
        assert message.error.startswith("PeerLostError: ")
    world.close()


def test_in_process_a_worker_that_is_never_answered_gets_an_error_at_the_deadline() -> None:
    class Silent(LedgerServer):
        def push(self, rank: Rank, *, wants_stop: bool) -> list[Answer]:
            return []

    turns = Turns()
    store = InProcessStore(Silent(9, NUMEL), Rank(0), Mailbox(), turns=turns, timeout_s=3.0)
    (error,) = turns.run([lambda: print(work(store, NUMEL))])
    assert isinstance(error, PeerLostError)
    assert turns.now_ns() == 3 * 10**9

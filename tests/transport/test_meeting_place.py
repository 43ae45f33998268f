"""Rendezvous store: values between ranks arrive whole and in time."""

import threading

import pytest
from tests.fixtures.runs.torchrun import free_port
from tests.fixtures.wording import Wording

from paceline.config.environment import World
from paceline.core.errors import NotReadyError, PeerLostError
from paceline.transport.rendezvous_store import CHUNK_BYTES, RendezvousStore


def two_places() -> tuple[RendezvousStore, RendezvousStore]:
    port = free_port()
    worlds = [World(rank=rank, size=2, host="127.0.0.1", port=port) for rank in (0, 1)]
    first, second = (RendezvousStore.enter(world, timeout_s=20.0) for world in worlds)
    return first, second


def test_what_is_shown_is_seen_and_what_is_sent_is_taken_once() -> None:
    here, there = two_places()
    here.show("word", {"plan": "…", "steps": [1, 2]})
    assert there.see("word", source="rank 0") == {"plan": "…", "steps": [1, 2]}
    long = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"and a bit"
    there.send("parcel", long)
    assert here.receive("parcel", source="rank 1") == long
    there.send("parcel", b"")
    assert here.receive("parcel", source="rank 1") == b""


def test_a_waiting_thread_blocks_no_other() -> None:
    here, there = two_places()
    received: list[object] = []
    place = here.another()
    waiting = threading.Thread(target=lambda: received.append(place.see("late", source="rank 1")))
    waiting.start()
    here.show("word", 1)
    assert there.see("word", source="rank 0") == 1
    there.show("late", 2)
    waiting.join()
    assert received == [2]


def test_a_missing_rank_is_named(wording: Wording) -> None:
    here, _ = two_places()
    with wording.raises(PeerLostError):
        here.see("hello/1", source="rank 1 to come", timeout_s=0.2)


def test_a_rendezvous_without_a_server_is_an_error(wording: Wording) -> None:
    world = World(rank=1, size=2, host="127.0.0.1", port=free_port())
    with wording.raises(NotReadyError):
        RendezvousStore.enter(world, timeout_s=0.3)


def test_a_port_that_is_taken_is_an_error(wording: Wording) -> None:
    here, _ = two_places()
    with wording.raises(NotReadyError):
        RendezvousStore.enter(here.world, timeout_s=5)


def test_an_early_rank_waits_until_the_server_listens() -> None:
    port = free_port()
    worlds = [World(rank=rank, size=2, host="127.0.0.1", port=port) for rank in (0, 1)]
    entered: list[RendezvousStore] = []
    early = threading.Thread(
        target=lambda: entered.append(RendezvousStore.enter(worlds[1], timeout_s=20.0)), daemon=True
    )
    early.start()
    here = RendezvousStore.enter(worlds[0], timeout_s=20.0)
    early.join()
    here.show("a", 1)
    assert entered[0].see("a", source="rank 0") == 1


def test_messages_from_before_a_restart_are_not_received_after_it() -> None:
    here, _ = two_places()
    here.show("word", "old")
    world = World(rank=1, size=2, host="127.0.0.1", port=here.world.port, restarts=1)
    again = RendezvousStore.enter(world, timeout_s=5.0)
    with pytest.raises(PeerLostError):
        again.see("word", source="rank 0", timeout_s=0.1)


def test_a_rendezvous_on_a_free_port_is_at_the_address_of_its_world() -> None:
    here = RendezvousStore.host_at("127.0.0.1", 2, timeout_s=20.0)
    there = RendezvousStore.enter(
        World(rank=1, size=2, host="127.0.0.1", port=here.world.port), timeout_s=20.0
    )
    here.show("word", 1)
    assert there.see("word", source="rank 0") == 1

"""Rendezvous store: values between ranks arrive whole and in time."""

import threading

import pytest
from tests.fixtures.torchrun import free_port

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
    assert there.see("word", whose="rank 0") == {"plan": "…", "steps": [1, 2]}
    long = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"and a bit"
    there.send("parcel", long)
    assert here.receive("parcel", whose="rank 1") == long
    there.send("parcel", b"")
    assert here.receive("parcel", whose="rank 1") == b""


def test_a_thread_that_waits_holds_up_nobody_else() -> None:
    here, there = two_places()
    heard: list[object] = []
    place = here.another()
    waiting = threading.Thread(target=lambda: heard.append(place.see("late", whose="rank 1")))
    waiting.start()
    here.show("word", 1)
    assert there.see("word", whose="rank 0") == 1
    there.show("late", 2)
    waiting.join()
    assert heard == [2]


def test_who_never_comes_is_named() -> None:
    here, _ = two_places()
    with pytest.raises(PeerLostError, match=r"waited 0.2 s for rank 1 to come"):
        here.see("hello/1", whose="rank 1 to come", timeout_s=0.2)


def test_nobody_at_the_meeting_place_is_an_error_in_words() -> None:
    world = World(rank=1, size=2, host="127.0.0.1", port=free_port())
    with pytest.raises(NotReadyError, match=r"nobody listens at 127.0.0.1:\d+ .* after 0.3 s"):
        RendezvousStore.enter(world, timeout_s=0.3)


def test_a_port_that_is_taken_is_an_error_in_words() -> None:
    here, _ = two_places()
    with pytest.raises(NotReadyError, match="no meeting at"):
        RendezvousStore.enter(here.world, timeout_s=5)


def test_whoever_comes_early_waits_until_somebody_listens() -> None:
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
    assert entered[0].see("a", whose="rank 0") == 1


def test_what_was_said_before_a_restart_is_not_heard_after_it() -> None:
    here, _ = two_places()
    here.show("word", "old")
    world = World(rank=1, size=2, host="127.0.0.1", port=here.world.port, restarts=1)
    again = RendezvousStore.enter(world, timeout_s=5.0)
    with pytest.raises(PeerLostError):
        again.see("word", whose="rank 0", timeout_s=0.1)


def test_a_place_on_a_port_that_is_free_is_where_its_world_says() -> None:
    here = RendezvousStore.host_at("127.0.0.1", 2, timeout_s=20.0)
    there = RendezvousStore.enter(
        World(rank=1, size=2, host="127.0.0.1", port=here.world.port), timeout_s=20.0
    )
    here.show("word", 1)
    assert there.see("word", whose="rank 0") == 1

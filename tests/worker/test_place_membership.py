"""What the coordinator answers a server whose membership has ended."""

import pytest
from tests.fixtures.waiting import until

from paceline.coordinator.client.aio import Client
from paceline.core.errors import NotReadyError
from paceline.worker.server.membership import ServerMembership


def no_way_in() -> Client:
    raise NotReadyError("there is no token", "make one")


def test_whoever_asks_when_it_has_ended_hears_why() -> None:
    membership = ServerMembership(
        no_way_in, run="run", worker="server-0-a", note=lambda _: None, role="server"
    )
    until(lambda: not membership._thread.is_alive(), "the thread has ended")
    with pytest.raises(NotReadyError, match="there is no token"):
        membership.look()

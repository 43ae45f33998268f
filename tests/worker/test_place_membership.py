"""What the coordinator answers a server whose membership has ended."""

from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.coordinator.client.aio import Client
from paceline.core.errors import NotReadyError
from paceline.worker.server.membership import ServerMembership


def no_way_in() -> Client:
    raise NotReadyError("there is no token", "make one")


def test_a_refresh_after_the_end_raises_the_reason(wording: Wording) -> None:
    membership = ServerMembership(
        no_way_in, run="run", worker="server-0-a", note=lambda _: None, role="server"
    )
    until(membership.is_closed, "the thread has ended")

    with wording.raises(NotReadyError):
        membership.refresh()

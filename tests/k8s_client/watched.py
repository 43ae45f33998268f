"""Access to a follower of a job while it runs."""

import threading
from dataclasses import dataclass, field

from tests.fixtures.waiting import NEVER_S

from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.findings import Finding
from paceline.k8s.submit.follow import (
    FollowClock,
    Follower,
    FollowIntervals,
    FollowOutput,
    FollowResult,
    SystemFollowClock,
)
from paceline.k8s.submit.log_streams import Line

PACE = FollowIntervals(look_s=0.5, ring_s=0.05, logs_s=NEVER_S)


@dataclass
class Screen:
    """What a user sees."""

    lines: list[Line] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    told: list[Finding] = field(default_factory=list)

    def shown(self) -> FollowOutput:
        return FollowOutput(line=self.lines.append, say=self.said.append, tell=self.told.append)


@dataclass
class Following:
    """A follower at work, in a thread of its own."""

    screen: Screen
    thread: threading.Thread
    results: list[FollowResult]

    def end(self) -> FollowResult:
        self.thread.join(NEVER_S)
        assert not self.thread.is_alive(), f"it does not end; said: {self.screen.said}"
        return self.results[0]


class FastClock(SystemFollowClock):
    """Ten seconds in one, for jobs in which nothing happens while the follower waits for their last words."""

    def __init__(self) -> None:
        self._began_s = super().unix_s()

    def unix_s(self) -> float:
        return self._began_s + 10 * (super().unix_s() - self._began_s)


def follow(
    cluster: ClusterConnection, for_s: float | None = None, clock: FollowClock | None = None
) -> Following:
    screen, results = Screen(), list[FollowResult]()
    follower = Follower(
        cluster=cluster, name="demo", shown=screen.shown(), pace=PACE, clock=clock or SystemFollowClock()
    )
    thread = threading.Thread(target=lambda: results.append(follower.follow(for_s)))
    thread.start()
    return Following(screen, thread, results)

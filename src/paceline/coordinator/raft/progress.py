"""Replication progress of one follower, as the leader tracks it, with flow control.

Probe: one message at a time, until the leader has found where the logs agree. Replicate: many
at a time, without waiting (pipelining). Snapshot: the follower needs a snapshot, and receives
nothing else until it has installed it.
"""

from dataclasses import dataclass
from enum import Enum

from paceline.coordinator.raft.types import NOWHERE, Index

MOST_IN_FLIGHT = 64  # messages
NEARLY_ALL = 100  # entries that a learner may lack when it becomes a voter


class Sending(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    next: Index  # the next entry to send
    match: Index = NOWHERE  # it certainly has everything up to here
    sending: Sending = Sending.PROBE
    in_flight: int = 0
    is_active: bool = True  # received from since the last check
    round: int = 0  # the newest heartbeat round that it answered
    snapshot_index: Index = NOWHERE
    snapshot_age: int = 0  # ticks since it was sent

    def is_caught_up(self, commit: Index) -> bool:
        """Whether it may vote: it replied recently, and has nearly all committed entries (4.2.1)."""
        return self.is_active and self.match > NOWHERE and self.match + NEARLY_ALL >= commit

    def is_paused(self) -> bool:
        match self.sending:
            case Sending.PROBE:
                return self.in_flight > 0
            case Sending.REPLICATE:
                return self.in_flight >= MOST_IN_FLIGHT
            case Sending.SNAPSHOT:
                return True

    def sent(self, count: int) -> None:
        self.in_flight += 1
        if self.sending is Sending.REPLICATE:
            self.next = Index(self.next + count)

    def sent_snapshot(self, index: Index) -> None:
        self.sending = Sending.SNAPSHOT
        self.snapshot_index = index
        self.snapshot_age = 0

    def acknowledged(self, index: Index) -> bool:
        """Record that it has everything up to `index`; whether that is new."""
        self.in_flight = max(0, self.in_flight - 1)
        is_news = index > self.match
        self.match = max(self.match, index)
        if self.sending is Sending.SNAPSHOT and self.match < self.snapshot_index:
            return is_news
        self.next = max(self.next, Index(self.match + 1))
        if self.next == self.match + 1:
            self.in_flight = 0  # includes lost messages and messages with lost replies
        if self.sending is not Sending.REPLICATE:
            self.sending = Sending.REPLICATE
            self.in_flight = 0
            self.next = Index(self.match + 1)
        return is_news

    def rejected(self, index: Index, hint: Index) -> bool:
        """Record that it lacks the entry at `index`; False for an outdated reply."""
        is_newest = index == self.next - 1
        if self.sending is Sending.SNAPSHOT or (index <= self.match and not is_newest):
            return False
        if self.sending is Sending.PROBE and not is_newest:
            return False
        # Never below its known entries: a reply may be older than an acknowledgement. The exception is a
        # rejection of the latest append: its disk has lost acknowledged entries, which must be sent again.
        lowest = Index(1) if index <= self.match else Index(self.match + 1)
        self.next = max(lowest, min(index, Index(hint + 1)))
        self.sending = Sending.PROBE
        self.in_flight = 0
        return True

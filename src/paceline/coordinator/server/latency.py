"""Latency histograms and counters of a node: commit, fsync, round trips, elections.

Commits are timed per batch of proposals, and per peer one append message is timed at a time, so
the cost does not grow with the number of commands or entries.
"""

from collections import deque
from collections.abc import Iterable

from paceline.coordinator.raft.types import HardState, Index, Kind, Message, NodeId, Term
from paceline.core.clock import monotonic_s
from paceline.events.schema import Timings

REPLY_TIMEOUT_S = 5.0  # a reply that takes longer was lost: another message is timed


class LatencyMetrics:
    def __init__(self, me: NodeId, term: Term) -> None:
        self._me = me
        self._term = term
        self.commit = Timings()
        self.fsync = Timings()
        self.round_trip: dict[NodeId, Timings] = {}
        self.elections = 0  # elections in which this node was a candidate
        self.proposals_failed = 0  # with unknown outcome, or rejected because the queue was full
        self._proposed: deque[tuple[Index, float, int]] = deque()  # the last of a batch, when, how many
        self._sent: dict[NodeId, tuple[Index, float]] = {}  # the last entry of the message that is timed

    def proposed(self, last: Index, count: int, *, is_taken: bool) -> None:
        if is_taken:
            self._proposed.append((last, monotonic_s(), count))
        else:
            self.proposals_failed += count

    def applied(self, index: Index) -> None:
        while self._proposed and self._proposed[0][0] <= index:
            _, since_s, count = self._proposed.popleft()
            self.commit.add(monotonic_s() - since_s, count)

    def stood(self, now: HardState | None) -> None:
        """A node that votes for itself in a new term is a candidate in an election."""
        if now is not None and now.term > self._term:
            self._term = now.term
            self.elections += now.vote == self._me

    def sent(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.kind is Kind.APPEND and message.entries:
                now_s = monotonic_s()
                if now_s - self._sent.get(message.to, (0, -REPLY_TIMEOUT_S))[1] >= REPLY_TIMEOUT_S:
                    self._sent[message.to] = (message.entries[-1].index, now_s)

    def heard(self, message: Message) -> None:
        timed = self._sent.get(message.sender)
        if timed is not None and message.kind is Kind.APPEND_REPLY and message.index >= timed[0]:
            if not message.rejected:
                self.round_trip.setdefault(message.sender, Timings()).add(monotonic_s() - timed[1])
            del self._sent[message.sender]

    def lost_touch(self, other: NodeId) -> None:
        self._sent.pop(other, None)

    def gave_up(self, proposals: int) -> None:
        self.proposals_failed += proposals
        self._proposed.clear()
        self._sent.clear()

"""Volatile state of a leader: progress of each follower, pending reads, a transfer under way.

All of it is discarded when leadership is lost, and none of it is ever on disk.
"""

from dataclasses import dataclass, field

from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.progress import Progress, Sending
from paceline.coordinator.raft.types import Entry, Index, Kind, Membership, Message, NodeId, Term


@dataclass(slots=True)
class Read:
    id: int
    index: Index  # commit index at the time of the request
    round: int  # the heartbeat round whose replies confirm it


@dataclass(slots=True)
class Leading:
    me: NodeId
    last_index: Index  # at the beginning
    progress: dict[NodeId, Progress] = field(default_factory=dict)
    is_term_on_disk: bool = True
    round: int = 0
    reads: list[Read] = field(default_factory=list)
    wants_round: bool = False  # a read waits for a newer heartbeat round
    is_beating: bool = False  # all nodes get a heartbeat now
    heartbeat_elapsed: int = 0
    transferee: NodeId | None = None
    transfer_age: int = 0  # ticks since the request

    def follow(self, membership: Membership) -> None:
        """Progress is kept of exactly those who take part."""
        peers = membership.nodes - {self.me}
        for node in peers - self.progress.keys():
            self.progress[node] = Progress(next=Index(self.last_index + 1))
        for node in self.progress.keys() - peers:
            del self.progress[node]

    def is_caught_up(self, node: NodeId, commit: Index) -> bool:
        return node in self.progress and self.progress[node].is_caught_up(commit)

    def agreed(self, membership: Membership, own: Index) -> Index:
        """The largest index that a majority of voters has on disk; `own` is what our disk has."""
        matches = [own if node == self.me else self.progress[node].match for node in membership.voters]
        matches.sort(reverse=True)
        return matches[membership.quorum - 1]

    def confirmed_round(self, membership: Membership) -> int:
        """The newest heartbeat round that a majority has answered."""
        rounds = [self.round if n == self.me else self.progress[n].round for n in membership.voters]
        rounds.sort(reverse=True)
        return rounds[membership.quorum - 1]

    def confirmed_reads(self, membership: Membership) -> list[tuple[int, Index]]:
        if not self.reads:
            return []
        round_ = self.confirmed_round(membership)
        served = [(read.id, read.index) for read in self.reads if read.round <= round_]
        self.reads = [read for read in self.reads if read.round > round_]
        return served

    def heard_from_majority(self, membership: Membership) -> bool:
        """Whether a majority has replied since the last call (check quorum, 6.2)."""
        active = sum(node == self.me or self.progress[node].is_active for node in membership.voters)
        for progress in self.progress.values():
            progress.is_active = False
        return active >= membership.quorum

    def tick(self, patience: int) -> None:
        """After `patience` ticks, abort a transfer, and resend an unacknowledged snapshot."""
        self.transfer_age += 1
        if self.transfer_age >= patience:
            self.transferee = None
        for progress in self.progress.values():
            if progress.sending is Sending.SNAPSHOT:
                progress.snapshot_age += 1
                if progress.snapshot_age >= patience:
                    progress.sending = Sending.PROBE
                    progress.in_flight = 0

    def fill(self, outbox: list[Message], log: RaftLog, term: Term, append_bytes: int) -> None:
        """One message to every node that lacks entries; to all nodes when a heartbeat is due.

        The commit index is sent with either, not in a separate message: under load the next entries
        are close behind, and such messages would cost as much as the entries themselves.
        """
        if self.wants_round:
            self.round += 1
            self.wants_round = False
            self.is_beating = True
        for node, progress in self.progress.items():
            if progress.sending is not Sending.SNAPSHOT and progress.next <= log.snapshot.index:
                progress.sent_snapshot(log.snapshot.index)
                outbox.append(Message(Kind.SNAPSHOT, self.me, node, term, snapshot=log.snapshot))
            is_told = False  # entries count as a heartbeat, too
            while not progress.is_paused() and progress.next <= log.last_index:
                entries = log.slice(progress.next, append_bytes)
                outbox.append(self._append(node, log, term, entries))
                progress.sent(len(entries))
                is_told = True
            if self.is_beating and not is_told:
                outbox.append(self._sign_of_life(node, log, term))
        self.is_beating = False

    def _sign_of_life(self, node: NodeId, log: RaftLog, term: Term) -> Message:
        if self.progress[node].sending is Sending.SNAPSHOT:
            # It has no log that we could build on: send only a heartbeat.
            return Message(Kind.APPEND, self.me, node, term, round=self.round)
        return self._append(node, log, term, ())

    def _append(self, node: NodeId, log: RaftLog, term: Term, entries: tuple[Entry, ...]) -> Message:
        before = Index(self.progress[node].next - 1)
        log_term = log.term(before)
        assert log_term is not None, "what is compacted away is sent as a snapshot"
        message = Message(Kind.APPEND, self.me, node, term, before, log_term, entries, log.commit)
        message.round = self.round
        return message

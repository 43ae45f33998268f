"""Raft consensus as a pure state machine.

    tick()              one unit of time has passed
    step(message)       a message from another node has arrived
    propose(data)       append a command (leader only)
    ready()             what must now be persisted, sent and applied, in that order
    persisted(…)        what `ready` returned is on disk

Only these calls and the random numbers passed in decide anything, so every schedule can be
replayed. With pre-vote and check-quorum (9.6, 6.2), read-index reads (6.4), snapshots (5),
single-voter membership changes by way of learners (4) and leadership transfer (3.10).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from paceline.coordinator.raft.leading import Leading, Read
from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.membership import Memberships, encode, is_one_step
from paceline.coordinator.raft.progress import Progress
from paceline.coordinator.raft.types import (
    NO_TERM,
    NOWHERE,
    Entry,
    EntryKind,
    HardState,
    Index,
    Kind,
    Membership,
    Message,
    NodeId,
    Ready,
    Snapshot,
    Term,
)

RandRange = Callable[[int], int]  # a number from 0 to below the argument


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals in ticks. An election begins after `election` to twice that without a leader."""

    election: int = 10
    heartbeat: int = 2
    append_bytes: int = 1 << 20  # size of the entries in one message


class Raft:
    def __init__(
        self,
        me: NodeId,
        hard_state: HardState,
        log: RaftLog,
        *,
        randrange: RandRange,
        timing: Timing | None = None,
    ) -> None:
        """Restore a node from its persistent state. It always starts as a follower."""
        self.me = me
        self.log = log
        self.timing = timing or Timing()
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader: NodeId | None = None
        self.role = Role.FOLLOWER
        self._randrange = randrange
        self._memberships = Memberships(log)
        self._written = hard_state
        self._snapshot: Snapshot | None = None  # received, not yet returned by `ready`
        self._outbox: list[Message] = []
        self._votes: dict[NodeId, bool] = {}
        self._leading: Leading | None = None
        self._reads_served: list[tuple[int, Index]] = []
        self._reads_lost: list[int] = []
        self._membership_index = Index(0)  # index of the newest membership entry proposed here
        self._elapsed = 0
        self._draw_timeout()

    # Queries of the shell.

    @property
    def membership(self) -> Membership:
        return self._memberships.latest

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_handing_over(self) -> bool:
        return self._leading is not None and self._leading.transferee is not None

    def progress(self) -> dict[NodeId, Progress]:
        """How far each follower is; empty unless we lead."""
        return {} if self._leading is None else self._leading.progress

    @property
    def round(self) -> int:
        """Number of this leader's newest heartbeat round; 0 on other nodes."""
        return 0 if self._leading is None else self._leading.round

    def propose(self, data: bytes) -> tuple[Index, Term] | None:
        """The place that the command will have if it is committed; None: we do not (or no longer) lead."""
        if self._leading is None or self._leading.transferee is not None:
            return None
        entry = self.log.append(self.term, EntryKind.COMMAND, data)
        return entry.index, entry.term

    def change(self, membership: Membership) -> tuple[Index, Term] | None:
        """Propose another membership; None: not now.

        One at a time, after an own entry is committed; and a voter is a learner until it has caught up.
        """
        if self._leading is None or self._leading.transferee is not None:
            return None
        is_open = self._membership_index > self.log.commit or not self._has_committed_in_term()
        if is_open or not is_one_step(self.membership, membership):
            return None
        newcomers = membership.voters - self.membership.voters - {self.me}
        if not all(self._leading.is_caught_up(node, self.log.commit) for node in newcomers):
            return None
        entry = self.log.append(self.term, EntryKind.MEMBERSHIP, encode(membership))
        self._membership_index = entry.index
        self._adopt(entry)
        return entry.index, entry.term

    def read(self, id: int) -> bool:
        """Request a linearizable read; False if this node cannot serve it. `ready` returns the result."""
        if self._leading is None or not self._has_committed_in_term():
            return False
        # Only a heartbeat sent after the request can prove that this node still leads (6.4).
        self._leading.reads.append(Read(id, self.log.commit, self._leading.round + 1))
        self._leading.wants_round = True
        return True

    def transfer(self, to: NodeId) -> bool:
        """Hand leadership over to a voter, once it has everything."""
        leading = self._leading
        if leading is None or to == self.me or to not in self.membership.voters:
            return False
        leading.transferee = to
        leading.transfer_age = 0
        self._hand_over_if_ready(to)
        return True

    def compact(self, index: Index, data: bytes) -> Snapshot:
        """The state after applying `index` is `data`: the log up to there is not needed any more."""
        term = self.log.term(index)
        assert term is not None, "a snapshot ends at an entry that is still there"
        snapshot = Snapshot(index, term, self._memberships.at(index), data)
        self.log.compact(snapshot)
        self._memberships.compact(index)
        return snapshot

    def persisted(self, index: Index, term: Term) -> None:
        """The disk has all entries up to this one."""
        self.log.persisted(index, term)
        if self._leading is not None and term == self.term:
            self._leading.is_term_on_disk = True
        self._advance_commit()

    def tick(self) -> None:
        self._elapsed += 1
        if self._leading is not None:
            self._tick_leader(self._leading)
        elif self._elapsed >= self._timeout and self._may_campaign():
            self._campaign(Role.PRE_CANDIDATE)

    def lost_touch(self, node: NodeId) -> None:
        """Its connection broke. If it leads, that is as if it had been silent for a while: we act sooner.

        This moves our clock, nothing else. A node that still receives from the leader refuses our pre-vote.
        """
        if node == self.leader and self._leading is None:
            self._elapsed = max(self._elapsed, self.timing.election)

    def ready(self) -> Ready:
        """Everything that has become due since the last call."""
        ready = Ready(snapshot=self._snapshot)
        hard_state = HardState(self.term, self.vote)
        if hard_state != self._written:
            ready.hard_state = self._written = hard_state
        ready.entries = self.log.unstable()
        ready.messages = self._outbox
        self._outbox = []
        if self._leading is not None:
            outbox = ready.early if self._leading.is_term_on_disk else ready.messages
            self._leading.fill(outbox, self.log, self.term, self.timing.append_bytes)
            self._reads_served += self._leading.confirmed_reads(self.membership)
        ready.reads = self._reads_served
        self._reads_served = []
        ready.lost_reads = self._reads_lost
        self._reads_lost = []
        ready.committed = self.log.to_apply()
        self._snapshot = None
        return ready

    # Messages of other nodes.

    def step(self, message: Message) -> None:
        if message.term > self.term:
            if not self._takes_newer_term(message):
                return
        elif message.term < self.term:
            self._answer_the_past(message)
            return
        match message.kind:
            case Kind.PRE_VOTE | Kind.VOTE:
                self._on_vote(message)
            case Kind.PRE_VOTE_REPLY | Kind.VOTE_REPLY:
                self._on_vote_reply(message)
            case Kind.APPEND:
                self._follow(message.sender)
                self._on_append(message)
            case Kind.SNAPSHOT:
                self._follow(message.sender)
                self._on_snapshot(message)
            case Kind.APPEND_REPLY:
                self._on_append_reply(message)
            case Kind.TIMEOUT_NOW:
                if self._leading is None and self.me in self.membership.voters:
                    self._campaign(Role.CANDIDATE, is_transfer=True)

    def _takes_newer_term(self, message: Message) -> bool:
        """Whether to process this message. A newer term makes this node a follower, except in a pre-vote."""
        kind = message.kind
        if kind in (Kind.PRE_VOTE, Kind.VOTE) and not message.is_transfer and self._hears_a_leader():
            return False  # a node that still receives from the leader does not help to replace it (6, 9.6)
        is_only_asked = kind is Kind.PRE_VOTE or (kind is Kind.PRE_VOTE_REPLY and not message.rejected)
        if not is_only_asked:
            self._become_follower(message.term)
        return True

    def _hears_a_leader(self) -> bool:
        return self.leader is not None and self._elapsed < self.timing.election

    def _answer_the_past(self, message: Message) -> None:
        """Send this node's term to a sender in an older term, so that it steps down."""
        if message.kind in (Kind.APPEND, Kind.SNAPSHOT):
            # Only the term matters. The sender may lead again by now, in this term, and must not take a reply
            # to an old message (above all its round) for a reply to a current one.
            self._outbox.append(Message(Kind.APPEND_REPLY, self.me, message.sender, self.term, rejected=True))
        elif message.kind is Kind.PRE_VOTE:
            self._outbox.append(
                Message(Kind.PRE_VOTE_REPLY, self.me, message.sender, self.term, rejected=True)
            )

    # Elections.

    def _may_campaign(self) -> bool:
        """Whether to campaign, also as a node that an open change removes: only it may have it (4.2.2)."""
        return any(self.me in membership.voters for membership in self._memberships.since(self.log.commit))

    def _campaign(self, role: Role, *, is_transfer: bool = False) -> None:
        self._stop_leading()
        self.role = role
        self.leader = None
        self._elapsed = 0
        self._votes = {}
        self._draw_timeout()
        if role is Role.CANDIDATE:
            self.term = Term(self.term + 1)
            self.vote = self.me
        self._count_vote(self.me, granted=True)
        if self.role is not role:
            return  # alone, we have already won
        kind = Kind.VOTE if role is Role.CANDIDATE else Kind.PRE_VOTE
        term = self.term if role is Role.CANDIDATE else Term(self.term + 1)
        for node in sorted(self.membership.voters - {self.me}):
            question = Message(kind, self.me, node, term, self.log.last_index, self.log.last_term)
            question.is_transfer = is_transfer
            self._outbox.append(question)

    def _on_vote(self, message: Message) -> None:
        is_real = message.kind is Kind.VOTE
        grants = self._may_vote_for(message)
        reply = Kind.VOTE_REPLY if is_real else Kind.PRE_VOTE_REPLY
        if grants and is_real:
            self.vote = message.sender
            self._elapsed = 0
        # A granted pre-vote is answered in the requested term; everything else in this node's term.
        term = message.term if grants else self.term
        self._outbox.append(Message(reply, self.me, message.sender, term, rejected=not grants))

    def _may_vote_for(self, message: Message) -> bool:
        is_free = self.vote == message.sender or (self.vote is None and self.leader is None)
        is_later = message.kind is Kind.PRE_VOTE and message.term > self.term
        return (is_free or is_later) and self.log.is_up_to_date(message.index, message.log_term)

    def _on_vote_reply(self, message: Message) -> None:
        expected = {Kind.PRE_VOTE_REPLY: Role.PRE_CANDIDATE, Kind.VOTE_REPLY: Role.CANDIDATE}
        if self.role is not expected[message.kind]:
            return
        if self.role is Role.PRE_CANDIDATE and not message.rejected and message.term != self.term + 1:
            return  # an answer to an older question
        self._count_vote(message.sender, granted=not message.rejected)

    def _count_vote(self, node: NodeId, *, granted: bool) -> None:
        self._votes.setdefault(node, granted)
        voters = self.membership.voters
        in_favour = sum(self._votes.get(n, False) for n in voters)
        against = sum(not self._votes.get(n, True) for n in voters)
        if in_favour >= self.membership.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._campaign(Role.CANDIDATE)
            else:
                self._become_leader()
        elif against >= self.membership.quorum:
            self._become_follower(self.term)

    def _become_follower(self, term: Term) -> None:
        self._stop_leading()
        if term > self.term:
            self.term = term
            self.vote = None
        self.role = Role.FOLLOWER
        self.leader = None
        self._elapsed = 0
        self._draw_timeout()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self._elapsed = 0
        self._leading = Leading(self.me, self.log.last_index)
        # Votes are only requested once the disk holds the term. A single voter must wait for it too, or
        # could lead the same term twice, with other entries, after a crash.
        self._leading.is_term_on_disk = any(
            self._votes.get(node, False) for node in self._votes.keys() - {self.me}
        )
        # Entries that an older leader may have left uncommitted count as an open change (4.1).
        self._membership_index = self.log.last_index
        self._leading.follow(self.membership)
        self.log.append(self.term, EntryKind.NOTHING, b"")
        self._leading.is_beating = True

    def _stop_leading(self) -> None:
        if self._leading is not None:
            self._reads_lost += [read.id for read in self._leading.reads]
            self._leading = None

    def _draw_timeout(self) -> None:
        self._timeout = self.timing.election + self._randrange(self.timing.election)

    # Following.

    def _follow(self, leader: NodeId) -> None:
        """Handle a message of this term's leader."""
        assert self.role is not Role.LEADER, f"two leaders in term {self.term}: {self.me} and {leader}"
        self.role = Role.FOLLOWER
        self.leader = leader
        self._elapsed = 0

    def _on_append(self, message: Message) -> None:
        log = self.log
        if message.index < log.commit and (message.index > 0 or message.entries):
            self._reply(message, index=log.commit)
            return
        if message.index > 0 and not log.matches(message.index, message.log_term):
            hint, hint_term = log.disagreement(message.index, message.log_term)
            self._reply(message, index=message.index, rejected=True, hint=hint, hint_term=hint_term)
            return
        self._take_over(message.entries)
        last = Index(message.index + len(message.entries))
        self._commit_to(min(message.commit, last))
        self._reply(message, index=last)

    def _take_over(self, entries: tuple[Entry, ...]) -> None:
        before = self.log.last_index
        cut = self.log.overwrite(entries)
        if cut is not None:
            self._memberships.cut(cut)
        first_new = before + 1 if cut is None else cut
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP and entry.index >= first_new:
                self._adopt(entry)

    def _on_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        log = self.log
        assert snapshot is not None, "a snapshot message carries one"
        if snapshot.index > log.commit:
            if log.matches(snapshot.index, snapshot.term):
                # Our log already has all of it, and what follows may be acknowledged: it must not be dropped.
                self._commit_to(snapshot.index)
            else:
                log.restore(snapshot)
                self._memberships.restore(snapshot.membership)
                self._snapshot = snapshot
        self._reply(message, index=log.commit)

    def _reply(
        self,
        message: Message,
        *,
        index: Index,
        rejected: bool = False,
        hint: Index = NOWHERE,
        hint_term: Term = NO_TERM,
    ) -> None:
        reply = Message(Kind.APPEND_REPLY, self.me, message.sender, self.term, index=index, rejected=rejected)
        reply.hint = hint
        reply.hint_term = hint_term
        reply.round = message.round
        self._outbox.append(reply)

    def _adopt(self, entry: Entry) -> None:
        """A membership holds from the moment its entry is in the log (4.1)."""
        self._memberships.add(entry.index, entry.data)
        if self._leading is not None:
            self._leading.follow(self.membership)

    # Leading.

    def _tick_leader(self, leading: Leading) -> None:
        leading.heartbeat_elapsed += 1
        if leading.heartbeat_elapsed >= self.timing.heartbeat:
            leading.is_beating = True
            leading.heartbeat_elapsed = 0
        leading.tick(self.timing.election)
        if self._elapsed >= self.timing.election:
            self._elapsed = 0
            if not leading.heard_from_majority(self.membership):
                self._become_follower(self.term)

    def _on_append_reply(self, message: Message) -> None:
        leading = self._leading
        if leading is None or message.sender not in leading.progress:
            return
        progress = leading.progress[message.sender]
        progress.is_active = True
        progress.round = max(progress.round, message.round)
        if message.rejected:
            progress.rejected(message.index, self._agreement(message))
        elif progress.acknowledged(message.index):
            self._advance_commit()
            if self._leading is not None:
                self._hand_over_if_ready(message.sender)
        if self._leading is not None:
            self._reads_served += leading.confirmed_reads(self.membership)

    def _agreement(self, message: Message) -> Index:
        """Last index at which the logs may agree, given `hint_term` at `hint`: skips a whole term at once."""
        return self.log.disagreement(message.hint, message.hint_term)[0]

    def _advance_commit(self) -> None:
        leading = self._leading
        if leading is None:
            return
        agreed = leading.agreed(self.membership, self.log.stable)
        if agreed > self.log.commit and self._may_commit(agreed):
            self._commit_to(agreed)

    def _may_commit(self, index: Index) -> bool:
        """Whether counting commits `index`: only entries of the current term (paper figure 8)."""
        return self.log.term(index) == self.term

    def _commit_to(self, index: Index) -> None:
        self.log.commit = max(self.log.commit, index)
        removed = self._leading is not None and self.me not in self.membership.voters
        if removed and self.log.commit >= self._membership_index:
            self._become_follower(self.term)  # the change that removed us is committed (4.2.2)

    def _has_committed_in_term(self) -> bool:
        return self.log.term(self.log.commit) == self.term

    def _hand_over_if_ready(self, node: NodeId) -> None:
        leading = self._leading
        assert leading is not None, "only a leader hands over"
        if node == leading.transferee and leading.progress[node].match == self.log.last_index:
            self._outbox.append(Message(Kind.TIMEOUT_NOW, self.me, node, self.term))

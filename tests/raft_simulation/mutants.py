"""Mutants: Raft implementations with one mistake each, of the kind that people have really made.

The simulation must find every one of them. A mistake that no seed can show would mean that
the injected faults are too mild.
"""

from collections.abc import Sequence
from dataclasses import replace

from paceline.coordinator.raft.core import Raft, Role
from paceline.coordinator.raft.leading import Leading, Read
from paceline.coordinator.raft.log import RaftLog
from paceline.coordinator.raft.membership import Memberships, encode
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Kind,
    Membership,
    Message,
    NodeId,
    Ready,
    Term,
)


class VoteIsNotPersisted(Raft):
    """After a crash it votes again in the same term (paper 5.2)."""

    def ready(self) -> Ready:
        ready = super().ready()
        if ready.hard_state is not None:
            ready.hard_state = HardState(ready.hard_state.term, None)
        return ready


class TermIsNotPersisted(Raft):
    """After a crash it lives in the past and votes again."""

    def ready(self) -> Ready:
        ready = super().ready()
        ready.hard_state = None
        return ready


class VotesTwice(Raft):
    """Forgets in the middle of a term whom it has voted for."""

    def _may_vote_for(self, message: Message) -> bool:
        return self.log.is_up_to_date(message.index, message.log_term)


class VotesForAnyLog(Raft):
    """Votes for a candidate whose log is older than its own (paper 5.4.1)."""

    def _may_vote_for(self, message: Message) -> bool:
        is_later = message.kind is Kind.PRE_VOTE and message.term > self.term
        return self.vote in (None, message.sender) or is_later


class CountsItselfBeforeItsDisk(Raft):
    """A leader counts its own entry before it is on disk."""

    def _advance_commit(self) -> None:
        if self._leading is None:
            return
        agreed = self._leading.agreed(self.membership, self.log.last_index)
        if agreed > self.log.commit and self._may_commit(agreed):
            self._commit_to(agreed)


class AcknowledgesBeforeItsDisk(Raft):
    """A follower's acknowledgement leaves before the entries are on disk."""

    def ready(self) -> Ready:
        ready = super().ready()
        ready.early, ready.messages = [*ready.early, *ready.messages], []
        return ready


class AppendsWithoutLooking(Raft):
    """Takes entries without checking that the one before them matches (paper 5.3)."""

    def _on_append(self, message: Message) -> None:
        if message.index <= self.log.last_index and message.index >= self.log.commit:
            term = self.log.term(message.index)
            message = replace(message, log_term=message.log_term if term is None else term)
        super()._on_append(message)


class _ShorteningLog(RaftLog):
    def overwrite(self, entries: Sequence[Entry]) -> Index | None:
        if entries and self.term(entries[0].index) is not None and entries[0].index > self.commit:
            cut = entries[0].index
            del self._entries[cut - self.snapshot.index - 1 :]
            self._entries.extend(entries)
            self.stable = min(self.stable, Index(cut - 1))
            return cut
        return super().overwrite(entries)


class ADelayedMessageShortensTheLog(Raft):
    """Cuts the log at whatever arrives, also when it already has it (paper figure 2, step 3)."""

    def __init__(self, me: NodeId, hard_state: HardState, log: RaftLog, **rest: object) -> None:
        shortening = _ShorteningLog(log.snapshot, log.between(Index(log.snapshot.index + 1), log.last_index))
        super().__init__(me, hard_state, shortening, **rest)  # type: ignore[arg-type]  # as it was given


class CommitsBeyondWhatItHas(Raft):
    """Believes the leader's commit index for entries that it may have from someone else."""

    def _on_append(self, message: Message) -> None:
        super()._on_append(message)
        self._commit_to(min(message.commit, self.log.last_index))


class ReadsBeforeItsFirstCommit(Raft):
    """A new leader answers a read before it knows what is committed (6.4, step 1)."""

    def _has_committed_in_term(self) -> bool:
        return True


class _CountsLearners(Leading):
    def agreed(self, membership: Membership, own: Index) -> Index:
        nodes = Membership(membership.nodes)
        matches = [own if node == self.me else self.progress[node].match for node in nodes.voters]
        matches.sort(reverse=True)
        return matches[membership.quorum - 1]


class CountsLearners(Raft):
    """Lets those who only listen decide what is committed."""

    def _become_leader(self) -> None:
        super()._become_leader()
        old = self._leading
        assert old is not None, "it has just become leader"
        self._leading = _CountsLearners(old.me, old.last_index, old.progress)
        self._leading.is_beating = True


class ChangesManyAtOnce(Raft):
    """Lets two memberships be open at the same time, so that majorities need not overlap (4.1)."""

    def change(self, membership: Membership) -> tuple[Index, Term] | None:
        if self._leading is None or not membership.voters:
            return None
        entry = self.log.append(self.term, EntryKind.MEMBERSHIP, encode(membership))
        self._membership_index = entry.index
        self._adopt(entry)
        return entry.index, entry.term


class NoPreVote(Raft):
    """A node that is cut off raises its term for ever, and disturbs all nodes when it returns (9.6)."""

    def _campaign(self, role: Role, *, is_transfer: bool = False) -> None:
        super()._campaign(Role.CANDIDATE, is_transfer=is_transfer)


class NeverStepsDown(Raft):
    """A leader that receives nothing keeps its role (check quorum, 6.2)."""

    def _tick_leader(self, leading: Leading) -> None:
        for progress in leading.progress.values():
            progress.is_active = True
        super()._tick_leader(leading)


class NeverBacksUp(Raft):
    """Does not go back when a follower's log disagrees, so it never catches up (paper 5.3)."""

    def _on_append_reply(self, message: Message) -> None:
        if not message.rejected:
            super()._on_append_reply(message)


class CommitsOlderTermsByCounting(Raft):
    """Commits whatever a majority has, also an older term's entry (paper 5.4.2, figure 8)."""

    def _may_commit(self, index: Index) -> bool:
        return True


class ReadsWithoutAsking(Raft):
    """A leader answers a read at once, without asking whether it still leads (6.4)."""

    def read(self, id: int) -> bool:
        if self._leading is None or not self._has_committed_in_term():
            return False
        self._reads_served.append((id, self.log.commit))
        return True


class ReadsByAnOldRound(Raft):
    """Takes an answer to what was sent before the read as proof that it still leads (6.4, step 3)."""

    def read(self, id: int) -> bool:
        if self._leading is None or not self._has_committed_in_term():
            return False
        self._leading.reads.append(Read(id, self.log.commit, self._leading.round))
        self._leading.wants_round = True
        return True


class _KeepingMemberships(Memberships):
    def cut(self, first: Index) -> None:
        pass


class KeepsAMembershipThatWasOverwritten(Raft):
    """Goes on with a membership whose entry is no longer in its log (4.1)."""

    def __init__(self, me: NodeId, hard_state: HardState, log: RaftLog, **rest: object) -> None:
        super().__init__(me, hard_state, log, **rest)  # type: ignore[arg-type]  # as it was given
        self._memberships = _KeepingMemberships(log)


class TrustsOldAcknowledgements(Raft):
    """Believes an answer to what it said in an earlier term, though others have led since."""

    def step(self, message: Message) -> None:
        if message.kind is Kind.APPEND_REPLY and message.term < self.term and not message.rejected:
            message = replace(message, term=self.term)
        super().step(message)


class RepeatsAnOldRound(Raft):
    """Answers what was said in an older term with its round, though the sender may lead again (6.4)."""

    def _answer_the_past(self, message: Message) -> None:
        super()._answer_the_past(message)
        if message.kind is Kind.APPEND:
            self._outbox[-1].round = message.round


class ASnapshotDropsWhatFollows(Raft):
    """Replaces the whole log by a snapshot, with what it has acknowledged after it (figure 13, step 6)."""

    def _on_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        assert snapshot is not None, "a snapshot message carries one"
        if snapshot.index > self.log.commit:
            self.log.restore(snapshot)
            self._memberships.restore(snapshot.membership)
            self._snapshot = snapshot
        self._reply(message, index=self.log.commit)


class _RepeatingLog(RaftLog):
    def to_apply(self) -> list[Entry]:
        entries = super().to_apply()
        if entries and self.applied > self.snapshot.index:
            self.applied = Index(self.applied - 1)
        return entries


class AppliesTheLastEntryAgain(Raft):
    """Hands the same command out twice."""

    def __init__(self, me: NodeId, hard_state: HardState, log: RaftLog, **rest: object) -> None:
        repeating = _RepeatingLog(log.snapshot, log.between(Index(log.snapshot.index + 1), log.last_index))
        super().__init__(me, hard_state, repeating, **rest)  # type: ignore[arg-type]  # as it was given


class HelpsToReplaceALeaderThatIsWell(Raft):
    """Grants a vote though it receives from a leader, so that a returning node deposes it (6, 9.6)."""

    def _hears_a_leader(self) -> bool:
        return False


class DoesNotCampaignOnceRemoved(Raft):
    """Its own removal is open, no other node has received it, and no other can be elected (4.2.2)."""

    def _may_campaign(self) -> bool:
        return self.me in self.membership.voters


MUTANTS: dict[type[Raft], str] = {
    VoteIsNotPersisted: "power cuts",
    TermIsNotPersisted: "power cuts",
    VotesTwice: "changeable",
    VotesForAnyLog: "figure eight",
    CommitsOlderTermsByCounting: "figure eight",
    CountsItselfBeforeItsDisk: "power cuts",
    AcknowledgesBeforeItsDisk: "power cuts",
    AppendsWithoutLooking: "changeable",
    ADelayedMessageShortensTheLog: "changeable",
    CommitsBeyondWhatItHas: "changeable",
    TrustsOldAcknowledgements: "late post",
    RepeatsAnOldRound: "late post",
    ASnapshotDropsWhatFollows: "spring cleaning",
    AppliesTheLastEntryAgain: "changeable",
    ReadsBeforeItsFirstCommit: "lonely leaders",
    ReadsWithoutAsking: "lonely leaders",
    ReadsByAnOldRound: "lonely leaders",
    CountsLearners: "moving house",
    ChangesManyAtOnce: "moving house",
    KeepsAMembershipThatWasOverwritten: "moving house",
    DoesNotCampaignOnceRemoved: "small beginnings",
    NoPreVote: "lonely leaders",
    HelpsToReplaceALeaderThatIsWell: "changeable",
    NeverStepsDown: "lonely leaders",
    NeverBacksUp: "changeable",
}
"""Each with the climate in which it shows soonest."""

"""Data types of Raft: log entries, membership, persistent state, messages. No behaviour.

Names follow the paper (Ongaro and Ousterhout 2014) and the thesis (Ongaro
2014); section numbers in comments are the thesis's unless marked "paper".
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

NodeId = NewType("NodeId", int)
Term = NewType("Term", int)
Index = NewType("Index", int)
NOWHERE = Index(0)  # before the first entry
NO_TERM = Term(0)


class EntryKind(IntEnum):
    COMMAND = 0  # of the replicated state machine
    NOTHING = 1  # a new leader's first entry: committing it commits all before it (paper 5.4.2, 8)
    MEMBERSHIP = 2  # who takes part from here on


@dataclass(frozen=True, slots=True)
class Entry:
    index: Index
    term: Term
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters decide; learners only listen, until they have caught up (4.2.1)."""

    voters: frozenset[NodeId]
    learners: frozenset[NodeId] = frozenset()

    @property
    def nodes(self) -> frozenset[NodeId]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that was applied up to `index`, in place of the log up to there."""

    index: Index
    term: Term
    membership: Membership
    data: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """State that must be on disk before any message that depends on it is sent (paper figure 2)."""

    term: Term
    vote: NodeId | None


class Kind(IntEnum):
    PRE_VOTE = 1  # asks for a vote without changing state, so a partitioned node cannot disrupt (9.6)
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5  # entries, the commit index, and a heartbeat
    APPEND_REPLY = 6
    SNAPSHOT = 7
    TIMEOUT_NOW = 8  # campaign at once: leadership transfer (3.10)


@dataclass(slots=True)
class Message:
    kind: Kind
    sender: NodeId
    to: NodeId
    term: Term
    index: Index = NOWHERE  # the entry before `entries`; the candidate's last; acknowledged up to here
    log_term: Term = NO_TERM  # term of that entry
    entries: tuple[Entry, ...] = ()
    commit: Index = NOWHERE
    rejected: bool = False
    hint: Index = NOWHERE  # after a rejection: last index at which the logs may agree
    hint_term: Term = NO_TERM
    round: int = 0  # heartbeat round of the sender; a reply repeats it, which confirms leadership
    is_transfer: bool = False  # this vote was ordered by the leader itself, so its lease does not count
    snapshot: Snapshot | None = None


@dataclass(slots=True)
class Ready:
    """Work of the shell: persist, then send, then apply. `early` may be sent before persisting.

    Early messages are a leader's appends: it does not count itself until its own disk has them.
    """

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None  # received; to be persisted in place of the whole log
    entries: list[Entry] = field(default_factory=list)  # to be persisted; may overwrite from the first index
    early: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)  # to be applied, in order
    reads: list[tuple[int, Index]] = field(default_factory=list)  # serve read `id` once `index` is applied
    lost_reads: list[int] = field(default_factory=list)  # leadership was not confirmed: ask again elsewhere

    @property
    def must_persist(self) -> bool:
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)

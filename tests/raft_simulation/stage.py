"""A few Raft nodes on a stage: one thing happens at a time, and every line that is said is written down.

No randomness: all nodes have the longest election timeout (twice the minimum), and messages wait until they
are delivered. What a scenario shows is therefore all that happened.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.coordinator.raft.core import Raft, Role, Timing
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.membership import decode
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

ROLES = {
    Role.FOLLOWER: "follows, in",
    Role.PRE_CANDIDATE: "asks around, in",
    Role.CANDIDATE: "campaigns in",
    Role.LEADER: "leads",
}


@dataclass(slots=True)
class Actor:
    raft: Raft
    is_up: bool = True
    applied: list[str] = field(default_factory=list)


class Stage:
    def __init__(self, voters: int, spares: int, timing: Timing) -> None:
        self.timing = timing
        self.first = Membership(frozenset(NodeId(n) for n in range(1, voters + 1)))
        self.waiting: list[Message] = []
        self.held: list[Message] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.lines: list[str] = []
        self.is_quiet = False
        self._reads = 0
        self.actors: dict[NodeId, Actor] = {}
        for number in range(1, voters + spares + 1):
            self.put_on(NodeId(number), [], Term(0))

    def put_on(self, node: NodeId, terms: list[Term], term: Term) -> None:
        """A node as it might have been found: with entries of these terms."""
        entries = [
            Entry(Index(index), term_, EntryKind.COMMAND, f"{index}.{term_}".encode())
            for index, term_ in enumerate(terms, start=1)
        ]
        self._start(node, HardState(term, None), RaftLog(empty_snapshot(self.first), entries))

    def say(self, line: str) -> None:
        if not self.is_quiet:
            self.lines.append(line)

    # What happens.

    def tick(self, node: NodeId, times: int) -> None:
        for _ in range(times):
            with_ = self._before(node)
            self.actors[node].raft.tick()
            self._after(node, with_)

    def campaign(self, node: NodeId) -> None:
        """Its patience ends: tick until it asks others, or leads."""
        count = len(self.waiting)
        for _ in range(2 * self.timing.election):
            self.tick(node, 1)
            if len(self.waiting) > count or self.actors[node].raft.is_leader:
                return
        self.say(f"{node} does not campaign")

    def elect(self, node: NodeId) -> None:
        """It campaigns and wins; how is not told."""
        told_before = len(self.lines)
        self.campaign(node)
        self.deliver(None)
        raft = self.actors[node].raft
        assert raft.is_leader, f"{node} was not elected"
        self.lines[told_before:] = [f"  {node} {ROLES[raft.role]} term {raft.term}"]

    def deliver(self, requested: set[tuple[NodeId, NodeId]] | None) -> None:
        """All that waits, and all that follows from it; or only what waits between some."""
        if requested is not None:
            results = [m for m in self.waiting if (m.sender, m.to) in requested]
            self.waiting = [m for m in self.waiting if (m.sender, m.to) not in requested]
            for message in results:
                self._arrive(message)
            return
        while self.waiting:
            self._arrive(self.waiting.pop(0))

    def drop(self, requested: set[tuple[NodeId, NodeId]]) -> None:
        for message in [m for m in self.waiting if (m.sender, m.to) in requested]:
            self.waiting.remove(message)
            self.say(f"{_between(message)} is lost: {sentence(message)}")

    def hold(self, requested: set[tuple[NodeId, NodeId]]) -> None:
        for message in [m for m in self.waiting if (m.sender, m.to) in requested]:
            self.waiting.remove(message)
            self.held.append(message)
            self.say(f"{_between(message)} is held back: {sentence(message)}")

    def release(self) -> None:
        held, self.held = self.held, []
        for message in held:
            self._arrive(message)

    def propose(self, node: NodeId, data: str) -> None:
        with_ = self._before(node)
        if self.actors[node].raft.propose(data.encode()) is None:
            self.say(f"{node} refuses: it does not lead, or is handing over")
        self._after(node, with_)

    def change(self, node: NodeId, membership: Membership) -> None:
        with_ = self._before(node)
        if self.actors[node].raft.change(membership) is None:
            self.say(f"{node} refuses the change for now")
        self._after(node, with_)

    def read(self, node: NodeId) -> None:
        self._reads += 1
        with_ = self._before(node)
        if self.actors[node].raft.read(self._reads):
            self.say(f"{node} takes read {self._reads}, and asks whether it still leads")
        else:
            self.say(f"{node} refuses read {self._reads}: it cannot say what is committed")
        self._after(node, with_)

    def transfer(self, node: NodeId, to: NodeId) -> None:
        with_ = self._before(node)
        if not self.actors[node].raft.transfer(to):
            self.say(f"{node} cannot hand over to {to}")
        self._after(node, with_)

    def compact(self, node: NodeId) -> None:
        raft = self.actors[node].raft
        snapshot = raft.compact(raft.log.applied, " ".join(self.actors[node].applied).encode())
        self.say(f"{node} replaces its log up to {snapshot.index} by a snapshot")

    def crash(self, node: NodeId) -> None:
        self.actors[node].is_up = False
        self.waiting = [m for m in self.waiting if m.sender != node]

    def restart(self, node: NodeId) -> None:
        raft = self.actors[node].raft
        log = raft.log
        kept = log.between(Index(log.snapshot.index + 1), log.stable)
        self._start(node, HardState(raft.term, raft.vote), RaftLog(log.snapshot, kept))

    def show(self, nodes: list[NodeId]) -> None:
        """One line each: who it is, the terms of its entries; a bar ends what it knows to be committed."""
        for node in nodes:
            raft = self.actors[node].raft
            log = raft.log
            first = [] if log.snapshot.index == 0 else [f"[snapshot to {log.snapshot.index}]"]
            entries = log.between(Index(log.snapshot.index + 1), log.last_index)
            terms = [str(entry.term) + ("|" if entry.index == log.commit else "") for entry in entries]
            name = "is down" if not self.actors[node].is_up else raft.role.value
            self.lines.append(f"{node}  {name:13} term {raft.term}  log: {' '.join(first + terms)}".rstrip())

    # How it is carried out and told.

    def _start(self, node: NodeId, hard_state: HardState, log: RaftLog) -> None:
        raft = Raft(node, hard_state, log, randrange=lambda below: below - 1, timing=self.timing)
        state = log.snapshot.data.decode().split()
        self.actors[node] = Actor(raft, applied=state)

    def _arrive(self, message: Message) -> None:
        route, description = _between(message), sentence(message)
        if (message.sender, message.to) in self.cut or not self.actors[message.to].is_up:
            self.say(f"{route} {description}  (lost)")
            return
        self.say(f"{route} {description}")
        before = self._before(message.to)
        self.actors[message.to].raft.step(message)
        self._after(message.to, before)

    def _before(self, node: NodeId) -> tuple[Role, Term, Index, Index, Membership]:
        raft = self.actors[node].raft
        return raft.role, raft.term, raft.log.last_index, raft.log.commit, raft.membership

    def _after(self, node: NodeId, before: tuple[Role, Term, Index, Index, Membership]) -> None:
        """Carry out what the node wants, and tell what has changed about it."""
        raft = self.actors[node].raft
        while True:
            ready = raft.ready()
            for line in self._changes(node, before, ready):
                self.lines.append(line)
            before = self._before(node)
            if ready.entries:
                raft.persisted(ready.entries[-1].index, ready.entries[-1].term)
            if ready.snapshot is not None:
                self.actors[node].applied = ready.snapshot.data.decode().split()
            self.waiting += [*ready.early, *ready.messages]
            self._apply(node, ready)
            if not (ready.must_persist or ready.committed or ready.reads):
                return

    def _apply(self, node: NodeId, ready: Ready) -> None:
        actor = self.actors[node]
        actor.applied += [e.data.decode() for e in ready.committed if e.kind is EntryKind.COMMAND]
        for number, index in ready.reads:
            self.lines.append(f"  {node} answers read {number} with all up to {index}")
        for number in ready.lost_reads:
            self.lines.append(f"  {node} gives up read {number}: ask another node")

    def _changes(
        self, node: NodeId, before: tuple[Role, Term, Index, Index, Membership], ready: Ready
    ) -> Iterator[str]:
        raft = self.actors[node].raft
        role, term, last, commit, membership = before
        if raft.role is not role or (raft.term != term and raft.role is not Role.FOLLOWER):
            yield f"  {node} {ROLES[raft.role]} term {raft.term}"
        elif raft.term != term:
            yield f"  {node} enters term {raft.term}"
        if ready.snapshot is not None:
            yield f"  {node} takes the snapshot up to {ready.snapshot.index} in place of its log"
        new = [entry for entry in ready.entries if entry.index > last or entry.index <= raft.log.last_index]
        if new:
            cut = " in place of what it had there" if new[0].index <= last else ""
            yield f"  {node} writes {describe_entries(tuple(new))}{cut}"
        if raft.membership != membership:
            yield f"  {node} now counts {members(raft.membership)}"
        if raft.log.commit != commit:
            yield f"  {node} knows that all up to {raft.log.commit} is committed"


def sentence(message: Message) -> str:
    """What one node says to another."""
    ends = f"(mine ends at {message.index}, term {message.log_term})"
    match message.kind:
        case Kind.PRE_VOTE:
            return f"would you vote for me in term {message.term}? {ends}"
        case Kind.VOTE:
            how = "the leader sends me: " if message.is_transfer else ""
            return f"{how}vote for me in term {message.term}! {ends}"
        case Kind.PRE_VOTE_REPLY:
            return (
                f"I would not, in term {message.term}"
                if message.rejected
                else f"I would, in term {message.term}"
            )
        case Kind.VOTE_REPLY:
            return f"no, in term {message.term}" if message.rejected else f"my vote, in term {message.term}"
        case Kind.APPEND:
            description = f"append {describe_entries(message.entries)} " if message.entries else "I lead, "
            after = f"after {message.index} of term {message.log_term}, " if message.index else ""
            return f"{description}{after}committed {message.commit}, term {message.term}"
        case Kind.APPEND_REPLY:
            if not message.rejected:
                return f"I have all up to {message.index}, term {message.term}"
            if message.index == 0:
                return f"no, it is term {message.term} by now"
            if message.hint_term:
                where = f"we may agree up to {message.hint}, where I have term {message.hint_term}"
            else:
                where = "we may agree nowhere" if message.hint == 0 else f"my log ends at {message.hint}"
            return f"no, not after {message.index}: {where}, term {message.term}"
        case Kind.SNAPSHOT:
            assert message.snapshot is not None, "it carries one"
            return f"take this snapshot up to {message.snapshot.index}, term {message.term}"
        case Kind.TIMEOUT_NOW:
            return f"campaign at once, term {message.term}"


def describe_entries(entries: tuple[Entry, ...]) -> str:
    if len(entries) > 2:
        terms = " ".join(str(entry.term) for entry in entries)
        return f"{entries[0].index} to {entries[-1].index} (terms {terms})"
    return ", ".join(f"{e.index}:{_content(e)} (term {e.term})" for e in entries)


def members(membership: Membership) -> str:
    voters = " ".join(str(node) for node in sorted(membership.voters))
    learners = " ".join(str(node) for node in sorted(membership.learners))
    return f"voters {voters}" + (f" and learners {learners}" if learners else "")


def _content(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NOTHING:
            return "nothing"
        case EntryKind.MEMBERSHIP:
            return members(decode(entry.data))
        case EntryKind.COMMAND:
            return entry.data.decode()


def _between(message: Message) -> str:
    return f"{message.sender} -> {message.to}"

"""Validation of incoming Raft messages: drop those that no correct peer can send.

The core trusts its input, and its assertions are for bugs of our own. A message that would break
an assertion, or that claims what cannot be true, is dropped here: losing a message is always
safe (paper 5.1). A false message that could be true is not detected.
"""

from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.membership import decode
from paceline.coordinator.raft.types import Entry, EntryKind, Kind, Membership, Message

LARGEST = 1 << 56  # of indices and rounds: a million a second, for two thousand years
MOST_TERMS = 1 << 32  # that another node can be ahead of us


def why_malformed(message: Message) -> str | None:
    """The defect of a message for any receiver; None: it is valid."""
    largest = max(message.index, message.commit, message.hint, message.round, message.sender, message.to)
    if largest > LARGEST:
        return f"a number as large as {largest}"
    if message.sender < 1 or message.to < 1:
        return "a message without sender or recipient"
    if message.log_term > message.term or message.hint_term > message.term:
        return f"entries of a later term than the sender's {message.term}"
    if message.entries and message.kind is not Kind.APPEND:
        return f"entries in a message of kind {message.kind.name}"
    return _wrong_entries(message)


def why_impossible(raft: Raft, message: Message) -> str | None:
    """Why no correct peer can have sent this message in the current state; None if it may be valid."""
    if message.term > raft.term + MOST_TERMS:
        return f"term {message.term}, far beyond term {raft.term}"
    if message.term != raft.term:
        return None
    is_a_leaders = message.kind in (Kind.APPEND, Kind.SNAPSHOT, Kind.TIMEOUT_NOW)
    if is_a_leaders and raft.leader not in (None, message.sender):
        return f"node {message.sender} claims term {message.term}, in which node {raft.leader} leads"
    if message.kind is Kind.APPEND_REPLY and raft.is_leader:
        if message.index > raft.log.last_index:
            return f"it has entry {message.index}, and the last one is {raft.log.last_index}"
        if message.round > raft.round:
            return f"it acknowledges heartbeat {message.round}, but the last one was {raft.round}"
    return None


def is_sane(membership: Membership) -> bool:
    nodes = membership.nodes
    is_numbered = all(1 <= node <= LARGEST for node in nodes)
    return bool(membership.voters) and is_numbered and not membership.voters & membership.learners


def _wrong_entries(message: Message) -> str | None:
    term = message.log_term
    for place, entry in enumerate(message.entries, start=message.index + 1):
        if entry.index != place:
            return "entries that do not follow each other"
        if not max(term, 1) <= entry.term <= message.term:
            return f"an entry of term {entry.term} after one of term {term}, in term {message.term}"
        if entry.kind is EntryKind.MEMBERSHIP and not _is_membership(entry):
            return "a membership that is none"
        term = entry.term
    return None


def _is_membership(entry: Entry) -> bool:
    try:
        return is_sane(decode(entry.data))
    except ValueError:
        return False

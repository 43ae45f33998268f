"""A slow viewer misses frames, never events."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.dashboard.stream import CAPACITY, Kind, Mailbox, Message

KINDS = st.sampled_from([Kind.FRAME, Kind.VIEW, Kind.EVENT])


def message(kind: Kind, seq: int) -> Message:
    return Message(kind, seq, b"{}")


def test_a_viewer_that_keeps_up_gets_everything_in_order() -> None:
    mailbox = Mailbox(lambda: None)
    for seq in range(CAPACITY):
        mailbox.put(message(Kind.FRAME, seq))
    assert [m.seq for m in mailbox.take()] == list(range(CAPACITY))
    assert mailbox.take() == []
    assert mailbox.dropped == 0


def test_the_oldest_frame_goes_first() -> None:
    mailbox = Mailbox(lambda: None)
    mailbox.put(message(Kind.EVENT, 0))
    for seq in range(1, CAPACITY + 3):
        mailbox.put(message(Kind.FRAME, seq))
    assert [m.seq for m in mailbox.take()] == [0, *range(4, CAPACITY + 3)]
    assert mailbox.dropped == 3


def test_too_many_events_force_a_reload() -> None:
    mailbox = Mailbox(lambda: None)
    for seq in range(CAPACITY + 1):
        mailbox.put(message(Kind.EVENT, seq))
    assert [(m.kind, m.seq) for m in mailbox.take()] == [(Kind.RESET, CAPACITY), (Kind.EVENT, CAPACITY)]


@given(st.lists(KINDS, max_size=300))
def test_no_event_is_missing_unless_the_viewer_must_reload(kinds: list[Kind]) -> None:
    mailbox = Mailbox(lambda: None, capacity=8)
    for seq, kind in enumerate(kinds):
        mailbox.put(message(kind, seq))
    taken = mailbox.take()
    assert len(taken) <= 9
    resets = [position for position, m in enumerate(taken) if m.kind is Kind.RESET]
    since = taken[resets[-1]].seq if resets else 0
    want = [seq for seq, kind in enumerate(kinds) if kind is Kind.EVENT and seq >= since]
    assert [m.seq for m in taken if m.kind is Kind.EVENT] == want


def test_it_goes_over_the_wire_as_a_server_sent_event() -> None:
    assert message(Kind.FRAME, 7).wire() == b"id: 7\nevent: frame\ndata: {}\n\n"

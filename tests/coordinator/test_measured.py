"""A node's latency histograms and counters, and their report."""

import asyncio
from pathlib import Path

from tests.coordinator.real.history import create
from tests.coordinator.real.in_process import CALM, nodes_in_process

from paceline.coordinator.admin.status import _encode_round_trips
from paceline.coordinator.raft.types import Entry, EntryKind, HardState, Index, Kind, Message, NodeId, Term
from paceline.coordinator.server.latency import LatencyMetrics

ME, OTHER = NodeId(1), NodeId(2)


def an_append(index: int) -> Message:
    entry = Entry(Index(index), Term(1), EntryKind.COMMAND, b"x")
    return Message(Kind.APPEND, ME, OTHER, Term(1), entries=(entry,))


def a_reply(index: int, *, rejected: bool = False) -> Message:
    return Message(Kind.APPEND_REPLY, OTHER, ME, Term(1), Index(index), rejected=rejected)


def test_commands_are_counted_when_the_last_of_their_batch_is_applied() -> None:
    measured = LatencyMetrics(ME, Term(0))
    measured.proposed(Index(5), 3, is_taken=True)
    measured.proposed(Index(7), 2, is_taken=True)
    measured.proposed(Index(7), 1, is_taken=False)
    measured.applied(Index(4))
    assert measured.commit.count == 0
    measured.applied(Index(5))
    assert measured.commit.count == 3
    measured.gave_up(2)
    measured.applied(Index(9))
    assert (measured.commit.count, measured.proposals_failed) == (3, 1 + 2)


def test_only_an_election_that_this_node_stood_in_counts() -> None:
    measured = LatencyMetrics(ME, Term(3))
    for state in (HardState(Term(3), ME), None, HardState(Term(4), OTHER), HardState(Term(5), ME)):
        measured.stood(state)
    measured.stood(HardState(Term(5), ME))
    assert measured.elections == 1


def test_a_round_trip_ends_with_the_answer_to_what_was_sent() -> None:
    measured = LatencyMetrics(ME, Term(0))
    measured.heard(a_reply(1))
    measured.sent([Message(Kind.APPEND, ME, OTHER, Term(1)), an_append(5), an_append(6)])
    measured.heard(a_reply(4))
    assert not measured.round_trip, "it answers what was sent before"
    measured.heard(a_reply(5))
    measured.heard(a_reply(6))
    assert measured.round_trip[OTHER].count == 1, "one message is timed at a time"
    measured.sent([an_append(7)])
    measured.heard(a_reply(7, rejected=True))
    measured.sent([an_append(8)])
    measured.lost_touch(OTHER)
    measured.heard(a_reply(8))
    assert measured.round_trip[OTHER].count == 1


def test_a_node_that_led_has_measured_round_trips_and_reports_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3, pace=CALM) as nodes, nodes.client() as client:
            await create(client, "one")  # a majority has it, so a follower has answered the leader
            reported = [_encode_round_trips(entry.services.status()) for entry in nodes.running.values()]
            assert any(reported), "a word for each node that was timed"
            assert sum(entry.node.latency.commit.count for entry in nodes.running.values()) > 0

    asyncio.run(story())

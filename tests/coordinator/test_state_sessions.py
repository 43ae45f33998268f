"""A command that is sent again is applied once, and the memory for that is bounded."""

from tests.fixtures.coordinator.commands import Cluster, result

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import sessions
from paceline.coordinator.state.machine import CoordinatorState

HOUR_MS = 3_600_000


def opened(cluster: Cluster, nonce: str = "n", by: str = "ann") -> int:
    outcome = result(cluster.say(pb.OpenSession(client="cli", nonce=nonce), by=by).outcome)
    assert isinstance(outcome, pb.Session)
    return outcome.session


def node(number: int) -> pb.NodeAddress:
    return pb.NodeAddress(node=number, address=f"host:{number}")


def test_a_session_is_the_log_index_of_its_opening() -> None:
    cluster = Cluster()
    assert [opened(cluster, "a"), opened(cluster, "b")] == [1, 2]


def test_opening_twice_because_the_answer_was_lost_gives_one_session() -> None:
    cluster = Cluster()
    assert opened(cluster) == opened(cluster) == 1
    assert len(cluster.state.sessions) == 1


def test_another_caller_with_the_same_nonce_gets_another_session() -> None:
    cluster = Cluster()
    assert opened(cluster, "n", by="ann") != opened(cluster, "n", by="bob")


def test_a_session_needs_a_nonce() -> None:
    assert Cluster().refused(pb.OpenSession(client="cli")).why == pb.INVALID


def test_a_command_sent_again_is_applied_once_and_answered_as_the_first_time() -> None:
    cluster = Cluster()
    session = opened(cluster)
    command = pb.CreateRun(run="r", min_workers=1)
    first = cluster.say(command, session, 1)
    again = cluster.say(command, session, 1)
    assert again.outcome == first.outcome
    assert again.outcome.index == first.outcome.index < cluster.index
    assert (len(first.changes), again.changes) == (1, ())


def test_a_refusal_is_an_answer_too_and_stays_the_same() -> None:
    cluster = Cluster()
    session = opened(cluster)
    first = cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED), session, 1)
    cluster.run("r")
    again = cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED), session, 1)
    assert again.outcome == first.outcome
    assert first.outcome.refusal.why == pb.NOT_FOUND


def test_commands_may_arrive_in_another_order_than_they_were_numbered() -> None:
    cluster = Cluster()
    session = opened(cluster)
    for sequence in (3, 1, 2):
        assert cluster.say(node(sequence), session, sequence, 1).changes
    assert sorted(cluster.state.nodes) == [1, 2, 3]


def test_without_a_session_a_command_is_applied_as_often_as_it_is_logged() -> None:
    cluster = Cluster().working("w")
    command = pb.RequestAction(run="r", kind="pause")
    assert cluster.ok(command, pb.Action).action != cluster.ok(command, pb.Action).action


def test_an_unknown_session_is_refused_and_nothing_is_applied() -> None:
    cluster = Cluster()
    outcome = cluster.say(node(1), session=99, sequence=1)
    assert outcome.outcome.refusal.why == pb.NO_SESSION
    assert not cluster.state.nodes


def test_no_other_caller_can_use_a_session() -> None:
    cluster = Cluster()
    session = opened(cluster, by="ann")
    outcome = cluster.say(node(1), session, 1, by="bob")
    assert outcome.outcome.refusal.why == pb.NO_SESSION
    assert cluster.say(node(1), session, 1, by="ann").changes


def test_a_closed_session_is_gone() -> None:
    cluster = Cluster()
    session = opened(cluster)
    assert result(cluster.say(pb.CloseSession(), session, 1).outcome)
    assert cluster.say(node(1), session, 2).outcome.refusal.why == pb.NO_SESSION
    assert opened(cluster) != session
    assert cluster.refused(pb.CloseSession()).why == pb.INVALID


def test_acknowledged_answers_are_forgotten_and_their_commands_not_applied_again() -> None:
    cluster = Cluster()
    session = opened(cluster)
    for sequence in range(1, 6):
        cluster.say(node(sequence), session, sequence, first_open=1)
    cluster.say(node(6), session, 6, first_open=5)
    assert sorted(cluster.state.sessions[session].answers) == [5, 6]
    late = cluster.say(pb.NodeAddress(node=2, address="late"), session, 2, first_open=1)
    assert late.outcome.refusal.why == pb.INVALID
    assert cluster.state.nodes[2].address == "host:2"


def test_a_command_cannot_acknowledge_its_own_answer() -> None:
    cluster = Cluster()
    session = opened(cluster)
    first = cluster.say(node(1), session, 1, first_open=1 << 60)
    assert cluster.say(node(1), session, 1, first_open=1 << 60).outcome == first.outcome


def test_an_hour_of_silence_ends_a_session_whichever_client_calls_next() -> None:
    cluster = Cluster()
    busy, silent = opened(cluster, "busy"), opened(cluster, "silent")
    for sequence in range(1, 4):
        cluster.elapsed_ms = HOUR_MS // 2
        cluster.say(node(1), busy, sequence)
    assert list(cluster.state.sessions) == [busy]
    assert cluster.say(node(1), silent, 1).outcome.refusal.why == pb.NO_SESSION


def test_time_never_goes_back_when_a_leader_with_a_slower_clock_follows() -> None:
    cluster = Cluster()
    cluster.now_ms = 10_000_000
    first = cluster.run("a")
    cluster.now_ms = 0
    assert cluster.run("b").created_ms == first.created_ms


def test_when_there_are_too_many_sessions_the_longest_unused_goes() -> None:
    cluster = Cluster()
    first, second, third = (opened(cluster, nonce) for nonce in "abc")
    for number in range(3, sessions.MAX_SESSIONS):
        opened(cluster, f"n{number}")
    cluster.say(node(1), first, 1)
    last = opened(cluster, "last")
    assert second not in cluster.state.sessions
    assert {first, third, last} <= set(cluster.state.sessions)
    assert len(cluster.state.sessions) == sessions.MAX_SESSIONS


def test_a_client_that_acknowledges_nothing_must_acknowledge_first() -> None:
    cluster = Cluster()
    session = opened(cluster)
    for sequence in range(1, sessions.MAX_ANSWERS + 1):
        cluster.say(node(1), session, sequence)
    last = sessions.MAX_ANSWERS + 1
    outcome = cluster.say(node(2), session, last)
    assert outcome.outcome.refusal.why == pb.NOT_NOW
    assert "first_open" in outcome.outcome.refusal.hint
    assert 2 not in cluster.state.nodes
    assert cluster.say(node(2), session, last, first_open=last).changes


def fill(cluster: Cluster, session: int) -> pb.Outcome:
    for sequence in range(10):
        command = pb.CreateRun(run=f"r{session}-{sequence}", plan="x" * 1_000_000, min_workers=1)
        answer = cluster.say(command, session, sequence).outcome
    return answer


def test_large_answers_are_bounded_in_one_session_and_in_all() -> None:
    cluster = Cluster()
    modest, *greedy = (opened(cluster, f"n{number}") for number in range(8))
    first = cluster.say(node(1), modest, 1)
    assert all(fill(cluster, session).refusal.why == pb.NOT_NOW for session in greedy)
    last = opened(cluster, "last")
    fill(cluster, last)
    assert list(cluster.state.sessions) == [modest, *greedy[1:], last]  # the client that held most lost one
    assert cluster.say(node(1), modest, 1).outcome == first.outcome
    held = sum(len(answer) for open_ in cluster.state.sessions.values() for answer in open_.answers.values())
    assert cluster.state.answer_bytes == held <= sessions.MAX_TOTAL_BYTES


def test_a_session_continues_after_the_state_was_restored() -> None:
    cluster = Cluster()
    session = opened(cluster)
    first = cluster.say(node(1), session, 1)
    cluster.state = CoordinatorState.restore(cluster.state.snapshot())
    assert cluster.say(node(1), session, 1).outcome == first.outcome
    assert opened(cluster) == session

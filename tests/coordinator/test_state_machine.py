"""The same log gives the same state on every node, for any content, and the state stays bounded."""

import random
import re
from collections.abc import Iterator
from functools import partial

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.coordinator.commands import KINDS, Cluster, command
from tests.fixtures.coordinator.mirror import Mirror
from tests.fixtures.coordinator.random_commands import random_command

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.generations import next_generation
from paceline.coordinator.state.machine import HANDLERS, MAX_COMMAND_BYTES, Applied, CoordinatorState

DIE = st.integers(0, 59)
TALK = st.lists(st.tuples(DIE, DIE, DIE, DIE, st.integers(0, 2_000_000)), max_size=80)
Draws = tuple[int, int, int, int, int]
PRELUDE = [
    command(text)
    for text in (
        pb.OpenSession(client="c", nonce="n"),
        pb.CreateRun(run="r", min_workers=1, samples=20),
        pb.JoinRun(run="r", worker="a"),
        pb.JoinRun(run="r", worker="b"),
        pb.JoinRun(run="r", worker="c", role="server"),
        pb.FormGeneration(run="r", workers=["a", "b"]),
    )
]


def conversation(messages: list[Draws]) -> Iterator[tuple[CoordinatorState, bytes, Applied]]:
    """The state after each command, the command, and what it did."""
    state, at_ms = CoordinatorState(), 0
    for index, data in enumerate(PRELUDE, 1):
        yield state, data, state.apply(index, data)
    for index, (kind, first, second, third, later_ms) in enumerate(messages, len(PRELUDE) + 1):
        at_ms += later_ms
        data = random_command(state, kind, (first, second, third), at_ms, later_ms)
        yield state, data, state.apply(index, data)


@settings(max_examples=200, deadline=None)
@given(TALK, st.integers(0, 80))
def test_the_same_log_gives_the_same_answers_and_bytes_also_across_a_snapshot(
    said: list[Draws], at: int
) -> None:
    log = [(data, applied) for _, data, applied in conversation(said)]
    other, restored = CoordinatorState(), CoordinatorState()
    for index, (data, applied) in enumerate(log, 1):
        if index == at:
            restored = CoordinatorState.restore(restored.snapshot())
        assert other.apply(index, data) == applied
        assert restored.apply(index, data) == applied
        assert other.snapshot() == restored.snapshot()


@settings(max_examples=100, deadline=None)
@given(TALK)
def test_a_snapshot_restored_is_the_same_state(said: list[Draws]) -> None:
    for state, _, _ in conversation(said):
        written = state.snapshot()
    assert CoordinatorState.restore(written).snapshot() == written
    assert CoordinatorState.restore(written) == state


def test_the_order_in_which_facts_came_is_in_no_bytes() -> None:
    """A map is kept in some order, which a snapshot does not keep."""
    original = CoordinatorState()
    facts = {f"fact {number * 7919 % 1000}": "x" for number in range(200)}
    for index, data in enumerate(PRELUDE, 1):
        original.apply(index, data)
    original.apply(7, command(pb.JoinRun(run="r", worker="z", facts=facts), 0, 1, 1))
    restored = CoordinatorState.restore(original.snapshot())
    leave = command(pb.LeaveRun(run="r", worker="z", incarnation=7), 0, 1, 2)
    for state in (original, restored):
        state.apply(8, leave)
    assert original.snapshot() == restored.snapshot()


@settings(max_examples=200, deadline=None)
@given(TALK)
def test_watching_the_changes_alone_yields_the_state(said: list[Draws]) -> None:
    mirror = Mirror()
    for state, _, applied in conversation(said):
        mirror.watch(applied.changes)
        mirror.check(state)
        assert all(change.at_ms == state.now_ms for change in applied.changes)
        assert all(change.index == applied.outcome.index for change in applied.changes)


@settings(max_examples=100, deadline=None)
@given(TALK)
def test_a_refused_command_changes_nothing(said: list[Draws]) -> None:
    before = CoordinatorState().snapshot()
    for state, _, applied in conversation(said):
        if applied.outcome.HasField("refusal"):
            assert applied.changes == ()
            assert without_time_and_sessions(state.snapshot()) == without_time_and_sessions(before)
        before = state.snapshot()


@settings(max_examples=200, deadline=None)
@given(TALK, st.lists(st.integers(0, 2**50), max_size=90))
def test_no_answer_depends_on_a_calendar(said: list[Draws], clocks_ms: list[int]) -> None:
    """Whatever the leaders' clocks say, in whatever order: only the times in the records differ."""
    skewed, state = CoordinatorState(), CoordinatorState()
    for index, (state, data, applied) in enumerate(conversation(said), 1):  # noqa: B007 - the last is needed
        decoded = pb.Command.FromString(data)
        decoded.at_ms = clocks_ms[index] if index < len(clocks_ms) else 0
        other = skewed.apply(index, decoded.SerializeToString())
        assert _without_calendar(other.outcome) == _without_calendar(applied.outcome)
        assert list(map(_without_calendar, other.changes)) == list(map(_without_calendar, applied.changes))
    assert list(skewed.sessions) == list(state.sessions)
    for record in skewed.runs.values():
        same = next_generation(state.runs[record.run.run], 10**9)
        assert next_generation(record, 10**9) == same


_CALENDAR = re.compile(r"^ *(?!used_elapsed)\w+_ms: \d+\n", re.MULTILINE)


def _without_calendar(message: Message) -> str:
    return _CALENDAR.sub("", str(message))


def without_time_and_sessions(snapshot: bytes) -> pb.State:
    decoded = pb.State.FromString(snapshot)
    for field in ("applied", "now_ms", "elapsed_ms", "sessions"):
        decoded.ClearField(field)
    return decoded


def long_talk() -> list[Draws]:
    roll = partial(random.Random(1).randrange, 60)
    return [(roll(), roll(), roll(), roll(), 1_000) for _ in range(6_000)]


def test_a_node_that_is_restarted_over_and_over_stays_equal_to_one_that_runs_on() -> None:
    restarted = CoordinatorState()
    for index, (state, data, applied) in enumerate(conversation(long_talk()), 1):
        assert restarted.apply(index, data) == applied
        if index % 50 == 0:
            restarted = CoordinatorState.restore(state.snapshot())
            assert restarted == state


def test_talk_is_about_everything() -> None:
    """Otherwise the tests above prove less than they say: every command is taken, and many are."""
    messages = long_talk()
    taken = [pb.Command.FromString(data) for _, data, applied in conversation(messages) if applied.changes]
    kinds = {command.WhichOneof("what") for command in taken}
    assert kinds | {"open_session", "close_session"} == set(HANDLERS)
    assert len(taken) > 1_000


def test_every_command_of_the_contract_has_a_handler() -> None:
    assert set(HANDLERS) == set(KINDS.values())


def full() -> Cluster:
    cluster = Cluster().working("a", "b", samples=10)
    cluster.say(pb.OpenSession(client="c", nonce="n"))
    return cluster


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_and_the_state_stays_as_it_was(data: bytes) -> None:
    cluster = full()
    before = cluster.without_time()
    applied = cluster.apply(data)
    if applied.outcome.HasField("refusal"):
        assert cluster.without_time() == before
        assert applied.changes == ()


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS.values())), inside=st.binary(max_size=60), at=st.integers(0, 200))
def test_commands_with_garbage_inside_never_break_the_machine(kind: str, inside: bytes, at: int) -> None:
    field = pb.Command.DESCRIPTOR.fields_by_name[kind].number
    tag = field << 3 | 2
    head = bytes([tag & 127 | 128, tag >> 7, len(inside)]) if tag > 127 else bytes([tag, len(inside)])
    data = bytearray(head + inside)
    data[at % len(data)] ^= 1 << (at % 8)
    cluster = full()
    before = cluster.without_time()
    for whole in (head + inside, bytes(data)):
        applied = cluster.apply(whole)
        if applied.outcome.HasField("refusal"):
            assert applied.changes == ()
        else:
            before = cluster.without_time()
        assert cluster.without_time() == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 30,
        pb.Command(session=1, sequence=2, at_ms=99_999_999).SerializeToString(),
        bytes([0xBA, 0x3E, 2, 8, 1]),  # field 999, of a newer version
    ],
)
def test_an_entry_without_a_known_command_is_refused_and_does_not_even_move_the_clock(data: bytes) -> None:
    cluster = full()
    now_ms = cluster.state.now_ms
    applied = cluster.apply(data)
    assert applied.outcome.refusal.why == pb.INVALID
    assert applied.outcome.index == cluster.index == cluster.state.applied
    assert cluster.state.now_ms == now_ms


def test_a_command_that_is_too_long_is_refused() -> None:
    cluster = full()
    refusal = cluster.refused(pb.JoinRun(run="r", worker="w", facts={"a": "x" * MAX_COMMAND_BYTES}))
    assert refusal.why == pb.INVALID
    assert str(MAX_COMMAND_BYTES) in refusal.hint
    assert cluster.run("long", min_workers=1).run == "long"
    plan = pb.CreateRun(run="planned", min_workers=1, plan="x" * MAX_COMMAND_BYTES)
    assert cluster.ok(plan, pb.Run).run == "planned"


def test_an_entry_is_never_applied_out_of_order() -> None:
    cluster = full()
    with pytest.raises(AssertionError, match="came after"):
        cluster.state.apply(cluster.index, command(pb.NodeAddress(node=1, address="h")))


FENCED: list[Message] = [
    pb.CommitStep(run="r", generation=1, step=9),
    pb.LeaseSamples(run="r", generation=1, worker="a", count=1),
    pb.CommitSamples(run="r", generation=1, lease=5),
    pb.BeginCheckpoint(run="r", generation=1, step=9, shards=1),
    pb.ShardDurable(run="r", generation=1, step=3, shard=pb.Shard(shard=1, uri="u", sha256="0" * 64)),
    pb.RevokeGeneration(run="r", generation=1),
]


@pytest.mark.parametrize("message", FENCED)
@pytest.mark.parametrize("how", ["revoked", "followed", "lost"])
def test_a_worker_of_a_generation_that_is_over_can_change_nothing(message: Message, how: str) -> None:
    cluster = Cluster().working("a", "b", samples=10)
    assert cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="a", count=3), pb.SampleLease).lease == 5
    cluster.ok(pb.BeginCheckpoint(run="r", generation=1, step=3, shards=2), pb.Checkpoint)
    if how == "revoked":
        cluster.say(pb.RevokeGeneration(run="r", generation=1, reason="so"))
    elif how == "followed":
        cluster.form(["a", "b"], previous=1)
    else:
        cluster.lose("b")
    refusal = cluster.refused(message)
    assert refusal.why == pb.FENCED
    assert "1" in refusal.what


@pytest.mark.parametrize("message", FENCED)
def test_before_the_first_generation_no_worker_works(message: Message) -> None:
    cluster = Cluster()
    cluster.run(samples=10)
    cluster.join("a")
    assert cluster.refused(message).why == pb.FENCED


STOPPED: list[Message] = [
    *FENCED,
    pb.FormGeneration(run="r", previous=1, workers=["a"]),
    pb.PlaceServer(run="r", shard=1, primary="a"),
    pb.PromoteBackup(run="r", shard=0, epoch=2),
    pb.JoinRun(run="r", worker="z"),
    pb.LeaveRun(run="r", worker="a", incarnation=2),
    pb.LoseWorker(run="r", worker="a", incarnation=2),
    pb.RequestAction(run="r", kind="pause"),
    pb.EndRun(run="r", phase=pb.RUN_FAILED),
]


@pytest.mark.parametrize("message", STOPPED)
def test_an_ended_run_stays_as_it_is(message: Message) -> None:
    cluster = Cluster().working("a", "b", samples=10)
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED))
    assert cluster.refused(message).why == pb.NOT_NOW


@pytest.mark.parametrize(
    "message",
    [*STOPPED, pb.DropCheckpoint(run="r"), pb.AcknowledgeAlert(run="r", alert="x"), pb.ForgetAlert(run="r")],
)
def test_a_run_that_was_not_created_is_not_found(message: Message) -> None:
    assert Cluster().refused(message).why == pb.NOT_FOUND


def test_what_the_machine_gives_away_is_no_part_of_it() -> None:
    cluster = Cluster().working("a")
    applied = cluster.say(pb.JoinRun(run="r", worker="b", facts={"k": "v"}))
    before = cluster.state.snapshot()
    for result in (applied.outcome.worker, applied.changes[0].worker):
        result.address = "elsewhere"
        result.facts["k"] = "other"
    assert cluster.state.snapshot() == before


def one_round(cluster: Cluster, number: int) -> None:
    """What goes on in a busy cluster, with as many new names and numbers as possible."""
    session = cluster.say(pb.OpenSession(client="c", nonce=f"n{number}")).outcome.session.session
    cluster.say(pb.AcknowledgeAlert(run="r", alert=f"slow:{number}"), session, 1)
    cluster.join("w")
    cluster.form(["w"], previous=number)
    lease = cluster.say(
        pb.LeaseSamples(run="r", generation=number + 1, worker="w", count=3)
    ).outcome.samples.lease
    cluster.say(pb.LeaseSamples(run="r", generation=number + 1, worker="w", count=3))
    cluster.say(pb.CommitSamples(run="r", generation=number + 1, lease=lease))
    for step in (2 * number, 2 * number + 1):
        cluster.say(pb.BeginCheckpoint(run="r", generation=number + 1, step=step, shards=1))
    shard = pb.Shard(uri="u", sha256="0" * 64)
    cluster.ok(pb.ShardDurable(run="r", generation=number + 1, step=2 * number, shard=shard), pb.Checkpoint)
    cluster.say(pb.DropCheckpoint(run="r", step=max(0, 2 * number - 2)))
    cluster.say(pb.PlaceServer(run="r", shard=number % 4, primary="w"))
    action = cluster.say(pb.RequestAction(run="r", kind="pause")).outcome.action.action
    cluster.say(pb.ReportAction(action=action, phase=pb.ACTION_APPLIED))
    cluster.run(f"r{number}")
    cluster.say(pb.EndRun(run=f"r{number}", phase=pb.RUN_FINISHED))
    cluster.elapsed_ms = 70


def test_a_hundred_thousand_commands_leave_a_small_state_that_has_stopped_growing() -> None:
    cluster = Cluster()
    cluster.run(samples=100)
    sizes = []
    for number in range(6_400):
        one_round(cluster, number)
        if number % 1_600 == 1_599:
            sizes.append(len(cluster.state.snapshot()))
    assert cluster.index > 100_000
    assert max(sizes) < 2_000_000
    assert sizes[3] < 1.02 * sizes[2]  # an hour of sessions is the last that fills up; numbers get longer

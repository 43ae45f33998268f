"""Is garbage refused, whoever sends it, and is nothing harmed? Seeded mistakes in what is really sent."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError
from tests.coordinator.real import samples
from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.direct import Direct
from tests.coordinator.real.history import History, create
from tests.coordinator.real.mutate import misfilled, mutated

from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.door import why_impossible
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.types import Entry, EntryKind, HardState, Index, Kind, Message, NodeId, Term
from paceline.coordinator.shell import records, wire
from paceline.coordinator.shell.identity import METHODS, Role
from paceline.coordinator.state.machine import ClusterState

SEED = 20260601
FRAMES = 100_000
AFRESH = 40  # frames until the nodes that hear them are made anew
ENTRIES = [
    Entry(Index(index), Term(1), EntryKind.COMMAND, command.SerializeToString())
    for index, command in enumerate(samples.commands()[:5], start=1)
]


class Subject:
    """A node's core and state, without disk or network: whatever is ready is done at once."""

    def __init__(self, *, leads: bool) -> None:
        log = RaftLog(empty_snapshot(samples.THREE), ENTRIES)
        dice = random.Random(SEED)
        self.raft = Raft(NodeId(1), HardState(Term(2), None), log, dice=dice.randrange)
        self.state = ClusterState()
        if leads:
            while not self.raft.is_leader:
                self.raft.tick()
                self._grant(Kind.PRE_VOTE_REPLY)
                self._grant(Kind.VOTE_REPLY)
            self.carry_out()

    def _grant(self, kind: Kind) -> None:
        """Another node says yes to whatever we ask of it."""
        for asked in self.raft.ready().messages:
            if asked.to == 2:
                self.raft.step(Message(kind, NodeId(2), NodeId(1), asked.term))

    def hear(self, found: pb.RaftMessage) -> bool:
        """Was it let in?"""
        try:
            message = wire.from_wire(found)
        except wire.BadFrameError:
            return False
        if message.kind is Kind.SNAPSHOT or message.to != 1 or message.sender == 1:
            return False  # as raft_service.py has it
        if why_impossible(self.raft, message) is not None:
            return False
        before = self.raft.term, self.raft.log.commit
        self.raft.step(message)
        self.carry_out()
        assert (self.raft.term, self.raft.log.commit) >= before
        assert self.raft.log.commit <= self.raft.log.last_index
        return True

    def carry_out(self) -> None:
        while True:
            ready = self.raft.ready()
            for entry in ready.committed:
                if entry.kind is EntryKind.COMMAND:
                    self.state.apply(entry.index, entry.data)
            if ready.entries:
                self.raft.persisted(ready.entries[-1].index, ready.entries[-1].term)
            if not (ready.must_persist or ready.messages or ready.committed):
                return


def test_a_hundred_thousand_mutated_frames_do_no_harm() -> None:
    dice = random.Random(SEED)
    good = samples.frames(term=3)
    plain = [wire.to_wire(message) for message in samples.messages(term=3)]
    heard: Counter[str] = Counter()
    subjects: Sequence[Subject] = ()
    for number in range(FRAMES):
        if number % AFRESH == 0:
            subjects = (Subject(leads=True), Subject(leads=False))
        subject = subjects[number // 2 % 2]
        # Every other one is wrong in its bytes, the rest in what it says.
        frame = _readable(mutated(dice, good)) if number % 2 else pb.Frame(messages=[misfilled(dice, plain)])
        if frame is None:
            heard["unreadable"] += 1
            continue
        for message in frame.messages:
            heard["let in" if subject.hear(message) else "refused"] += 1
        subject.raft.tick()
        subject.carry_out()
    # Each of the ways is really taken: the mistakes are neither too small nor too large.
    assert all(heard[way] > FRAMES // 20 for way in ("unreadable", "refused", "let in")), heard


def _readable(data: bytes) -> pb.Frame | None:
    try:
        return pb.Frame.FromString(data)
    except DecodeError:
        return None


def test_mutated_commands_are_refused_or_applied_and_never_raise() -> None:
    dice = random.Random(SEED)
    good = [command.SerializeToString() for command in samples.commands()]
    state, refusals = samples.state(), 0
    for index in range(state.applied + 1, 20_000):
        if index % 2000 == 0:
            state = samples.state()
        refusals += state.apply(index, mutated(dice, good)).outcome.HasField("refusal")
        if index % 500 == 0:
            packed = state.snapshot()
            assert ClusterState.restore(packed).snapshot() == packed
    assert refusals > 1000


def test_mutated_records_are_never_read_as_others() -> None:
    dice = random.Random(SEED)
    written = [
        records.format_record(NodeId(1)),
        records.hard_state_record(HardState(Term(3), NodeId(2))),
        *map(records.entry_record, ENTRIES),
    ]
    known = {(kind, payload) for part in written for _, kind, payload in records.read_records(part)}
    for _ in range(20_000):
        found = [(kind, payload) for _, kind, payload in records.read_records(mutated(dice, [b"".join(written)]))]
        assert set(found) <= known


def test_mutated_snapshots_are_refused_or_whole() -> None:
    dice = random.Random(SEED)
    good = samples.snapshot_parts()

    async def story() -> Counter[bool]:
        return Counter([await _offer(dice, good) for _ in range(3_000)])

    taken = asyncio.run(story())
    assert taken[True] > 100
    assert taken[False] > 1000


async def _offer(dice: random.Random, good: list[bytes]) -> bool:
    async def parts() -> AsyncIterator[pb.SnapshotPart]:
        spoiled = dice.randrange(len(good))
        for number, part in enumerate(good):
            yield pb.SnapshotPart.FromString(mutated(dice, [part]) if number == spoiled else part)

    try:
        _, message = await wire.from_parts(parts(), most_bytes=1 << 20)
    except (wire.BadFrameError, DecodeError):
        return False
    assert message.snapshot is not None
    assert message.snapshot.data == samples.state().snapshot()
    return True


# Against a living node.

ANSWERS = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,  # it does not lead right now
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.DEADLINE_EXCEEDED,  # of a stream that has no end
    }
)
AT_ONCE = 40


def test_a_living_node_answers_every_mutated_request_and_is_unharmed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=1) as cluster, cluster.client() as client:
            history = History("kept")
            await create(client, "kept")
            for _ in range(10):
                await history.mark(client)
            dice = random.Random(SEED)
            answers: Counter[grpc.StatusCode] = Counter()
            for role, calls in _calls(dice).items():
                async with Direct(cluster.addresses[1], cluster.token(role)) as node:
                    for start in range(0, len(calls), AT_ONCE):
                        told = await asyncio.gather(
                            *(node.raw(method, parts, within_s=5) for method, parts in calls[start : start + AT_ONCE])
                        )
                        answers.update(code for code, _ in told)
            assert set(answers) <= ANSWERS, answers
            assert sum(answers.values()) > 3000
            await cluster.whole()
            await history.mark(client)
            assert await history.lost(client) == []
            assert cluster.terminate(1) == 0
            cluster.on_disk(1)
            cluster.start(1)
            assert await history.lost(client) == []
            assert "Traceback" not in cluster.output(1)

    asyncio.run(story())


Call = tuple[str, list[bytes]]


def _calls(dice: random.Random) -> dict[Role, list[Call]]:
    requests = samples.requests()
    # Live and Changes answer as long as they are listened to: they are tried apart.
    client_methods = list(requests)
    made: dict[Role, list[Call]] = {role: [] for role in (Role.WORKER, Role.ADMIN, Role.NODE)}
    for role in (Role.WORKER, Role.ADMIN):
        for _ in range(1000):
            method = dice.choice(client_methods)
            made[role].append((path(*method), [mutated(dice, [requests[method]])]))
    frames = samples.frames(term=3, last=12)
    for _ in range(1000):
        made[Role.NODE].append((path("Raft", "Talk"), [mutated(dice, frames) for _ in range(3)]))
    good = samples.snapshot_parts(term=1, index=1)
    for _ in range(200):
        made[Role.NODE].append((path("Raft", "Install"), [mutated(dice, [part]) for part in good]))
    return made

"""Malformed input from any caller is refused and harms nothing: seeded mutations of real messages."""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError
from tests.coordinator.real import samples
from tests.coordinator.real.cluster import Cluster, own_host
from tests.coordinator.real.direct import Direct
from tests.coordinator.real.history import History, create
from tests.coordinator.real.in_process import CALM, Nodes, nodes_in_process
from tests.coordinator.real.mutate import misfilled, mutated

from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.log import RaftLog, empty_snapshot
from paceline.coordinator.raft.types import Entry, EntryKind, HardState, Index, Kind, Message, NodeId, Term
from paceline.coordinator.raft.validate import why_impossible
from paceline.coordinator.server import raft_transport, storage
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.tls import init_pki, load_node_certificate, parse_node
from paceline.coordinator.server.tokens import Tokens
from paceline.coordinator.state.machine import CoordinatorState
from paceline.core.clock import unix_now_s

SEED = 20260601
FRAMES = 100_000
AFRESH = 40  # frames until the receiving nodes are replaced
ENTRIES = [
    Entry(Index(index), Term(1), EntryKind.COMMAND, command.SerializeToString())
    for index, command in enumerate(samples.commands()[:5], start=1)
]


class Subject:
    """A node's core and state, without disk or network: whatever is ready is done at once."""

    def __init__(self, *, leads: bool) -> None:
        log = RaftLog(empty_snapshot(samples.THREE), ENTRIES)
        rng = random.Random(SEED)
        self.raft = Raft(NodeId(1), HardState(Term(2), None), log, randrange=rng.randrange)
        self.state = CoordinatorState()
        if leads:
            while not self.raft.is_leader:
                self.raft.tick()
                self._grant(Kind.PRE_VOTE_REPLY)
                self._grant(Kind.VOTE_REPLY)
            self.carry_out()

    def _grant(self, kind: Kind) -> None:
        """Another node says yes to whatever we ask of it."""
        for message in self.raft.ready().messages:
            if message.to == 2:
                self.raft.step(Message(kind, NodeId(2), NodeId(1), message.term))

    def hear(self, result: pb.RaftMessage) -> bool:
        """Was it let in?"""
        try:
            message = raft_transport.from_wire(result)
        except raft_transport.BadFrameError:
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
    rng = random.Random(SEED)
    good = samples.frames(term=3)
    plain = [raft_transport.to_wire(message) for message in samples.messages(term=3)]
    counter: Counter[str] = Counter()
    subjects: Sequence[Subject] = ()
    for number in range(FRAMES):
        if number % AFRESH == 0:
            subjects = (Subject(leads=True), Subject(leads=False))
        subject = subjects[number // 2 % 2]
        # Every other one is wrong in its bytes, the rest in what it says.
        frame = _readable(mutated(rng, good)) if number % 2 else pb.Frame(messages=[misfilled(rng, plain)])
        if frame is None:
            counter["unreadable"] += 1
            continue
        for message in frame.messages:
            counter["let in" if subject.hear(message) else "refused"] += 1
        subject.raft.tick()
        subject.carry_out()
    # Each of the ways is really taken: the mistakes are neither too small nor too large.
    assert all(counter[way] > FRAMES // 20 for way in ("unreadable", "refused", "let in")), counter


def _readable(data: bytes) -> pb.Frame | None:
    try:
        return pb.Frame.FromString(data)
    except DecodeError:
        return None


def test_mutated_commands_are_refused_or_applied_and_never_raise() -> None:
    rng = random.Random(SEED)
    good = [command.SerializeToString() for command in samples.commands()]
    state, refusals = samples.state(), 0
    for index in range(state.applied + 1, 20_000):
        if index % 2000 == 0:
            state = samples.state()
        refusals += state.apply(index, mutated(rng, good)).outcome.HasField("refusal")
        if index % 500 == 0:
            packed = state.snapshot()
            assert CoordinatorState.restore(packed).snapshot() == packed
    assert refusals > 1000


def test_mutated_records_are_never_read_as_others() -> None:
    rng = random.Random(SEED)
    written = [
        storage.format_record(NodeId(1)),
        storage.hard_state_record(HardState(Term(3), NodeId(2))),
        *map(storage.entry_record, ENTRIES),
    ]
    known = {(kind, payload) for part in written for _, kind, payload in storage.read_records(part)}
    for _ in range(20_000):
        results = [
            (kind, payload) for _, kind, payload in storage.read_records(mutated(rng, [b"".join(written)]))
        ]
        assert set(results) <= known


def test_mutated_snapshots_are_refused_or_whole() -> None:
    rng = random.Random(SEED)
    good = samples.snapshot_parts()

    async def story() -> Counter[bool]:
        return Counter([await _offer(rng, good) for _ in range(3_000)])

    taken = asyncio.run(story())
    assert taken[True] > 100
    assert taken[False] > 1000


async def _offer(rng: random.Random, good: list[bytes]) -> bool:
    async def parts() -> AsyncIterator[pb.SnapshotPart]:
        spoiled = rng.randrange(len(good))
        for number, part in enumerate(good):
            yield pb.SnapshotPart.FromString(mutated(rng, [part]) if number == spoiled else part)

    try:
        _, message = await raft_transport.from_parts(parts(), most_bytes=1 << 20)
    except (raft_transport.BadFrameError, DecodeError):
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
            rng = random.Random(SEED)
            answers: Counter[grpc.StatusCode] = Counter()
            for role, calls in _calls(rng).items():
                async with Direct(cluster.addresses[1], cluster.token(role)) as node:
                    answers.update(await _answers(node, calls))
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


Call = tuple[str, bytes]


async def _answers(node: Direct, calls: list[Call]) -> list[grpc.StatusCode]:
    """Many at a time. Add waits for a node that never comes, so patience is short."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def ask(method: str, data: bytes) -> grpc.StatusCode:
        async with at_once:
            return (await node.raw(method, data, within_s=3))[0]

    return await asyncio.gather(*(ask(*call) for call in calls))


def _calls(rng: random.Random) -> dict[Role, list[Call]]:
    requests = samples.requests()
    made: dict[Role, list[Call]] = {role: [] for role in (Role.WORKER, Role.ADMIN, Role.NODE)}
    for role in (Role.WORKER, Role.ADMIN):
        for _ in range(1200):
            method = rng.choice(list(requests))
            made[role].append((path(*method), mutated(rng, [requests[method]])))
    frames = samples.frames(term=3, last=12)
    made[Role.NODE] += [(path("Raft", "Talk"), mutated(rng, frames)) for _ in range(2000)]
    # Of a term that is over and an entry that is there: if it is let in all the same, it changes nothing.
    whole = [samples.snapshot_in_one_part(term=1, index=1)]
    made[Role.NODE] += [(path("Raft", "Install"), mutated(rng, whole)) for _ in range(300)]
    return made


def test_strangers_wrong_roles_and_long_messages_are_refused_with_a_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "kept")
            address, tokens = nodes.addresses[1], nodes.tokens
            small = pb.CreateRun(run="run", min_workers=1).SerializeToString()
            long = pb.CreateRun(run="run", plan="x" * 3_900_000).SerializeToString()
            too_long = pb.CreateRun(run="run", plan="x" * 5_000_000).SerializeToString()
            runs, raft = path("Runs", "Create"), path("Raft", "Talk")
            code = grpc.StatusCode
            expected = [
                (Direct(address, with_token=False), runs, small, code.UNAUTHENTICATED, "carries no token"),
                (Direct(address), runs, small, code.UNAUTHENTICATED, "does not accept the token"),
                (_with(address, tokens, Role.VIEWER), runs, small, code.PERMISSION_DENIED, "is for admin"),
                (_with(address, tokens, Role.WORKER), runs, small, code.PERMISSION_DENIED, "is for admin"),
                (_with(address, tokens, Role.ADMIN), raft, b"", code.PERMISSION_DENIED, "is for node"),
                (_with(address, tokens, Role.NODE), runs, small, code.PERMISSION_DENIED, "is for admin"),
                (_with(address, tokens, Role.ADMIN), runs, b"\xff", code.INVALID_ARGUMENT, "can parse"),
                (_with(address, tokens, Role.ADMIN), runs, long, code.INVALID_ARGUMENT, "has 39000"),
                (
                    _with(address, tokens, Role.ADMIN),
                    runs,
                    too_long,
                    code.RESOURCE_EXHAUSTED,
                    "larger than max",
                ),
                (
                    _with(address, tokens, Role.ADMIN),
                    path("Runs", "Burn"),
                    b"",
                    code.UNIMPLEMENTED,
                    "no method",
                ),
                (
                    _with(address, tokens, Role.VIEWER),
                    path("Watch", "Changes"),
                    b"\xff",
                    code.INVALID_ARGUMENT,
                    "",
                ),
            ]
            for caller, method, data, status, words in expected:
                async with caller as node:
                    result, details = await node.raw(method, data)
                    assert result is status, f"{method}: {result}, {details}"
                    assert words in details
            left = await client.read("Runs.List", pb.ListRuns(), pb.RunList)
            assert [run.run for run in left.runs] == ["kept"]

    asyncio.run(story())


def _with(address: str, tokens: Tokens, role: Role) -> Direct:
    return Direct(address, tokens.of(role))


def test_a_leader_closes_streams_with_messages_that_no_node_can_send(tmp_path: Path) -> None:
    """Each of these would break an invariant of the core, if it were let in."""

    async def story() -> None:
        patient = replace(CALM, election_ticks=60)  # the leader must stay the same
        async with nodes_in_process(tmp_path, 3, pace=patient) as nodes, nodes.client() as client:
            await create(client, "kept")
            leader = await nodes.leader()
            raft = nodes.running[leader].node.raft
            sender, to, term = NodeId(leader % 3 + 1), NodeId(leader), raft.term
            last = raft.log.last_index
            messages = [
                Message(Kind.APPEND, sender, to, term),  # it leads too
                Message(Kind.APPEND_REPLY, sender, to, term, Index(last + 100)),  # it has what is not there
                Message(Kind.APPEND_REPLY, sender, to, term, last, round=raft.round + 100),
                Message(Kind.VOTE, sender, to, Term(1 << 60), last, term),  # after so many elections
                Message(Kind.SNAPSHOT, sender, to, term),  # without one
                Message(Kind.APPEND, sender, to, term, entries=(ENTRIES[3],)),  # after none of the others
            ]
            quiet = pb.Frame(cluster="paceline")
            async with _with(nodes.addresses[leader], nodes.tokens, Role.NODE) as node:
                for message in messages:
                    frame = pb.Frame(cluster="paceline", messages=[raft_transport.to_wire(message)])
                    code, details = await node.talk([frame, quiet])
                    assert code is grpc.StatusCode.INVALID_ARGUMENT, f"{message}: {code}"
                    assert details.endswith("run the same version on all nodes")
            assert raft.is_leader
            assert raft.term == term
            await create(client, "after")

    asyncio.run(story())


def test_a_snapshot_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "kept")
            data = samples.state().snapshot()
            spoiled = {
                "valid state": pb.SnapshotPart(data=b"\xff\xff", index=50),
                "with entry 18 in it": pb.SnapshotPart(data=data, index=17),
                "up to entry": pb.SnapshotPart(data=data, index=1 << 60),
                "invalid snapshot": pb.SnapshotPart(data=data, index=50, voters=[1], learners=[1]),
                "checksum is wrong": pb.SnapshotPart(data=data, index=50, crc=7),
                "not to 'other'": pb.SnapshotPart(data=data, index=50, cluster="other"),
            }
            message = pb.RaftMessage(kind=Kind.SNAPSHOT, sender=2, to=1, term=900)
            async with _with(nodes.addresses[1], nodes.tokens, Role.NODE) as node:
                for words, part in spoiled.items():
                    part.message.CopyFrom(message)
                    part.cluster = part.cluster or "paceline"
                    part.crc = part.crc or zlib.crc32(part.data)
                    part.term, part.is_last = 1, True
                    part.voters[:] = part.voters or [1, 2, 3]
                    code, details = await node.raw(path("Raft", "Install"), part.SerializeToString())
                    assert code is grpc.StatusCode.INVALID_ARGUMENT
                    assert words in details, details
            await create(client, "after")

    asyncio.run(story())


def test_a_node_sends_only_in_its_own_name(tmp_path: Path) -> None:
    """With certificates: one node's does not do for what another one says."""

    async def story() -> None:
        host = own_host()
        made = [parse_node(f"{node}={host}") for node in (1, 2, 3)]
        init_pki(tmp_path / "pki", made, now_s=unix_now_s())
        proof = load_node_certificate(tmp_path / "pki", 1)
        nodes = Nodes(tmp_path, {1: f"{host}:7401"}, CALM, lease_s=3.0, grace_s=0.5, proof=proof)
        await nodes.start(1)
        try:
            async with Direct(nodes.addresses[1], load_node_certificate(tmp_path / "pki", 2)) as two:
                for sender, code in ((2, grpc.StatusCode.OK), (3, grpc.StatusCode.INVALID_ARGUMENT)):
                    message = raft_transport.to_wire(
                        Message(Kind.VOTE_REPLY, NodeId(sender), NodeId(1), Term(1))
                    )
                    frame = pb.Frame(cluster="paceline", messages=[message])
                    result, details = await two.raw(path("Raft", "Talk"), frame.SerializeToString())
                    assert result is code, details
                assert "node-2" in details
        finally:
            await nodes.stop(1)

    asyncio.run(story())

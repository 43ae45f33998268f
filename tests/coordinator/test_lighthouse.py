"""Lighthouse proxies hide leader failures from torchft's managers: real nodes and proxies, fake managers."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.direct import Direct
from tests.coordinator.real.in_process import nodes_in_process
from tests.coordinator.real.managers import FakeManager, names, open_job, proxy_to, quorum

from paceline.coordinator.client.aio import RefusedError
from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.server.access_policy import Role

REPLICAS = ("r0:x", "r1:y", "r2:z")


async def step(managers: list[FakeManager]) -> bytes:
    """All ask; all must hear the same bytes."""
    answers = await asyncio.gather(*(manager.ask() for manager in managers))
    assert len(set(answers)) == 1, [quorum(answer) for answer in answers]
    for manager in managers:
        manager.step += 1
    return answers[0]


async def played(stack: AsyncExitStack, address: str, *replicas: str) -> list[FakeManager]:
    return [await stack.enter_async_context(FakeManager(name, address)) for name in replicas]


async def taken_in(newcomer: FakeManager, members: list[FakeManager]) -> bytes:
    """Members go on until the newcomer is one of them; what all of them hear then."""
    coming = asyncio.create_task(newcomer.ask())
    expected = sorted(manager.name for manager in (*members, newcomer))
    while names(answer := await step(members)) != expected:
        assert names(answer) == expected[: len(members)]
    assert await coming == answer
    return answer


async def leading(cluster: Cluster) -> int:
    """Until one leads in the newest term that anybody speaks of; they may be too busy to be of one mind."""

    def found() -> list[int]:
        newest = max(cluster.standing(node)[0] for node in cluster.living())
        return [node for node in cluster.living() if cluster.standing(node) == (newest, "leader")]

    await cluster.until(lambda: bool(found()), "one of them leads")
    return found()[0]


def test_questions_that_wait_survive_the_leaders_death(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, AsyncExitStack() as stack:
            await open_job(cluster, min_replicas=3)
            proxy = await stack.enter_async_context(proxy_to(cluster))
            managers = await played(stack, proxy.address, *REPLICAS)
            first = quorum(await step(managers))
            assert [member.replica_id for member in first.participants] == list(REPLICAS)
            for _ in range(2):
                early = [asyncio.create_task(manager.ask()) for manager in managers[:2]]
                leader = await cluster.leader()
                assert not any(task.done() for task in early)
                cluster.kill(leader)
                answers = [await managers[2].ask(), *await asyncio.gather(*early)]
                assert len(set(answers)) == 1
                result = quorum(answers[0])
                assert result.quorum_id == first.quorum_id, "the members are the same"
                assert {member.step for member in result.participants} == {managers[0].step}
                for manager in managers:
                    manager.step += 1
                cluster.start(leader)
                await cluster.whole()

    asyncio.run(story())


def test_steps_continue_while_leaders_die_and_freeze(tmp_path: Path) -> None:
    """Each manager on its own, as fast as it can; every step must be one quorum for all."""

    async def train(manager: FakeManager, until: asyncio.Event, seen: dict[int, set[bytes]]) -> None:
        while not until.is_set():
            answer = await manager.ask()
            seen.setdefault(manager.step, set()).add(answer)
            manager.step += 1

    def has_gone_on(seen: dict[int, set[bytes]], since: int) -> bool:
        return max(seen, default=0) > since + 20

    def follows(cluster: Cluster, node: int, after: int) -> bool:
        term, role = cluster.standing(node)
        return term > after and role == "follower"

    async def story() -> None:
        async with Cluster(tmp_path) as cluster, AsyncExitStack() as stack:
            await open_job(cluster, min_replicas=3)
            proxies = [await stack.enter_async_context(proxy_to(cluster)) for _ in REPLICAS]
            pairs = zip(REPLICAS, proxies, strict=True)
            managers = [m for name, p in pairs for m in await played(stack, p.address, name)]
            seen: dict[int, set[bytes]] = {}
            enough = asyncio.Event()
            training = [asyncio.create_task(train(manager, enough, seen)) for manager in managers]
            for injure, recover in ((cluster.kill, cluster.start), (cluster.freeze, cluster.thaw)):
                before = max(seen, default=0)
                leader = await leading(cluster)
                term = cluster.standing(leader)[0]
                injure(leader)
                await cluster.until(partial(has_gone_on, seen, before), "steps go on")
                recover(leader)
                await cluster.until(partial(follows, cluster, leader, term), "it follows the new leader")
            enough.set()
            await _last_steps(training)
            complete = [answers for number, answers in seen.items() if number < min(m.step for m in managers)]
            assert len(complete) > 40
            assert all(len(answers) == 1 for answers in complete)
            assert len({quorum(next(iter(answers))).quorum_id for answers in complete}) == 1

    async def _last_steps(training: list[asyncio.Task[None]]) -> None:
        """A replica that is one step ahead of the others waits for them in vain."""
        _, waiting = await asyncio.wait(training, timeout=1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*training, return_exceptions=True)

    asyncio.run(story())


def test_an_answer_that_was_lost_with_a_leader_is_given_again_by_the_next(tmp_path: Path) -> None:
    """r0 has its answer and waits for r1 in an all-reduce; r1 must hear the same, without r0."""

    async def story() -> None:
        async with Cluster(tmp_path) as cluster:
            await open_job(cluster, min_replicas=2)
            leader = await cluster.leader()
            requests = [_ask_quorum("r0", "first"), _ask_quorum("r1", "second")]
            async with Direct(cluster.addresses[leader], cluster.token(Role.WORKER)) as node:
                answers = await asyncio.gather(*(_quorum_of(node, request) for request in requests))
            assert answers[0] == answers[1]
            cluster.kill(leader)
            new = await cluster.leader(cluster.living())
            async with Direct(cluster.addresses[new], cluster.token(Role.WORKER)) as node:
                assert await _quorum_of(node, requests[1]) == answers[1]
                # A new question is another matter, even if it says the same.
                again = _ask_quorum("r1", "third").SerializeToString()
                status, _ = await node.raw(path("Lighthouses", "Quorum"), again, within_s=0.3)
                assert status is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(story())


def test_a_replica_that_falls_silent_is_left_out_and_one_that_comes_is_taken_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=1) as cluster, AsyncExitStack() as stack:
            await open_job(cluster, min_replicas=2, heartbeat_timeout_ms=2_000)
            proxy = await stack.enter_async_context(proxy_to(cluster))
            members = await played(stack, proxy.address, "r0", "r1")
            first = await step(members)
            (newcomer,) = await played(stack, proxy.address, "r2:old")
            grown = await taken_in(newcomer, members)
            await newcomer.fall_silent()
            shrunk = await step(members)
            assert names(shrunk) == ["r0", "r1"]
            (newcomer,) = await played(stack, proxy.address, "r2:new")
            again = await taken_in(newcomer, members)
            numbers = [quorum(answer).quorum_id for answer in (first, grown, shrunk, again)]
            assert numbers == sorted(set(numbers))

    asyncio.run(story())


def test_a_request_that_timed_out_and_is_repeated_gets_its_response(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=1) as cluster, AsyncExitStack() as stack:
            await open_job(cluster, min_replicas=2)
            proxy = await stack.enter_async_context(proxy_to(cluster))
            one, two = await played(stack, proxy.address, "r0", "r1")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await one.ask(within_s=0.3)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert len(set(await asyncio.gather(one.ask(), two.ask()))) == 1
            one.failures = two.failures = 1
            before = quorum(await step([one, two])).quorum_id
            one.failures = two.failures = 0
            assert quorum(await step([one, two])).quorum_id == before

    asyncio.run(story())


def test_jobs_do_not_see_each_other_and_a_forgotten_one_ends_its_proxies(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=1) as cluster, AsyncExitStack() as stack:
            for job in ("one", "two"):
                await open_job(cluster, job)
            first = await stack.enter_async_context(proxy_to(cluster, "one"))
            second = await stack.enter_async_context(proxy_to(cluster, "two"))
            here, there = [
                *await played(stack, first.address, "a"),
                *await played(stack, second.address, "b"),
            ]
            assert names(await here.ask()) == ["a"]
            assert names(await there.ask()) == ["b"]
            async with cluster.client() as client:
                await client.write("Lighthouses.Forget", pb.ForgetLighthouse(job="one"), pb.Lighthouse)
            with pytest.raises(RefusedError) as forgotten:
                await first.ended()
            assert forgotten.value.why == "NOT_FOUND"
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await here.ask()
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            assert "'one'" in (unknown.value.details() or "")
            there.step += 1
            assert names(await there.ask()) == ["b"]

    asyncio.run(story())


def test_nodes_refuse_calls_without_a_token_and_do_not_serve_torchft_themselves(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes:
            requested = _ask_quorum("r0", "n").SerializeToString()
            async with Direct(nodes.addresses[1], with_token=False) as stranger:
                status, _ = await stranger.raw(path("Lighthouses", "Quorum"), requested)
                assert status is grpc.StatusCode.UNAUTHENTICATED
            async with Direct(nodes.addresses[1], nodes.tokens.of(Role.VIEWER)) as viewer:
                status, _ = await viewer.raw(path("Lighthouses", "Quorum"), requested)
                assert status is grpc.StatusCode.PERMISSION_DENIED
            async with Direct(nodes.addresses[1], nodes.tokens.of(Role.WORKER)) as worker:
                status, _ = await worker.raw("/torchft.LighthouseService/Heartbeat", b"")
                assert status is grpc.StatusCode.UNIMPLEMENTED
                status, words = await worker.raw(path("Lighthouses", "Quorum"), requested)
                assert status is grpc.StatusCode.NOT_FOUND
                assert "'job'" in words
                for bad in (
                    _ask_quorum("", "n"),
                    _ask_quorum("r0", ""),
                    _ask_quorum("r0", "n" * 65),
                    _ask_quorum("r" * 20_000, "n"),
                ):
                    status, _ = await worker.raw(path("Lighthouses", "Quorum"), bad.SerializeToString())
                    assert status is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(story())


def _ask_quorum(replica: str, nonce: str) -> pb.AskQuorum:
    return pb.AskQuorum(job="job", requester=torchft.QuorumMember(replica_id=replica, step=4), nonce=nonce)


async def _quorum_of(node: Direct, request: pb.AskQuorum) -> bytes:
    answer = await node.ask("Lighthouses", "Quorum", request, torchft.LighthouseQuorumResponse)
    return answer.SerializeToString(deterministic=True)

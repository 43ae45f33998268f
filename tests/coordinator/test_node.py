"""A node applies commands once, loses silent workers only, and sends watchers all changes in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.real.cluster import PATIENCE_S
from tests.coordinator.real.history import create, mark, notes
from tests.coordinator.real.in_process import CALM, Nodes, nodes_in_process
from tests.coordinator.real.proxy import Proxy
from tests.fixtures.wording import Wording

from paceline.coordinator.client.aio import Client, RefusedError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import monotonic_s

LEASE_S, GRACE_S = 2.0, 0.4
BEAT_S = 0.05


async def until(is_true: Callable[[], bool], description: str) -> None:
    deadline_s = monotonic_s() + PATIENCE_S
    while not is_true():
        assert monotonic_s() < deadline_s, f"waited {PATIENCE_S:g} s until {description}"
        await asyncio.sleep(0.01)


# Sessions.


def test_a_command_whose_answer_was_lost_is_applied_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes:
            real = nodes.addresses[1]
            line = Proxy(real.replace(":7401", ":7501"), real)
            async with line, nodes.client(addresses=[line.listen]) as client:
                await create(client, "before")  # a session is open, and the line is in use
                line.partition(there=False)
                task = asyncio.create_task(create(client, "once"))
                state = nodes.running[1].node.state
                await until(lambda: "once" in state.runs, "the command is applied")
                assert not task.done()
                line.reset()  # the answer is gone
                line.heal()
                await task  # asked again by the client: not a second run, and no refusal
                with pytest.raises(RefusedError) as refused:
                    await create(client, "once")  # another command with the same content is
                assert refused.value.why == "EXISTS"

    asyncio.run(story())


def test_a_client_continues_when_its_session_was_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "one")
            await client.write("Sessions.Close", pb.CloseSession(), pb.Session)
            await create(client, "two")
            content = await client.read("Runs.List", pb.ListRuns(), pb.RunList)
            assert [run.run for run in content.runs] == ["one", "two"]

    asyncio.run(story())


# Workers and their leases.


@asynccontextmanager
async def a_run(
    folder: Path, count: int = 1, *, lease_s: float, grace_s: float
) -> AsyncIterator[tuple[Nodes, Client]]:
    made = nodes_in_process(folder, count, lease_s=lease_s, grace_s=grace_s)
    async with made as nodes, nodes.client() as client:
        await create(client, "run")
        yield nodes, client


async def join(client: Client, name: str) -> pb.Worker:
    return await client.write("Members.Join", pb.JoinRun(run="run", worker=name, role="worker"), pb.Worker)


@asynccontextmanager
async def living(client: Client, worker: pb.Worker) -> AsyncIterator[list[pb.Order]]:
    """A worker that beats, as long as the block runs; the orders that it got."""
    orders: list[pb.Order] = []

    async def beats() -> AsyncIterator[pb.Beat]:
        while True:
            yield pb.Beat(run="run", worker=worker.worker, incarnation=worker.incarnation)
            await asyncio.sleep(BEAT_S)

    async def live() -> None:
        await client.find_leader()
        async for order in client.live(beats()):
            orders.append(order)

    task = asyncio.create_task(live())
    try:
        await until(lambda: bool(orders) or task.done(), f"worker {worker.worker} is heard")
        yield orders
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def workers(client: Client) -> dict[str, pb.Worker]:
    content = await client.read("Members.List", pb.ListWorkers(run="run", with_ended=True), pb.WorkerList)
    return {worker.worker: worker for worker in content.workers}


async def until_lost(client: Client, name: str) -> pb.Worker:
    deadline_s = monotonic_s() + PATIENCE_S
    while (worker := (await workers(client))[name]).phase != pb.WORKER_LOST:
        assert monotonic_s() < deadline_s, f"worker {name} is still there"
        await asyncio.sleep(0.02)
    return worker


def test_a_silent_worker_is_lost_and_one_that_beats_is_not(tmp_path: Path, wording: Wording) -> None:
    async def story() -> None:
        async with a_run(tmp_path, lease_s=LEASE_S, grace_s=GRACE_S) as (_, client):
            await join(client, "silent")
            async with living(client, await join(client, "lively")) as orders:
                assert orders[0].lease_ms == LEASE_S * 1000
                lost = await until_lost(client, "silent")
                wording(lost.reason)
                assert (await workers(client))["lively"].phase == pb.WORKER_JOINED
            lost = await until_lost(client, "lively")
            wording(lost.reason)

    asyncio.run(story())


def test_a_leader_gives_signs_of_life_when_there_is_no_news(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            a_run(tmp_path, lease_s=LEASE_S, grace_s=GRACE_S) as (_, client),
            living(client, await join(client, "lively")) as orders,
        ):
            await until(lambda: len(orders) >= 4, "a worker hears its leader again and again")
            assert {order.lease_ms for order in orders} == {int(LEASE_S * 1000)}

    asyncio.run(story())


def test_a_client_that_doubts_the_leader_calls_another_node_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3) as nodes, nodes.client() as client:
            led = await client.find_leader()
            client.doubt_leader()
            assert await client.find_leader() == led  # the other one knows, and says so

    asyncio.run(story())


def test_a_worker_that_comes_back_within_the_grace_is_kept_and_a_lost_one_is_fenced(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_run(tmp_path, lease_s=10.0, grace_s=LEASE_S) as (_, client):
            worker, other = await join(client, "back"), await join(client, "gone")
            async with living(client, worker):
                pass
            async with living(client, worker):
                async with living(client, other):
                    pass
                await until_lost(client, "gone")
                assert (await workers(client))["back"].phase == pb.WORKER_JOINED
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in client.live(_one_beat(other)):
                    pass
            assert refused.value.code() is grpc.StatusCode.ABORTED
            assert str(other.incarnation) in (refused.value.details() or "")

    asyncio.run(story())


async def _one_beat(worker: pb.Worker) -> AsyncIterator[pb.Beat]:
    yield pb.Beat(run="run", worker=worker.worker, incarnation=worker.incarnation)


def test_a_new_leader_does_not_evict_workers_that_find_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_run(tmp_path, 3, lease_s=LEASE_S, grace_s=GRACE_S) as (nodes, client):
            names = ["a", "b", "c"]
            joined = [await join(client, name) for name in names]
            await join(client, "silent")
            await nodes.stop(await nodes.leader())
            await nodes.leader()
            async with AsyncExitStack() as stack:
                for worker in joined:
                    await stack.enter_async_context(living(client, worker))
                await until_lost(client, "silent")  # a whole lease of the new leader has passed
                result = await workers(client)
                assert [result[name].phase for name in names] == [pb.WORKER_JOINED] * 3

    asyncio.run(story())


@pytest.mark.soak
def test_a_silent_worker_is_lost_within_its_lease_and_a_second(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, lease_s=1.0) as nodes, nodes.client() as client:
            await create(client, "run")
            for number in range(10):
                await join(client, f"silent-{number}")
                joined_s = monotonic_s()
                await until_lost(client, f"silent-{number}")
                assert 0.9 < monotonic_s() - joined_s < 2.0

    asyncio.run(story())


# Watching.


async def watched(client: Client, address: str, after: int, count: int) -> list[pb.Change]:
    results: list[pb.Change] = []
    async for change in client.watch(address, pb.WatchRequest(after=after)):
        results.append(change)
        if len(results) == count:
            break
    return results


def test_watchers_of_any_node_receive_every_change_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path, 3) as nodes, nodes.client() as client:
            await create(client, "run")
            first = nodes.running[await nodes.leader()].node.applied
            reported = [
                asyncio.create_task(watched(client, address, first, 50))
                for address in nodes.addresses.values()
            ]
            for number in range(50):
                await mark(client, "run", f"alert-{number}")
            for changes in await asyncio.gather(*reported):
                assert [change.alert.alert for change in changes] == [f"alert-{n}" for n in range(50)]
                indexes = [change.index for change in changes]
                assert indexes == sorted(set(indexes))

    asyncio.run(story())


def test_a_watcher_that_is_too_late_must_read_again(tmp_path: Path, wording: Wording) -> None:
    async def story() -> None:
        async with nodes_in_process(tmp_path) as nodes, nodes.client() as client:
            await create(client, "run")
            for number in range(5):
                await mark(client, "run", f"alert-{number}")
            await client.of_node(nodes.addresses[1], "Snapshot", pb.SnapshotRequest())
            await nodes.stop(1)
            await nodes.start(1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await watched(client, nodes.addresses[1], 1, 1)
            assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
            wording(refused.value.details() or "")
            assert len(await notes(client, "run")) == 5

    asyncio.run(story())


# Long logs.


def test_a_long_log_becomes_a_snapshot_and_a_node_that_was_away_gets_it(tmp_path: Path) -> None:
    async def story() -> None:
        pace = replace(CALM, snapshot_every=40)
        async with nodes_in_process(tmp_path, 3, pace=pace) as nodes, nodes.client() as client:
            await create(client, "run")
            away = await nodes.leader() % 3 + 1
            await nodes.stop(away)
            for number in range(100):
                await mark(client, "run", f"alert-{number}")
            await nodes.start(away)
            leader, late = nodes.running[await nodes.leader()].node, nodes.running[away].node
            await until(lambda: late.applied == leader.applied, "it has caught up")
            assert late.raft.log.snapshot.index >= 40
            assert len(late.raft.log.between(late.raft.log.snapshot.index, late.applied)) <= 41
            assert late.state.snapshot() == leader.state.snapshot()
            assert _snapshots(nodes, away) <= 2

    asyncio.run(story())


def test_few_entries_that_are_long_become_a_snapshot_too(tmp_path: Path) -> None:
    async def story() -> None:
        pace = replace(CALM, snapshot_bytes=20_000)
        async with nodes_in_process(tmp_path, pace=pace) as nodes, nodes.client() as client:
            await create(client, "run")
            for number in range(30):
                await mark(client, "run", f"alert-{number}", "x" * 1_000)
            node = nodes.running[1].node
            assert node.raft.log.snapshot.index >= 20
            assert len(await notes(client, "run")) == 30

    asyncio.run(story())


def _snapshots(nodes: Nodes, node: int) -> int:
    return len(list((nodes.folder / f"node-{node}").glob("snapshot-*")))

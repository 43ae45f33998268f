"""Membership of a worker in an elastic run: join, heartbeats, and news of generations from the coordinator.

A thread with its own event loop talks to the coordinator. Training never waits for it: inside a generation
the loop makes no requests. When the connection breaks, the thread finds the new leader and reads what it
missed; when the coordinator has given this worker up, it joins again as a new incarnation. A generation is
valid from the moment the worker receives it, and over from the moment it receives the revocation.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.client.blocking import Background
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import ActiveTimeout
from paceline.core.errors import SilenceError

Connect = Callable[[], Client]
Note = Callable[[str], None]
Reply = TypeVar("Reply", bound=Message)
ENDED = (pb.RUN_FINISHED, pb.RUN_FAILED, pb.RUN_STOPPED)
HEARTBEATS_PER_LEASE = 4
RETRY_S = 0.1
ALONE_S = 0.2  # poll interval for the loss of the coordinator
# A leader sends four heartbeats in a lease. A worker that receives none for half a lease connects to another
# leader. The new leader grants every worker one lease, so the worker reaches it before its lease expires.
SILENT_PER_LEASE = 0.5
MIN_SILENCE_S = 1.0


class Membership:
    def __init__(
        self,
        connect: Connect,
        *,
        run: str,
        worker: str,
        note: Note,
        role: str = "worker",
        address: str = "",
        facts: Mapping[str, str] | None = None,
        on_run: Callable[[], None] = lambda: None,
        is_alone: Callable[[], bool] = lambda: False,
        background: Background | None = None,
    ) -> None:
        """`facts`: what the others need besides the address.

        `on_run`: called in this object's thread whenever the run's record was read or has changed.

        `is_alone`: the run ends without the coordinator, so that its answers are not waited for.

        `background`: the loop of a process with other clients, instead of a thread of its own.
        """
        self._is_alone = is_alone
        self._background = background
        self._connect = connect
        self._run = run
        self._worker = worker
        self._note = note
        self._role = role
        self._address = address
        self._facts = {"pid": str(os.getpid()), **(facts or {})}
        self._on_run = on_run
        self._changed = threading.Condition()
        self._newest = pb.Generation()
        self._client: Client | None = None  # the thread's own
        self._has_ended = False
        self._leave_reason = ""  # why this worker leaves; set by close()
        self._lease_s = 1.0  # until the coordinator sends its length
        self._failure: Exception | None = None
        self._on_over: Callable[[], None] = lambda: None
        self._main: asyncio.Task[None] | None = None
        self._over = threading.Event()
        if background is not None:
            self._loop = background.loop
            background.begin(self._begin)
            return
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run_loop, name="membership", daemon=True).start()

    # Called by the training thread.

    def wait_for_generation(self, after: int, timeout_s: float) -> pb.Generation | None:
        """The newest one behind `after` that is not over and has us in it; None: the run has ended."""
        patience = ActiveTimeout(timeout_s)
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._has_ended or self._is_alone():
                    return None
                newest = self._newest
                if newest.number > after and not newest.is_revoked and self._worker in newest.workers:
                    return newest
                wait_s = patience.next_s()
                self._changed.wait(timeout=wait_s)
                if not wait_s:
                    raise SilenceError(
                        f"no generation with {self._worker} in it was formed within {timeout_s:g} s",
                        "check `paceline coordinator status`, and that enough workers are alive",
                    )

    def is_closed(self) -> bool:
        """Whether nothing of it runs any more, after `close` or an error."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise the error that ended the membership, if one has."""
        if self._failure is not None:
            raise self._failure

    def is_over(self, number: int) -> bool:
        """Cheap: called in every iteration of a wait."""
        newest = self._newest
        return newest.number > number or newest.is_revoked or self._has_ended

    def when_over(self, call: Callable[[], None]) -> None:
        """Register a callback for the end of a generation; it runs in this object's thread."""
        self._on_over = call

    def write(self, name: str, request: Message, reply: type[Reply], timeout_s: float) -> Reply:
        """`Client.write` from a thread that may block; TimeoutError without a response in time."""
        client = self._connected(timeout_s)
        return self._within(timeout_s, lambda: client.write(name, request, reply))

    def read(self, name: str, request: Message, reply: type[Reply], timeout_s: float) -> Reply:
        client = self._connected(timeout_s)
        return self._within(timeout_s, lambda: client.read(name, request, reply))

    def workers(self, timeout_s: float) -> list[pb.Worker]:
        """The run's living workers, with their addresses, as the coordinator knows them now."""
        known = self.read("Members.List", pb.ListWorkers(run=self._run), pb.WorkerList, timeout_s)
        return list(known.workers)

    def close(self, reason: str) -> None:
        """Leave the run, if the coordinator can be reached, and end the thread."""

        def end() -> None:
            if self._main is not None:
                self._main.cancel(reason)

        self._leave_reason = reason
        with suppress(RuntimeError):  # the thread and its loop have already ended
            self._loop.call_soon_threadsafe(end)
        self._over.wait()

    def _connected(self, timeout_s: float) -> Client:
        with self._changed:
            self._changed.wait_for(lambda: self._client or self._failure, timeout_s)
            if self._client is None:
                raise TimeoutError("there is no connection")
            return self._client

    def _within(
        self, timeout_s: float, ask: Callable[[], Coroutine[Any, Any, Reply]]
    ) -> Reply:  # Any: as awaited
        call = asyncio.run_coroutine_threadsafe(asyncio.wait_for(ask(), timeout_s), self._loop)
        try:
            return call.result(2 * timeout_s)  # longer: the loop itself may be gone
        except CancelledError as error:
            raise TimeoutError("the connection was closed") from error

    # On the loop.

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(asyncio.CancelledError):  # close() was called
                self._loop.run_until_complete(self._begin())
        finally:
            self._loop.close()
            self._over.set()

    def _begin(self) -> "asyncio.Task[None]":
        self._main = self._loop.create_task(self._live())
        if self._background is not None:
            self._main.add_done_callback(lambda _: self._over.set())
        return self._main

    async def _live(self) -> None:
        try:
            await self._belong()
        except Exception as error:  # also a fault: without heartbeats the coordinator gives this worker up
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._client = None

    async def _belong(self) -> None:
        async with self._connect() as client:
            with self._changed:
                self._client = client
                self._changed.notify_all()
            watching = asyncio.create_task(self._watch_alone(client))
            try:
                await self._be_member(client)
            finally:
                watching.cancel()

    async def _be_member(self, client: Client) -> None:
        while True:
            member = await self._join(client)
            try:
                await self._stay(client, member)
            except asyncio.CancelledError:
                await self._leave(client, member)
                raise
            self._note(f"{self._worker} was declared lost by the coordinator, and joins again")

    async def _watch_alone(self, client: Client) -> None:
        """The launcher decides that the run ends without the coordinator; every wait for it ends then."""
        while not self._is_alone():
            await asyncio.sleep(ALONE_S)
        client.give_up()
        with self._changed:
            self._changed.notify_all()

    async def _join(self, client: Client) -> pb.Worker:
        joining = pb.JoinRun(
            run=self._run,
            worker=self._worker,
            role=self._role,
            address=self._address,
            facts=self._facts,
        )
        while True:
            try:
                return await client.write("Members.Join", joining, pb.Worker)
            except UnreachableError as error:
                await self._rest_if_alone()
                self._note(f"the coordinator does not answer: {error.what}")

    async def _rest_if_alone(self) -> None:
        """Wait for close(): other threads await responses from this loop, so it must not end earlier."""
        if self._is_alone():
            await asyncio.Event().wait()

    async def _leave(self, client: Client, member: pb.Worker) -> None:
        leaving = pb.LeaveRun(
            run=self._run, worker=self._worker, incarnation=member.incarnation, reason=self._leave_reason
        )
        # The run may have ended, or the coordinator may be gone: the connection ends anyway.
        with suppress(RefusedError, UnreachableError, TimeoutError):
            await asyncio.wait_for(client.write("Members.Leave", leaving, pb.Worker), timeout=2)

    async def _stay(self, client: Client, member: pb.Worker) -> None:
        """Send heartbeats until the coordinator declares this incarnation lost."""
        while True:
            try:
                await client.find_leader()
                orders = client.live(self._beats(member))
                await self._follow_orders(client, orders)
            except UnreachableError:
                await self._rest_if_alone()
                continue  # training continues; the launcher reports it, once for all workers
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.ABORTED:
                    return
                await asyncio.sleep(RETRY_S)

    async def _beats(self, member: pb.Worker) -> AsyncIterator[pb.Beat]:
        while True:
            yield pb.Beat(run=self._run, worker=self._worker, incarnation=member.incarnation)
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)

    async def _follow_orders(self, client: Client, orders: AsyncIterator[pb.Order]) -> None:
        first = True
        while (order := await self._next(client, orders)) is not None:
            if order.lease_ms:
                self._lease_s = order.lease_ms / 1000
            if first:  # the stream brings changes from here on; the state before must be read
                view = await client.read("Runs.Get", pb.GetRun(run=self._run), pb.RunView)
                self._update(view.run, view.generation)
                first = False
            if order.change.HasField("generation"):
                self._update(None, order.change.generation)
            elif order.change.HasField("run"):
                self._update(order.change.run, None)

    async def _next(self, client: Client, orders: AsyncIterator[pb.Order]) -> pb.Order | None:
        """None: the stream has ended."""
        limit_s = max(MIN_SILENCE_S, self._lease_s * SILENT_PER_LEASE)
        patience = ActiveTimeout(limit_s, gap_s=2 * ActiveTimeout.LOOK_S)
        coming = asyncio.ensure_future(anext(orders, None))
        try:
            while wait_s := patience.next_s():
                await asyncio.wait((coming,), timeout=wait_s)
                if coming.done():
                    return coming.result()
        finally:
            await _ended(coming)
        client.doubt_leader()
        raise UnreachableError(f"the leader has been silent for {limit_s:g} s", "looking for another one")

    def _update(self, run: pb.Run | None, generation: pb.Generation | None) -> None:
        with self._changed:
            if run is not None and run.phase in ENDED:
                self._has_ended = True
            is_next = generation is not None and generation.number > self._newest.number
            if generation is not None and generation.number >= self._newest.number:
                self._newest = generation
            self._changed.notify_all()
        if self._has_ended or self._newest.is_revoked or is_next:
            self._on_over()
        if run is not None:
            self._on_run()


async def _ended(task: "asyncio.Future[pb.Order | None]") -> None:
    """Cancel it, and wait until it has ended."""
    if task.done():
        return
    task.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await task

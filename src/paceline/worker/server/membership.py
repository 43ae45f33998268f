"""Membership of servers and their workers: which server is primary, as the coordinator decided.

It extends elastic/membership.py: whenever anything changes, and for servers also every `POLL_S`, the thread
reads the whole view of the run: which server is primary and which is backup, and which workers live. A
server that the coordinator has given up does not join again: its state may be behind, so its process ends,
and a new one starts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import ActiveTimeout, monotonic_s
from paceline.core.errors import PeerLostError, TrainingError
from paceline.transport.handshake import Member
from paceline.worker.elastic.membership import ENDED, Connect, Membership, Note
from paceline.worker.elastic.worlds import member_of

SHARD = 0  # the coordinator places servers by shard; a run has one, which holds all parameters
FINISHED = "all work is done"  # why a server leaves at the end
POLL_S = 0.5
PATIENCE_S = 15.0
CHECK_S = 0.05
RESUME = "start the coordinator, then run `paceline train --resume RUN`"

Found = TypeVar("Found")


class FencedError(PeerLostError):
    """Another server has taken over."""

    code = "E406"


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """The run as the coordinator knew it at a moment after `taken_s`."""

    taken_s: float = 0.0
    placed: pb.ServerPlace | None = None  # None: there was no primary yet
    living: dict[str, pb.Worker] = field(default_factory=dict)
    is_done: bool = False  # a server has finished the work, or the run has ended
    is_alone: bool = False  # the coordinator is considered lost: these fields no longer change

    @property
    def place(self) -> pb.ServerPlace:
        return self.placed or pb.ServerPlace(shard=SHARD)


class ServerDirectory(Protocol):
    """Membership as servers and workers use it."""

    @property
    def view(self) -> CoordinatorView: ...

    @property
    def number(self) -> int:
        """Our incarnation; 0: we have not joined yet."""
        ...

    @property
    def lease_s(self) -> float: ...

    @property
    def is_fenced(self) -> bool: ...

    def when_changed(self, call: Callable[[], None]) -> None:
        """Register a callback for every read of the standing; it runs in another thread."""
        ...

    def wait_for(
        self, find: Callable[[CoordinatorView], Found | None], awaited: str, timeout_s: float
    ) -> Found:
        """Wait for a standing in which `find` returns a result, and return that result."""
        ...

    def put(self, *, primary: str, backup: str, epoch: int) -> None:
        """Agreed on, if the place is still of that epoch; else RefusedError. The view is read again."""
        ...

    def refresh(self) -> None:
        """Read the standing now."""
        ...


class ServerMembership(Membership):
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
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._view = CoordinatorView()
        self._number = 0
        self._is_fenced = False
        self._on_change: Callable[[], None] = lambda: None
        super().__init__(
            connect,
            run=run,
            worker=worker,
            note=note,
            role=role,
            address=address,
            facts=facts,
            is_alone=is_alone,
        )

    # Called by other threads.

    @property
    def view(self) -> CoordinatorView:
        return self._view

    @property
    def number(self) -> int:
        return self._number

    @property
    def is_fenced(self) -> bool:
        return self._is_fenced

    @property
    def lease_s(self) -> float:
        return self._lease_s

    def when_changed(self, call: Callable[[], None]) -> None:
        self._on_change = call

    def wait_for(
        self, find: Callable[[CoordinatorView], Found | None], awaited: str, timeout_s: float
    ) -> Found:
        patience = ActiveTimeout(timeout_s)
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                found = find(self._view)
                if found is not None:
                    return found
                if self._is_alone():
                    raise UnreachableError(f"{awaited}, and the coordinator is unreachable", RESUME)
                wait_s = patience.next_s()
                self._changed.wait(timeout=wait_s)
                if not wait_s:
                    raise TrainingError(
                        f"{awaited}: not within {timeout_s:g} s",
                        "check the nodes: `paceline coordinator status`",
                    )

    def put(self, *, primary: str, backup: str, epoch: int) -> None:
        request = pb.PlaceServer(run=self._run, shard=SHARD, primary=primary, backup=backup, epoch=epoch)

        async def write(client: Client) -> None:
            await client.write("Runs.Place", request, pb.ServerPlace)
            await self._refresh(client)

        self._call(write)

    def refresh(self) -> None:
        self._call(self._refresh)

    def _call(self, call: Callable[[Client], Coroutine[None, None, None]]) -> None:
        until_s = monotonic_s() + PATIENCE_S
        client = self._client
        if self._failure is not None:  # checked first: the client has ended with the thread
            raise self._failure
        assert client is not None, "we have joined"
        answer = asyncio.run_coroutine_threadsafe(call(client), self._loop)
        while not wait([answer], timeout=CHECK_S).done:
            if self._failure is not None:  # the thread has ended and sends no more responses
                raise self._failure
            if monotonic_s() > until_s:
                message = f"the coordinator did not answer within {PATIENCE_S:g} s"
                raise UnreachableError(message, "check the nodes: `paceline coordinator status`")
        answer.result()

    # The thread.

    async def _join(self, client: Client) -> pb.Worker:
        if self._role == "server" and self._number:
            self._is_fenced = True
            self._on_change()
            raise FencedError(
                f"{self._worker} was declared lost by the coordinator",
                "its successor has taken over; a new process starts under this name",
            )
        member = await super()._join(client)
        with self._changed:
            self._number = member.incarnation
            self._changed.notify_all()
        return member

    async def _watch_alone(self, client: Client) -> None:
        await super()._watch_alone(client)
        with self._changed:
            self._view = replace(self._view, is_alone=True)
        self._on_change()

    async def _follow_orders(self, client: Client, orders: AsyncIterator[pb.Order]) -> None:
        polling = asyncio.create_task(self._poll(client))
        try:
            while (order := await self._next(client, orders)) is not None:
                if order.lease_ms:
                    self._lease_s = order.lease_ms / 1000
                await self._refresh(client)
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    async def _poll(self, client: Client) -> None:
        while self._role == "server":
            await asyncio.sleep(POLL_S)
            try:
                await self._refresh(client)
            except (RefusedError, UnreachableError) as error:
                self._note(f"cannot read the run's state from the coordinator: {error.what}")

    async def _refresh(self, client: Client) -> None:
        taken_s = monotonic_s()
        run_view = await client.read("Runs.Get", pb.GetRun(run=self._run), pb.RunView)
        placed = next((place for place in run_view.servers if place.shard == SHARD), None)
        is_done = run_view.run.phase in ENDED
        if not is_done and placed is not None and not placed.primary:
            request = pb.ListWorkers(run=self._run, with_ended=True)
            workers = await client.read("Members.List", request, pb.WorkerList)
            is_done = any(w.role == "server" and w.reason == FINISHED for w in workers.workers)
        living = {worker.worker: worker for worker in run_view.workers}
        with self._changed:
            if taken_s >= self._view.taken_s:
                self._view = CoordinatorView(taken_s, placed, living, is_done)
            self._changed.notify_all()
        self._on_change()


class PrimaryRoute:
    """A worker's way to the primary."""

    def __init__(self, membership: ServerDirectory, timeout_s: float) -> None:
        self._membership = membership
        self._timeout_s = timeout_s

    def primary(self) -> Member | None:
        def find(view: CoordinatorView) -> tuple[Member | None] | None:
            primary = primary_of(view)
            return (primary,) if primary is not None or view.is_done else None

        return self._membership.wait_for(find, "no parameter server is primary", self._timeout_s)[0]

    def incarnation(self, after: int) -> int:
        def find(_: CoordinatorView) -> int | None:
            return self._membership.number if self._membership.number > after else None

        return self._membership.wait_for(find, "the coordinator did not accept this server", self._timeout_s)

    def on_primary_changed(self, call: Callable[[], None]) -> None:
        self._membership.when_changed(call)

    def is_primary(self, place: Member) -> bool:
        return primary_of(self._membership.view) == place


def primary_of(view: CoordinatorView) -> Member | None:
    server = view.living.get(view.place.primary)
    if server is None:
        return None
    return member_of(server)

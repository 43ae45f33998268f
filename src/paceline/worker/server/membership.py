"""How does a worker or server of an elastic run know who is primary? The coordinator says so, and why.

On top of membership.py: whenever anything changes, and for servers now and then
anyway, the whole standing of the run is read: which server is primary and
backup of which part, and who lives. A server that was given up is not taken in
again: what it knows may be behind, so its process ends, and a new one starts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import ActiveTimeout, monotonic_s
from paceline.core.errors import PeerLostError, TrainingError
from paceline.transport.elastic_wire import Primary
from paceline.worker.elastic.membership import ENDED, Connect, Membership, Note

SHARD = 0  # the coordinator places servers by shard; a run has one, which holds all parameters
FINISHED = "all work is done"  # why a server leaves in the end
POLL_S = 0.5
PATIENCE_S = 15.0
CHECK_S = 0.05
RESUME = "start the coordinator, then run `paceline train --resume RUN`"

Found = TypeVar("Found")


class FencedError(PeerLostError):
    """Somebody else has taken over."""

    code = "E406"


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """The run as the coordinator knew it at a moment after `taken_s`."""

    taken_s: float = 0.0
    placed: pb.ServerPlace | None = None  # None: nobody has been primary yet
    living: dict[str, pb.Worker] = field(default_factory=dict)
    is_done: bool = False  # a server has finished the work, or the run has ended
    is_alone: bool = False  # the coordinator was given up: nothing of this changes any more

    @property
    def place(self) -> pb.ServerPlace:
        return self.placed or pb.ServerPlace(shard=SHARD)


class ServerDirectory(Protocol):
    """What servers and workers ask of their membership."""

    @property
    def standing(self) -> CoordinatorView: ...

    @property
    def number(self) -> int:
        """Our incarnation; 0: we have not joined yet."""
        ...

    @property
    def lease_s(self) -> float: ...

    @property
    def is_fenced(self) -> bool: ...

    def when_changed(self, call: Callable[[], None]) -> None:
        """To be called, from another thread, whenever the standing was read."""
        ...

    def wait_for(self, find: Callable[[CoordinatorView], Found | None], what: str, timeout_s: float) -> Found:
        """What `find` finds in a standing, now or later."""
        ...

    def put(self, *, primary: str, backup: str, epoch: int) -> None:
        """Agreed on, if the place is still of that epoch; else RefusedError. The standing is read anew."""
        ...

    def look(self) -> None:
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
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._standing = CoordinatorView()
        self._number, self._is_fenced = 0, False
        self._on_change: Callable[[], None] = lambda: None
        super().__init__(
            connect, run=run, worker=worker, note=note, role=role, address=address, is_alone=is_alone
        )

    # What other threads ask.

    @property
    def standing(self) -> CoordinatorView:
        return self._standing

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

    def wait_for(self, find: Callable[[CoordinatorView], Found | None], what: str, timeout_s: float) -> Found:
        patience = ActiveTimeout(timeout_s)
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                found = find(self._standing)
                if found is not None:
                    return found
                if self._is_alone():
                    raise UnreachableError(f"{what}, and the coordinator was given up", RESUME)
                wait_s = patience.next_s()
                self._changed.wait(timeout=wait_s)
                if not wait_s:
                    raise TrainingError(
                        f"{what}: not within {timeout_s:g} s", "look at `paceline coordinator status`"
                    )

    def put(self, *, primary: str, backup: str, epoch: int) -> None:
        said = pb.PlaceServer(run=self._run, shard=SHARD, primary=primary, backup=backup, epoch=epoch)

        async def write(client: Client) -> None:
            await client.write("Runs.Place", said, pb.ServerPlace)
            await self._look(client)

        self._call(write)

    def look(self) -> None:
        self._call(self._look)

    def _call(self, call: Callable[[Client], Coroutine[None, None, None]]) -> None:
        until_s, client = monotonic_s() + PATIENCE_S, self._client
        if self._failure is not None:  # first: with the thread the client is gone too
            raise self._failure
        assert client is not None, "we have joined"
        answer = asyncio.run_coroutine_threadsafe(call(client), self._loop)
        while not wait([answer], timeout=CHECK_S).done:
            if self._failure is not None:  # the thread has ended, and answers nothing any more
                raise self._failure
            if monotonic_s() > until_s:
                what = f"the coordinator did not answer within {PATIENCE_S:g} s"
                raise UnreachableError(what, "look at `paceline coordinator status`")
        answer.result()

    # The thread.

    async def _join(self, client: Client) -> pb.Worker:
        if self._role == "server" and self._number:
            self._is_fenced = True
            self._on_change()
            raise FencedError(
                f"{self._worker} was given up by the coordinator",
                "its successor has taken over; a new process starts under this name",
            )
        me = await super()._join(client)
        with self._changed:
            self._number = me.incarnation
            self._changed.notify_all()
        return me

    async def _watch_alone(self, client: Client) -> None:
        await super()._watch_alone(client)
        with self._changed:
            self._standing = replace(self._standing, is_alone=True)
        self._on_change()

    async def _obey(self, client: Client, orders: AsyncIterator[pb.Order]) -> None:
        polling = asyncio.create_task(self._poll(client))
        try:
            while (order := await self._next(client, orders)) is not None:
                if order.lease_ms:
                    self._lease_s = order.lease_ms / 1000
                await self._look(client)
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    async def _poll(self, client: Client) -> None:
        while self._role == "server":
            await asyncio.sleep(POLL_S)
            try:
                await self._look(client)
            except (RefusedError, UnreachableError) as error:
                self._note(f"the coordinator does not say how things stand: {error.what}")

    async def _look(self, client: Client) -> None:
        taken_s = monotonic_s()
        view = await client.read("Runs.Get", pb.GetRun(run=self._run), pb.RunView)
        placed = next((place for place in view.servers if place.shard == SHARD), None)
        is_done = view.run.phase in ENDED
        if not is_done and placed is not None and not placed.primary:
            everybody = pb.ListWorkers(run=self._run, with_ended=True)
            workers = await client.read("Members.List", everybody, pb.WorkerList)
            is_done = any(w.role == "server" and w.reason == FINISHED for w in workers.workers)
        living = {worker.worker: worker for worker in view.workers}
        with self._changed:
            if taken_s >= self._standing.taken_s:
                self._standing = CoordinatorView(taken_s, placed, living, is_done)
            self._changed.notify_all()
        self._on_change()


class PrimaryRoute:
    """A worker's way to the primary."""

    def __init__(self, membership: ServerDirectory, timeout_s: float) -> None:
        self._membership = membership
        self._timeout_s = timeout_s

    def primary(self) -> Primary | None:
        def find(standing: CoordinatorView) -> tuple[Primary | None] | None:
            found = primary_of(standing)
            return (found,) if found is not None or standing.is_done else None

        return self._membership.wait_for(find, "no parameter server is primary", self._timeout_s)[0]

    def incarnation(self, after: int) -> int:
        def find(_: CoordinatorView) -> int | None:
            return self._membership.number if self._membership.number > after else None

        return self._membership.wait_for(find, "the coordinator did not take us in", self._timeout_s)

    def when_moved(self, call: Callable[[], None]) -> None:
        self._membership.when_changed(call)

    def is_primary(self, place: Primary) -> bool:
        return primary_of(self._membership.standing) == place


def primary_of(standing: CoordinatorView) -> Primary | None:
    server = standing.living.get(standing.place.primary)
    if server is None:
        return None
    host, _, port = server.address.rpartition(":")
    return Primary(server.worker, server.incarnation, host, int(port))

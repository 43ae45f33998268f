"""Blocking client of the coordinator, for code without an event loop.

    with BlockingClient(["127.0.0.1:7401"], access) as client:
        client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

Thread-safe: several threads may call at once. All clients of a process share one event loop in a
background thread, because gRPC's poller works best with a single loop. The first user starts the
thread; it stops when the last user closes its `Background`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from paceline.coordinator.client.aio import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token

Result = TypeVar("Result")


class Background:
    """A reference to the shared event loop; its holder must close it."""

    def __init__(self) -> None:
        self._shared = _Shared.acquire()
        self._is_open = True

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._shared.loop

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:  # Any: what it awaits does not matter
        """Run the coroutine and return or raise its result. Ctrl-C cancels it."""
        assert self._is_open, "it was closed"
        future = asyncio.run_coroutine_threadsafe(coroutine, self._shared.loop)
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError("the background loop was stopped while a caller waited for it") from error
        except KeyboardInterrupt:
            future.cancel()
            raise

    def begin(self, call: Callable[[], object]) -> None:
        """Run it in the loop, without waiting; for signal handlers too. Nothing happens once it is closed."""
        if self._is_open:
            self._shared.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._shared.release()


class _Shared:
    _lock = threading.Lock()
    _current: "_Shared | None" = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="paceline-coordinator", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> "_Shared":
        with cls._lock:
            if cls._current is None:
                cls._current = _Shared()
            cls._current._users += 1
            return cls._current

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _Shared._current = None
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    async def _end_tasks(self) -> None:
        """Those of grpc's streams end in the next rounds of the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Reply = TypeVar("Reply", bound=Message)


class BlockingClient:
    def __init__(
        self, addresses: Sequence[str], access: Token | Certificate, *, patience_s: float = 10.0
    ) -> None:
        self._background = Background()
        self._client = self._background.call(_client(addresses, access, patience_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._background.call(self._client.close())
        finally:
            self._background.close()

    def give_up(self) -> None:
        """See `Client.give_up`."""
        self._client.give_up()

    def write(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        return self._background.call(self._client.write(name, request, reply))

    def read(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        return self._background.call(self._client.read(name, request, reply))

    def manage(self, name: str, request: Message) -> pb.NodeStatus:
        return self._background.call(self._client.manage(name, request))

    def of_node(self, address: str, name: str, request: Message) -> pb.NodeStatus:
        return self._background.call(self._client.of_node(address, name, request))

    def find_leader(self) -> str:
        return self._background.call(self._client.find_leader())


async def _client(addresses: Sequence[str], access: Token | Certificate, patience_s: float) -> Client:
    """Created inside the loop, to which its locks and channels belong."""
    return Client(
        addresses,
        lambda address: security.open_channel(address, access),
        metadata=security.call_metadata(access),
        patience_s=patience_s,
    )

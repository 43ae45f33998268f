"""Rendezvous store: key-value exchange between the processes that a foreign launcher started.

torchrun (or rank 0) hosts torch's TCPStore at MASTER_ADDR:MASTER_PORT. A value that is `show`n stays for
all processes; one that is `sent` is received once and deleted. Long values are sent in chunks, because the
store refuses long ones. A store serves one call at a time, so each thread opens its own (`another`).
"""

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import DistError

from paceline.config.environment import World
from paceline.core.clock import ActiveTimeout, SystemClock, monotonic_s
from paceline.core.clock import boot_id as boot_id
from paceline.core.errors import NotReadyError, PeerLostError, SilenceError

CHUNK_BYTES = 4 << 20  # the store accepts at most 8 MiB
_CONNECT_RETRY_S = 0.2
_MIN_POLL_S = 0.001  # the interval between two polls grows from this
_MAX_POLL_S = 0.1  # up to this
_HINT = "see the log of that process; raise --timeout if it may take longer"
Result = TypeVar("Result")


class RendezvousStore:
    def __init__(self, world: World, store: Store, *, timeout_s: float) -> None:
        self.world = world
        self._store = store
        self.timeout_s = timeout_s

    @classmethod
    def enter(cls, world: World, *, timeout_s: float) -> "RendezvousStore":
        """Connect to the world's store, or host it; NotReadyError after the timeout."""
        if world.is_alone:
            return cls(world, HashStore(), timeout_s=timeout_s)
        is_host = world.rank == 0 and not world.agent_listens
        return cls(world, _open(world, timeout_s, is_host=is_host), timeout_s=timeout_s)

    @classmethod
    def host_at(cls, host: str, size: int, *, timeout_s: float) -> "RendezvousStore":
        """Host a store on a free port; its `world` holds the port."""
        with socket.create_server((host, 0), backlog=max(128, size)) as listener:
            world = World(size=size, host=host, port=int(listener.getsockname()[1]))
            store = TCPStore(
                host,
                world.port,
                size,
                is_master=True,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                master_listen_fd=listener.detach(),  # the store owns it from now on
            )
        return cls(world, PrefixStore(f"paceline/{world.restarts}", store), timeout_s=timeout_s)

    def another(self) -> "RendezvousStore":
        """A new connection to the same store, for another thread."""
        if self.world.is_alone:
            return self
        return RendezvousStore(self.world, _open(self.world, self.timeout_s), timeout_s=self.timeout_s)

    def for_group(self) -> Store:
        """A namespace of the store for torch's own process group."""
        return PrefixStore("group", self._store)

    def show(self, name: str, value: object) -> None:
        """Publish a JSON value under this name."""
        self._call(name, lambda: self._store.set(name, json.dumps(value)))

    def see(self, name: str, *, source: str, timeout_s: float | None = None) -> Any:  # Any: JSON
        """Wait for the value under this name; PeerLostError after the timeout."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        timeout = ActiveTimeout(limit_s)
        pause_s = _MIN_POLL_S
        # Polled: while the store itself waits, no signal is handled and no other thread is served.
        while not self._call(source, lambda: self._store.check([name])):
            if not timeout.next_s():
                raise SilenceError(f"waited {limit_s:g} s for {source}", _HINT)
            SystemClock().sleep(pause_s)
            pause_s = min(_MAX_POLL_S, 1.5 * pause_s)
        return json.loads(self._call(source, lambda: self._store.get(name)))

    def is_open(self) -> bool:
        """Whether the store still responds."""
        try:
            self._store.check(["hello"])
        except DistError:
            return False
        return True

    def hide(self, name: str) -> None:
        self._call(name, lambda: self._store.delete_key(name))

    def send(self, name: str, data: bytes | memoryview) -> None:
        view = memoryview(data)
        pieces = -(-len(view) // CHUNK_BYTES)
        for number in range(pieces):
            piece = bytes(view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
            self._call(name, lambda n=number, p=piece: self._store.set(f"{name}/{n}", p))  # type: ignore[misc]
        self.show(name, pieces)  # written last: once it is visible, all chunks are

    def receive(self, name: str, *, source: str) -> bytes:
        """Wait for the value, and delete it from the store."""
        names = [f"{name}/{number}" for number in range(self.see(name, source=source))]
        data = b"".join(self._call(source, lambda n=n: self._store.get(n)) for n in names)  # type: ignore[misc]
        for each in [*names, name]:
            self.hide(each)
        return data

    def _call(self, source: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except DistError as error:
            raise PeerLostError(f"{source} cannot be read: {_first_line(error)}", _HINT) from error


def _first_line(error: DistError) -> str:
    return str(error).splitlines()[0]


def _open(world: World, timeout_s: float, *, is_host: bool = False) -> Store:
    assert world.host is not None, "a single process needs no store"
    if not is_host:
        _await_listener(world.host, world.port, timeout_s)
    try:
        store = TCPStore(
            world.host,
            world.port,
            world.size,
            is_master=is_host,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except DistError as error:
        raise NotReadyError(
            f"no rendezvous at {world.host}:{world.port}: {_first_line(error)}",
            "check that MASTER_PORT is free and MASTER_ADDR is this host; torchrun sets both",
        ) from error
    # A store that outlives a restart must not show values of the previous processes.
    return PrefixStore(f"paceline/{world.restarts}", store)


def _await_listener(host: str, port: int, timeout_s: float) -> None:
    """Connect until a process listens: torch would do the same, but print its own stack per attempt."""
    end_s = monotonic_s() + timeout_s
    reason = ""
    while True:
        try:
            with socket.create_connection((host, port), max(0.1, end_s - monotonic_s())):
                return
        except OSError as error:
            reason = error.strerror or str(error)
        if monotonic_s() > end_s:
            break
        SystemClock().sleep(_CONNECT_RETRY_S)
    raise NotReadyError(
        f"cannot connect to {host}:{port} (MASTER_ADDR:MASTER_PORT) after {timeout_s:g} s: {reason}",
        "check both variables, that rank 0 runs there, and the firewall; --timeout sets the waiting time",
    )

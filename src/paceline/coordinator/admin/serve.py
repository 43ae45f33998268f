"""A coordinator node as a process of its own (`serve`), or inside another process (`EmbeddedNode`).

    with EmbeddedNode(run_dir) as node:
        node.client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

An embedded node runs the same code as any node, as a group of one: its data is in
RUN_DIR/coordinator, survives the process, and is shown by `paceline coordinator status --dir`. On loopback
it requires a token; at another address, for workers on other hosts, TLS with certificates that it makes for
this run, by an authority whose key is not kept.

A node stops when its disk fails, because it cannot know what the disk holds. The embedded node
is then reopened under the same address, from the data on disk, until it succeeds; no command
that was acknowledged is lost. `take_messages` returns the failure, its cause, and the recovery.
"""

import asyncio
import gc
import os
import queue
import resource
import shutil
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.coordinator.client import nodes_file
from paceline.coordinator.client.blocking import Background, BlockingClient
from paceline.coordinator.client.nodes_file import NodesFile
from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.run_endpoint import Credentials, TlsFolder, TokenFile
from paceline.coordinator.server import tokens
from paceline.coordinator.server.access_policy import Identity, Role, node_name
from paceline.coordinator.server.node import Pace
from paceline.coordinator.server.security import is_loopback
from paceline.coordinator.server.server import Coordinator, Note, Settings
from paceline.coordinator.server.tls import (
    CA_NAME,
    Certificate,
    CertificateHolder,
    init_pki,
    load_client_certificate,
    load_node_certificate,
)
from paceline.coordinator.server.tokens import Token, Tokens
from paceline.core import environ
from paceline.core.clock import unix_now_s
from paceline.core.errors import PacelineError


def shutdown_event(*, also_by_stdin: bool) -> asyncio.Event:
    """Set by SIGTERM, SIGHUP and Ctrl-C.

    With `also_by_stdin` also when stdin closes: then the parent process has ended, however suddenly.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in environ.stop_signals():
        loop.add_signal_handler(number, stop.set)
    if also_by_stdin:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
    return stop


async def run_until_stopped(stop: asyncio.Event, ending: Coroutine[None, None, None]) -> None:
    """Wait for `stop`; raises the error of `ending` if the service ends before that."""
    stopping = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(ending)
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        stopping.cancel()
        ended.cancel()
        await asyncio.gather(stopping, ended, return_exceptions=True)


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1 << 12):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


OnNote = Callable[[Note], None]


def serve(settings: Settings, notify: OnNote, *, stops_with_stdin: bool = False) -> None:
    """Run until a signal; a failing disk ends it with a StorageError."""
    _allow_many_files()
    asyncio.run(_serve(settings, notify, stops_with_stdin))


async def _serve(settings: Settings, notify: OnNote, stops_with_stdin: bool) -> None:
    coordinator = Coordinator(settings, notify)
    stop = shutdown_event(also_by_stdin=stops_with_stdin)
    await coordinator.start()
    # Everything loaded so far is permanent: a full collection, which stops the loop, need not scan it.
    gc.freeze()
    notify(Note("listening", {"address": coordinator.address, "cluster": settings.cluster}))
    try:
        await run_until_stopped(stop, coordinator.ended())
    finally:
        await coordinator.stop()
    notify(Note("stopped"))


def _allow_many_files() -> None:
    """Every connection is a file; the default soft limit of 1,024 is meant for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


EMBEDDED_FOLDER = "coordinator"
EMBEDDED_NODE = NodeId(1)
EMBEDDED_CLUSTER = "embedded"
PKI_FOLDER = "pki"
# A group of one elects itself after one tick.
EMBEDDED_PACE = Pace(tick_s=0.02, election_ticks=1, heartbeat_ticks=1)
FIRST_PAUSE_S = 0.2  # before it is reopened
MAX_PAUSE_S = 10.0


class EmbeddedNode:
    """A node that leads when the constructor returns; `client` has the role admin."""

    def __init__(self, run_dir: Path, *, host: str = "127.0.0.1", patience_s: float = 10.0) -> None:
        self.folder = run_dir / EMBEDDED_FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.credentials: Credentials
        proof: Tokens | Certificate
        if is_loopback(host):
            self.credentials = TokenFile(self.folder / tokens.TOKENS_NAME)
            proof = tokens.load_or_create_tokens(self.credentials.path)
            access: Token | Certificate = proof.of(Role.ADMIN)
        else:
            self.credentials = TlsFolder(self.folder / PKI_FOLDER)
            proof = _make_certificates(self.credentials.folder, host)
            access = load_client_certificate(self.credentials.folder)
        listen = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._settings = Settings(
            node=EMBEDDED_NODE,
            listen=listen,
            peers={EMBEDDED_NODE: listen},
            data_dir=self.folder / "node-1",
            proof=proof,
            cluster=EMBEDDED_CLUSTER,
            pace=EMBEDDED_PACE,
        )
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        with ExitStack() as stack:
            background = Background()
            stack.callback(background.close)
            self._coordinator = Coordinator(self._settings, self._on_note)
            background.call(self._coordinator.start())
            self.address = self._coordinator.address
            self._supervisor = background.call(self._start_supervisor())
            stack.callback(lambda: background.call(self._stop()))
            NodesFile(cluster=EMBEDDED_CLUSTER, nodes={EMBEDDED_NODE: self.address}).write(self.folder)
            stack.callback((self.folder / nodes_file.FILE_NAME).unlink, missing_ok=True)
            self.client = stack.enter_context(BlockingClient([self.address], access, patience_s=patience_s))
            self.client.find_leader()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and finish pending writes."""
        self._stack.close()

    def take_messages(self) -> list[str]:
        """Messages for the user since the last call: failures with their causes, and recoveries."""
        lines = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._news.get_nowait())
        return lines

    def _on_note(self, note: Note) -> None:
        gap_s = int(str(note.facts.get("gap_ms", 0))) / 1000
        if gap_s >= self._settings.lease_s:  # shorter ones happen on a busy machine
            self._news.put(f"the process was suspended for {gap_s:.1f} s; all leases were renewed")

    # These run in the background loop.

    async def _start_supervisor(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self._supervise())

    async def _stop(self) -> None:
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor
        await self._coordinator.stop()

    async def _supervise(self) -> None:
        while True:
            try:
                await self._coordinator.ended()
            except PacelineError as error:
                self._news.put(f"the run's coordinator failed: {error.what}; {error.hint}")
            except Exception as error:  # a bug must not leave the run without a coordinator
                self._news.put(f"the run's coordinator failed: {type(error).__name__}: {error}")
            await self._coordinator.stop()
            await self._reopen()
            self._news.put(f"the run's coordinator has recovered from {self._settings.data_dir}")

    async def _reopen(self) -> None:
        pause_s = FIRST_PAUSE_S
        last_what = ""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            coordinator = Coordinator(replace(self._settings, listen=self.address), self._on_note)
            try:
                await coordinator.start(after_failure=True)
            except (PacelineError, OSError) as error:
                message = error.what if isinstance(error, PacelineError) else f"{self.folder}: {error}"
                if message != last_what:
                    self._news.put(f"the run's coordinator cannot be opened again yet: {message}")
                    last_what = message
                continue
            self._coordinator = coordinator
            return


def _make_certificates(folder: Path, host: str) -> Certificate:
    """New ones for each start: the address may be another. Returns that of the node."""
    shutil.rmtree(folder, ignore_errors=True)
    node = CertificateHolder(Identity(node_name(EMBEDDED_NODE), Role.NODE), (host,))
    init_pki(folder, [node], now_s=unix_now_s())
    (folder / f"{CA_NAME}.key").unlink()  # no more certificates will be made
    return load_node_certificate(folder, EMBEDDED_NODE)

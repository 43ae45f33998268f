"""A coordinator node as a process of its own (`serve`), or inside another process (`EmbeddedNode`).

    with EmbeddedNode(run_dir) as node:
        node.client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

An embedded node runs the same code as any node, as a group of one: its data is in
RUN_DIR/coordinator, survives the process, and is shown by `paceline coordinator status --dir`.

A node stops when its disk fails, because it cannot know what the disk holds. The embedded node
is then reopened under the same address, from the data on disk, until it succeeds; no command
that was acknowledged is lost. `news` reports the failure, its cause, and the recovery.
"""

import asyncio
import gc
import os
import queue
import resource
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
from paceline.coordinator.server import tokens
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.node import Pace
from paceline.coordinator.server.server import Coordinator, Note, Settings
from paceline.core import environ
from paceline.core.errors import PacelineError


def shutdown_event(*, also_by_stdin: bool) -> asyncio.Event:
    """Set by SIGTERM, SIGHUP and Ctrl-C.

    With `also_by_stdin` also once nobody holds the other end of stdin any more: whoever started
    this process has ended, however suddenly.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in environ.stop_signals():
        loop.add_signal_handler(number, stop.set)
    if also_by_stdin:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
    return stop


async def run_until_stopped(stop: asyncio.Event, ending: Coroutine[None, None, None]) -> None:
    """Raises what `ending` raises, if the service ends by itself."""
    stopping, ended = asyncio.create_task(stop.wait()), asyncio.create_task(ending)
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


def serve(settings: Settings, say: OnNote, *, stops_with_stdin: bool = False) -> None:
    """Until it is told to stop; a failing disk ends it with a StorageError."""
    _allow_many_files()
    asyncio.run(_serve(settings, say, stops_with_stdin))


async def _serve(settings: Settings, say: OnNote, stops_with_stdin: bool) -> None:
    coordinator = Coordinator(settings, say)
    stop = shutdown_event(also_by_stdin=stops_with_stdin)
    await coordinator.start()
    # What was loaded until now stays: a full collection, which stops everything, need not look at it again.
    gc.freeze()
    say(Note("listening", {"address": coordinator.address, "cluster": settings.cluster}))
    try:
        await run_until_stopped(stop, coordinator.ended())
    finally:
        await coordinator.stop()
    say(Note("stopped"))


def _allow_many_files() -> None:
    """Every connection is a file; the usual soft limit of 1,024 is one for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


#     with EmbeddedNode(run_dir) as node:
#         node.client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)
#
# The same code as any node, alone in its cluster: what was written survives this
# process, in RUN_DIR/coordinator, and `paceline coordinator status --dir` looks at it.
#
# A node whose disk fails ends, because it cannot know what is on the disk. It is then
# opened again under its address, from what the disk holds, as often as it takes; nothing
# that was answered is lost. `news` says what is wrong with which folder, and when it is over.

EMBEDDED_FOLDER = "coordinator"
EMBEDDED_NODE = NodeId(1)
EMBEDDED_CLUSTER = "embedded"
# There is no other node to wait for, so it leads after one tick.
EMBEDDED_PACE = Pace(tick_s=0.02, election_ticks=1, heartbeat_ticks=1)
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0  # before it is opened again


class EmbeddedNode:
    """Leads when the constructor returns; `client` is an admin's."""

    def __init__(self, run_dir: Path, *, patience_s: float = 10.0) -> None:
        self.folder = run_dir / EMBEDDED_FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        proof = tokens.load_or_create_tokens(self.folder / tokens.TOKENS_NAME)
        self._settings = Settings(
            node=EMBEDDED_NODE,
            listen="127.0.0.1:0",
            peers={EMBEDDED_NODE: "127.0.0.1:0"},
            data_dir=self.folder / "node-1",
            proof=proof,
            cluster=EMBEDDED_CLUSTER,
            pace=EMBEDDED_PACE,
        )
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        with ExitStack() as stack:
            background = Background()
            stack.callback(background.close)
            self._coordinator = Coordinator(self._settings, self._hear)
            background.call(self._coordinator.start())
            self.address = self._coordinator.address
            self._keeping = background.call(self._keep_open())
            stack.callback(lambda: background.call(self._stop()))
            NodesFile(cluster=EMBEDDED_CLUSTER, nodes={EMBEDDED_NODE: self.address}).write(self.folder)
            stack.callback((self.folder / nodes_file.FILE_NAME).unlink, missing_ok=True)
            self.client = stack.enter_context(
                BlockingClient([self.address], proof.of(Role.ADMIN), patience_s=patience_s)
            )
            self.client.find_leader()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and finish what is being written."""
        self._stack.close()

    def news(self) -> list[str]:
        """What its user must know since the last call: that it failed and why, that it works again."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def _hear(self, note: Note) -> None:
        gap_s = int(str(note.facts.get("gap_ms", 0))) / 1000
        if gap_s >= self._settings.lease_s:  # shorter ones happen on a busy machine
            self._news.put(f"the run stood still for {gap_s:.1f} s; all participants have whole leases again")

    # In the background loop.

    async def _keep_open(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self._open_again_and_again())

    async def _stop(self) -> None:
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping
        await self._coordinator.stop()

    async def _open_again_and_again(self) -> None:
        while True:
            try:
                await self._coordinator.ended()
            except PacelineError as error:
                self._news.put(f"the run's coordinator failed: {error.what}; {error.hint}")
            except Exception as error:  # a bug: the run must not go without a coordinator for it
                self._news.put(f"the run's coordinator failed: {type(error).__name__}: {error}")
            await self._coordinator.stop()
            await self._open_again()
            self._news.put(f"the run's coordinator works again, from what {self._settings.data_dir} holds")

    async def _open_again(self) -> None:
        pause_s, last_what = FIRST_PAUSE_S, ""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            coordinator = Coordinator(replace(self._settings, listen=self.address), self._hear)
            try:
                await coordinator.start(after_failure=True)
            except (PacelineError, OSError) as error:
                what = error.what if isinstance(error, PacelineError) else f"{self.folder}: {error}"
                if what != last_what:
                    self._news.put(f"the run's coordinator cannot be opened again yet: {what}")
                    last_what = what
                continue
            self._coordinator = coordinator
            return

"""A coordinator node inside the process of a local run: no other process is needed.

    with EmbeddedNode(run_dir) as node:
        node.client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

The same code as any node, alone in its cluster: what was written survives this
process, in RUN_DIR/coordinator, and `paceline coordinator status --dir` looks at it.

A node whose disk fails ends, because it cannot know what is on the disk. It is then
opened again under its address, from what the disk holds, as often as it takes; nothing
that was answered is lost. `news` says what is wrong with which folder, and when it is over.
"""

import asyncio
import queue
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.coordinator import cluster_file
from paceline.coordinator.background import Background
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.cluster_file import ClusterFile
from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.shell import tokens
from paceline.coordinator.shell.identity import Role
from paceline.coordinator.shell.node import Pace
from paceline.coordinator.shell.notes import Note
from paceline.coordinator.shell.server import Coordinator, Settings
from paceline.errors import PacelineError

FOLDER = "coordinator"
ME = NodeId(1)
CLUSTER = "embedded"
# There is no other node to wait for, so it leads after one tick.
PACE = Pace(tick_s=0.02, election_ticks=1, heartbeat_ticks=1)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0  # before it is opened again


class EmbeddedNode:
    """Leads when the constructor returns; `client` is an admin's."""

    def __init__(self, run_dir: Path, *, patience_s: float = 10.0) -> None:
        self.folder = run_dir / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        proof = tokens.load_or_create_tokens(self.folder / tokens.FILE_NAME)
        self._settings = Settings(
            node=ME,
            listen="127.0.0.1:0",
            peers={ME: "127.0.0.1:0"},
            data_dir=self.folder / "node-1",
            proof=proof,
            cluster=CLUSTER,
            pace=PACE,
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
            ClusterFile(cluster=CLUSTER, nodes={ME: self.address}).write(self.folder)
            stack.callback((self.folder / cluster_file.NAME).unlink, missing_ok=True)
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
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
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

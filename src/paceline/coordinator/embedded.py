"""How does a local run get a coordinator without another process? One node of its own, inside this one.

    with EmbeddedNode(run_dir) as node:
        node.client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

The same code as any node, alone in its cluster: what was written survives this
process, in RUN_DIR/coordinator, and `paceline coordinator status --dir` looks at it.
"""

from contextlib import ExitStack
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

FOLDER = "coordinator"
ME = NodeId(1)
CLUSTER = "embedded"
# There is nobody else to hear from, so it leads after one tick.
PACE = Pace(tick_s=0.02, election_ticks=1, heartbeat_ticks=1)


class EmbeddedNode:
    """Leads when the constructor returns; `client` is an admin's."""

    def __init__(self, run_dir: Path, *, patience_s: float = 10.0) -> None:
        self.folder = run_dir / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        proof = tokens.load_or_create_tokens(self.folder / tokens.FILE_NAME)
        settings = Settings(
            node=ME,
            listen="127.0.0.1:0",
            peers={ME: "127.0.0.1:0"},
            data_dir=self.folder / "node-1",
            proof=proof,
            cluster=CLUSTER,
            pace=PACE,
        )
        with ExitStack() as stack:
            background = Background()
            stack.callback(background.close)
            self._coordinator = Coordinator(settings, _keep_quiet)
            background.call(self._coordinator.start())
            stack.callback(lambda: background.call(self._coordinator.stop()))
            self.address = self._coordinator.address
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


def _keep_quiet(note: Note) -> None:
    """Whoever embeds a node talks to its user itself."""
